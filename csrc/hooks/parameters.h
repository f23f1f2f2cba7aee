// The parameters of one optimizer: observed as `parameters.py` does, where all is as it was there.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/Storage.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/update_params.h"
#include "hooks/arena.h"
#include "hooks/site.h"
#include "ops/kernels.h"

namespace hookstats::hooks {

// All methods need the GIL.
class Parameters {
 public:
  explicit Parameters(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  // The next parameter in the optimizer's order, which is not watched.
  void add(PyObject* parameter);
  // The next, which is what the module `owner()`, a weak reference, has by the name `key`. A site
  // may be null.
  void add_watched(PyObject* parameter, pybind11::object owner, pybind11::str key,
                   std::shared_ptr<Site> value, std::shared_ptr<Site> gradient);

  // Counts the parameters in the lists `groups` and folds them in, their gradients divided by
  // `scale`, or by nothing where that is None, by one call a device. Returns false, and did
  // nothing, where they are not the ones that were added or one of their tensors is Python's to
  // look at. Under the arena's lock.
  bool observe(const pybind11::list& groups, const pybind11::object& scale);

 private:
  struct Entry {
    PyObject* parameter;  // only to be compared
    pybind11::object owner, key;
    std::shared_ptr<Site> value, gradient;
  };

  // What is folded in by one call.
  struct Batch {
    const Kernels* kernels;
    int32_t device;
    std::vector<UpdateParams> params;
    std::vector<Site*> sites;
    // What `params` point to: other threads may give a tensor other memory during a fold.
    std::vector<c10::Storage> memory;
  };

  bool collect(const pybind11::list& groups, const std::optional<at::Tensor>& scale);
  bool is_still(const Entry& entry, PyObject* parameter) const;
  void count(const std::optional<at::Tensor>& scale);
  void add_to_batch(Site& site, const at::Tensor& x, const at::Tensor* scale);
  void fold(Batch& batch);

  std::shared_ptr<Arena> arena_;
  std::vector<Entry> entries_;
  // Of the call under way. They keep their memory, but for the tensors' own. Parameters as Python
  // has them: the first reference from C++ takes the GIL.
  std::vector<pybind11::object> parameters_;
  std::vector<at::Tensor> gradients_;
  std::vector<Batch> batches_;
};

}  // namespace hookstats::hooks
