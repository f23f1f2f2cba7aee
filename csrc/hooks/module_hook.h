// The forward hook of one module, as a callable for Python.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "hooks/site.h"

namespace hookstats::hooks {

// Handles the calls that need nothing from Python, as most do: plain tensors like those of the call
// before. Hands all other calls to `python`, the Python hook that this hook stands for.
class ModuleHook {
 public:
  // `values` and `gradients`: a Python `Sites`, or None. `phase`: the one whose calls it handles.
  // `of_inputs`: it is a forward pre-hook with keyword arguments, (module, args, kwargs), for the
  // inputs; else a forward hook, (module, args, output).
  ModuleHook(std::shared_ptr<DoubleBuffer> buffers, pybind11::object python,
             pybind11::object values, pybind11::object gradients, int phase, bool of_inputs);

  // The slot that Python calls; always returns None.
  static PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs);

 private:
  // The sites of one kind of a leaf, a site per number of channels.
  struct Sites {
    bool watched = false;
    std::vector<std::shared_ptr<Site>> all;
  };

  // The leaf at one path of an output.
  struct Place {
    std::string path;
    Sites values, gradients;

    // The sites for a plain tensor; false where Python has to look at it.
    struct Found {
      Site* value = nullptr;
      const std::shared_ptr<Site>* gradient = nullptr;
    };
    bool find(const at::Tensor& x, bool recomputation, Found& found) const;
  };

  static Sites sites_at(const pybind11::object& sites, const std::string& path);
  bool observe(PyObject* args);
  // The place of a path, which is the i-th of its call; null where there are too many paths.
  const Place* place(size_t i, const std::string& path);

  std::shared_ptr<DoubleBuffer> buffer_;
  pybind11::object python_, values_, gradients_;
  const int phase_;
  const bool of_inputs_;
  std::vector<Place> places_;
  bool outdated_ = false;  // Python may have made sites that `places_` lacks
};

}  // namespace hookstats::hooks
