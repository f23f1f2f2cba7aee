// The tensors in what a module takes and returns, each with its path; `leaves.py` in C++.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace hookstats::hooks {

struct Leaf {
  std::string path;
  // Borrowed of the value that was walked where that is a tensor itself: the first reference from
  // C++ to what Python has takes the GIL.
  c10::MaybeOwned<at::Tensor> tensor;
};

using Leaves = c10::SmallVector<Leaf, 4>;

// Appends those of a value, as `leaves`, or of a call's arguments, as `argument_leaves`.
// Throws py::error_already_set where a container raises.
void add_leaves(PyObject* value, Leaves& leaves);
void add_argument_leaves(PyObject* args, PyObject* kwargs, Leaves& leaves);

}  // namespace hookstats::hooks
