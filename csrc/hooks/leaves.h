// The tensors in what a module takes and returns, each with its path; `leaves.py` in C++.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace hookstats::hooks {

struct Leaf {
  std::string path;
  at::Tensor owned;
  // Where the value that was walked is a tensor itself, the place in it that has the tensor, as the
  // first reference from C++ to what Python has takes the GIL. Good as long as the value is; it may
  // hold another tensor (`torch.utils.swap_tensors`) whenever the GIL was given up.
  const at::Tensor* borrowed = nullptr;

  const at::Tensor& tensor() const { return borrowed != nullptr ? *borrowed : owned; }
};

using Leaves = c10::SmallVector<Leaf, 4>;

// Appends those of a value, as `leaves`, or of a call's arguments, as `argument_leaves`.
// Throws py::error_already_set where a container raises.
void add_leaves(PyObject* value, Leaves& leaves);
void add_argument_leaves(PyObject* args, PyObject* kwargs, Leaves& leaves);

}  // namespace hookstats::hooks
