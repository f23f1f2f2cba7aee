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
  // If the value itself is a tensor: where the value keeps it, since a first reference from C++ to
  // a tensor of Python takes the GIL. Valid as long as the value lives. Whenever the GIL was
  // released, another tensor may be there (`torch.utils.swap_tensors`).
  const at::Tensor* borrowed = nullptr;

  const at::Tensor& tensor() const { return borrowed != nullptr ? *borrowed : owned; }
};

// Whether a value is a tensor by its type. An object may lie about its class, as proxies and mocks
// do: THPVariable_Check believes it, and what unpacks the tensor then reads foreign memory.
bool is_tensor(PyObject* value);

using Leaves = c10::SmallVector<Leaf, 4>;

// Appends the leaves of a value, as Python's `leaves` does, or of a call's arguments, as Python's
// `argument_leaves` does. Throws py::error_already_set where a container raises.
void add_leaves(PyObject* value, Leaves& leaves);
void add_argument_leaves(PyObject* args, PyObject* kwargs, Leaves& leaves);

}  // namespace hookstats::hooks
