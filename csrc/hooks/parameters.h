// The parameters of one optimizer, observed as `parameters.py` observes them, as long as they are
// those that it saw.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/update_params.h"
#include "hooks/double_buffer.h"
#include "hooks/site.h"
#include "ops/kernels.h"

namespace hookstats::hooks {

// All methods need the GIL.
class Parameters {
 public:
  explicit Parameters(std::shared_ptr<DoubleBuffer> buffers) : buffer_(std::move(buffers)) {}

  // Adds the next parameter in the optimizer's order, which is not watched.
  void add(PyObject* parameter);
  // Adds the next parameter, which the module `owner()`, a weak reference, has by the name `key`. A
  // site may be null.
  void add_watched(PyObject* parameter, pybind11::object owner, pybind11::str key,
                   std::shared_ptr<Site> value, std::shared_ptr<Site> gradient);

  // Counts the parameters in the lists `groups` and accumulates them, by one call per device;
  // gradients are divided by `scale` unless `scale` is None. Returns false, and has done nothing,
  // if the parameters are not those that were added, or if Python has to look at one of their
  // tensors. Under the double buffer's lock.
  bool observe(const pybind11::list& groups, const pybind11::object& scale);

 private:
  struct Entry {
    PyObject* parameter;  // only to be compared
    pybind11::object owner, key;
    std::shared_ptr<Site> value, gradient;
  };

  // The tensors that one call accumulates.
  struct Batch {
    const Kernels* kernels;
    c10::Device device;
    std::vector<UpdateParams> params;
    std::vector<Site*> sites;
    // Owns what `params` point to: other threads may give a tensor other memory during an
    // accumulation.
    std::vector<c10::Storage> memory;
  };

  bool collect(const pybind11::list& groups, const std::optional<at::Tensor>& scale);
  bool is_still(const Entry& entry, PyObject* parameter) const;
  void count(const std::optional<at::Tensor>& scale);
  void add_to_batch(Site& site, const at::Tensor& x, const at::Tensor* scale);
  void accumulate(Batch& batch);

  std::shared_ptr<DoubleBuffer> buffer_;
  std::vector<Entry> entries_;
  // The tensors of the call under way; the vectors keep their capacity. Parameters are Python
  // objects, since a first reference from C++ to their tensors takes the GIL.
  std::vector<pybind11::object> parameters_;
  std::vector<at::Tensor> gradients_;
  std::vector<Batch> batches_;
};

}  // namespace hookstats::hooks
