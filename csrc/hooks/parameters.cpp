// Two passes over an optimizer's parameters: the first may decline, the second counts and collects.
#include "hooks/parameters.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

namespace py = pybind11;

namespace hookstats::hooks {

namespace {

// Interned, as Python's attribute caches want names; never destroyed.
PyObject* parameters_name() {
  static PyObject* const name = PyUnicode_InternFromString("_parameters");
  return name;
}

py::object taken(PyObject* created) {
  if (created == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(created);
}

}  // namespace

void Parameters::add(PyObject* parameter) { entries_.push_back({parameter, {}, {}, {}, {}}); }

void Parameters::add_watched(PyObject* parameter, py::object owner, py::str key,
                             std::shared_ptr<Site> value, std::shared_ptr<Site> gradient) {
  entries_.push_back(
      {parameter, std::move(owner), std::move(key), std::move(value), std::move(gradient)});
}

bool Parameters::observe(const py::list& groups, const py::object& divisor) {
  std::optional<at::Tensor> scale;
  if (!divisor.is_none()) {
    if (!Site::is_tensor(divisor.ptr())) return false;
    scale = THPVariable_Unpack(divisor.ptr());
  }
  struct LetGo {
    Parameters& of;
    ~LetGo() {
      of.parameters_.clear();
      of.gradients_.clear();
      for (Batch& batch : of.batches_) {
        batch.params.clear();
        batch.sites.clear();
        batch.memory.clear();
      }
    }
  } const let_go{*this};
  if (!collect(groups, scale)) return false;
  const c10::Storage scale_memory = scale ? scale->storage() : c10::Storage();
  count(scale);
  for (Batch& batch : batches_) {
    if (!batch.params.empty()) accumulate(batch);
  }
  return true;
}

bool Parameters::collect(const py::list& groups, const std::optional<at::Tensor>& scale) {
  const bool divides = !scale || (scale->scalar_type() == at::kFloat && scale->dim() == 0);
  if (!divides || (scale && !Site::is_plain(*scale))) return false;
  std::optional<c10::Device> asked;  // the last device that kernels were asked for
  const auto accumulated = [&](const Site& site, const at::Tensor& x) {
    if (!site.fits(x)) return false;
    if (asked == x.device()) return true;
    asked = x.device();
    return buffer_->kernels(x) != nullptr;
  };
  for (const py::handle group : groups) {
    if (!PyList_Check(group.ptr())) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(group.ptr()); ++i) {
      PyObject* const parameter = PyList_GET_ITEM(group.ptr(), i);
      if (parameters_.size() == entries_.size()) return false;
      const Entry& entry = entries_[parameters_.size()];
      if (!is_still(entry, parameter)) return false;
      const at::Tensor& value = THPVariable_Unpack(parameter);
      at::Tensor gradient = entry.gradient ? value.grad() : at::Tensor();
      if (entry.value && !entry.value->disabled && !accumulated(*entry.value, value)) return false;
      if (gradient.defined()) {
        if (!accumulated(*entry.gradient, gradient)) return false;
        if (scale && scale->device() != gradient.device()) return false;
      }
      parameters_.push_back(py::reinterpret_borrow<py::object>(parameter));
      gradients_.push_back(std::move(gradient));
    }
  }
  return parameters_.size() == entries_.size();
}

// The names say which parameter is watched: a module may have another parameter by a name now.
bool Parameters::is_still(const Entry& entry, PyObject* parameter) const {
  if (entry.parameter != parameter || !Site::is_tensor(parameter)) return false;
  if (!entry.owner) return true;
  const py::object owner = taken(PyObject_CallNoArgs(entry.owner.ptr()));
  if (owner.is_none()) return false;
  const py::object named = taken(PyObject_GetAttr(owner.ptr(), parameters_name()));
  return PyDict_Check(named.ptr()) &&
         PyDict_GetItemWithError(named.ptr(), entry.key.ptr()) == parameter;
}

void Parameters::count(const std::optional<at::Tensor>& scale) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& [parameter, owner, key, value, gradient] = entries_[i];
    const at::Tensor& x = THPVariable_Unpack(parameters_[i].ptr());
    if (value) {
      add_to_batch(*value, x, nullptr);
    }
    if (!gradient) continue;
    if (gradients_[i].defined()) {
      ++gradient->backwards;
      add_to_batch(*gradient, gradients_[i], scale ? &*scale : nullptr);
    } else if (x.requires_grad()) {
      ++gradient->missing;
    } else {
      gradient->skip(kNoGradient);
    }
  }
}

void Parameters::add_to_batch(Site& site, const at::Tensor& x, const at::Tensor* scale) {
  if (site.disabled) return site.skip(kDisabled);
  const c10::Device device = x.device();  // not its index alone: devices of two types have the same
  Batch* batch = nullptr;
  for (Batch& each : batches_) {
    if (each.device == device) batch = &each;
  }
  if (batch == nullptr) {
    batches_.push_back({buffer_->kernels(x), device, {}, {}, {}});
    batch = &batches_.back();
  }
  UpdateParams& params = batch->params.emplace_back(site.prepare(x));
  batch->sites.push_back(&site);
  batch->memory.push_back(x.storage());
  if (scale != nullptr && scale->is_cpu()) {
    params.scale = *scale->const_data_ptr<float>();
  } else if (scale != nullptr) {
    params.device_scale = scale->const_data_ptr<float>();
  }
}

void Parameters::accumulate(Batch& batch) {
  try {
    const py::gil_scoped_release released;
    batch.kernels->update(batch.params.data(), static_cast<int64_t>(batch.params.size()),
                          batch.device.index(), false);
  } catch (const c10::AcceleratorError&) {
    throw;  // the device is lost
  } catch (const std::exception& error) {
    // The batch failed as a whole, not for one of its tensors: disable every site in it.
    for (Site* site : batch.sites) {
      site->skip(kDisabled);
      site->fail(error);
    }
    return;
  }
  for (Site* site : batch.sites) {
    ++site->observed;
    site->count_accumulated();
  }
}

}  // namespace hookstats::hooks
