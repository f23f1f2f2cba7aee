// The forward hooks of one module, as callables for Python.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "hooks/leaves.h"
#include "hooks/site.h"

namespace hookstats::hooks {

// Handles the calls that need nothing from Python, as most do: plain tensors like those of the call
// before. Hands all other calls to `python`, the Python hook that this hook stands for.
class ModuleHook {
 public:
  // `values` and `gradients`: a Python `Sites`, or None.
  ModuleHook(std::shared_ptr<Arena> arena, pybind11::object python, pybind11::object values,
             pybind11::object gradients);
  virtual ~ModuleHook() = default;

  // The slot that Python calls; always returns None.
  static PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs);

 protected:
  virtual void add_leaves(PyObject* args, Leaves& leaves) const = 0;

 private:
  // The sites of the leaf at one path of an output.
  struct Place {
    std::string path;
    std::shared_ptr<Site> value, gradient;  // either may be missing
  };

  bool observe(PyObject* args);
  // The place of a path, which is the i-th of its call; null where there are too many paths.
  const Place* place(size_t i, const std::string& path);

  std::shared_ptr<Arena> arena_;
  pybind11::object python_, values_, gradients_;
  std::vector<Place> places_;
};

// Forward hook: (module, args, output).
class OutputHook final : public ModuleHook {
 public:
  using ModuleHook::ModuleHook;

 protected:
  void add_leaves(PyObject* args, Leaves& leaves) const override;
};

// Forward pre-hook with keyword arguments: (module, args, kwargs).
class InputHook final : public ModuleHook {
 public:
  using ModuleHook::ModuleHook;

 protected:
  void add_leaves(PyObject* args, Leaves& leaves) const override;
};

}  // namespace hookstats::hooks
