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

// Takes the calls that need nothing from Python, the common ones: plain tensors like those of the
// call before. All others it hands to `python`, the Python hook that it stands for, whole.
class ModuleHook {
 public:
  // `values` and `gradients`: a Python `Sites`, or None.
  ModuleHook(std::shared_ptr<Arena> arena, pybind11::object python, pybind11::object values,
             pybind11::object gradients);
  virtual ~ModuleHook() = default;

  // The slot that Python calls; never returns anything but None.
  static PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs);

 protected:
  virtual void add_leaves(PyObject* args, Leaves& leaves) const = 0;

 private:
  // The sites of the leaf at one place of an output.
  struct Place {
    std::string path;
    std::shared_ptr<Site> value, gradient;  // either may be missing
  };

  bool observe(PyObject* args);
  // That of a path, the i-th of its call; none where there are too many.
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
