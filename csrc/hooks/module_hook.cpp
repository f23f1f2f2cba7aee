// A forward hook's call: decide, find the tensors, accumulate them, await their gradients.
#include "hooks/module_hook.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <memory>
#include <optional>
#include <utility>

#include "hooks/gradient.h"

namespace py = pybind11;

namespace hookstats::hooks {

namespace {

// Kernels for this many elements or more release the GIL.
constexpr int64_t kReleaseGil = 1 << 16;

// Python, which has a limit of its own, handles paths beyond this many: they change at every call.
constexpr size_t kMostPlaces = 256;

bool is_odd_call() {
  return torch::jit::tracer::isTracing() ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

void accumulate(Site& site, const at::Tensor& x) {
  const std::shared_ptr<const Mask> mask = site.buffers().mask();
  const bool whole = site.is_whole(x, mask.get());
  const bool accumulated = site.attempt([&] {
    const UpdateParams& params = site.prepare(x, mask.get());
    std::optional<c10::Storage> memory;  // other threads may change x, which is not read then
    std::optional<py::gil_scoped_release> released;
    if (x.numel() >= kReleaseGil) {
      memory = x.storage();
      released.emplace();
    }
    site.accumulate(params);
  });
  if (accumulated) {
    site.count(std::nullopt, whole);
  } else {
    site.skip(kDisabled);
  }
}

void await(const std::shared_ptr<Site>& site, const at::Tensor& x) {
  const Reason* reason = nullptr;
  const bool done = site->attempt([&] {
    if (!x.requires_grad()) {
      reason = &kNoGradient;
    } else {
      reason = await_gradient(site, x);
    }
  });
  if (!done) reason = &kDisabled;
  if (reason == nullptr) {
    ++site->missing;
  } else {
    site->skip(*reason);
  }
}

}  // namespace

ModuleHook::ModuleHook(std::shared_ptr<DoubleBuffer> buffers, py::object python, py::object values,
                       py::object gradients, int phase)
    : buffer_(std::move(buffers)),
      python_(std::move(python)),
      values_(std::move(values)),
      gradients_(std::move(gradients)),
      phase_(phase) {}

PyObject* ModuleHook::call(PyObject* self, PyObject* args, PyObject* kwargs) {
  auto* instance = reinterpret_cast<py::detail::instance*>(self);
  auto* hook = static_cast<ModuleHook*>(instance->simple_value_holder[0]);
  // Before the macro, which sets up a handler of warnings: a hook that is off must cost nothing.
  const DoubleBuffer& buffers = *hook->buffer_;
  if (!buffers.recording.load(std::memory_order_relaxed)) Py_RETURN_NONE;
  if (buffers.phase.load(std::memory_order_relaxed) != hook->phase_) Py_RETURN_NONE;
  HANDLE_TH_ERRORS
  bool done = false;
  try {
    const bool is_for_python =
        hook->phase_ == 0 && buffers.skips_evaluation && !at::GradMode::is_enabled();
    done = !is_for_python && PyTuple_GET_SIZE(args) == 3 && hook->observe(args);
  } catch (const py::error_already_set& error) {
    // A container raised it. The Python hook meets it again and copes; an interrupt comes only
    // once.
    if (!error.matches(PyExc_Exception)) throw;
  }
  if (done) Py_RETURN_NONE;
  hook->outdated_ = true;
  return PyObject_Call(hook->python_.ptr(), args, kwargs);
  END_HANDLE_TH_ERRORS
}

bool ModuleHook::observe(PyObject* args) {
  if (is_odd_call()) return false;
  Leaves leaves;
  add_leaves(args, leaves);
  if (leaves.empty()) return false;

  const LockWithGil lock(*buffer_);
  const bool recomputation = torch::autograd::get_current_graph_task_id() != -1;
  if (outdated_) places_.clear();
  outdated_ = false;
  for (size_t i = 0; i < leaves.size(); ++i) {  // first, as this may run Python
    if (place(i, leaves[i].path) == nullptr) return false;
  }
  c10::SmallVector<Place::Found, 4> found(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor& x = leaves[i].tensor();
    if (!Site::is_plain(x) || buffer_->kernels(x) == nullptr) return false;
    if (!place(i, leaves[i].path)->find(x, recomputation, found[i])) return false;
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto& [value, gradient] = found[i];
    if (recomputation) {
      for (Site* site : {value, gradient != nullptr ? gradient->get() : nullptr}) {
        if (site != nullptr) site->skip(kRecomputation);
      }
      continue;
    }
    if (value != nullptr && i > 0 && !value->fits(leaves[i].tensor())) {
      value->skip(kChangedByThread);  // while the tensor before was accumulated
    } else if (value != nullptr) {
      accumulate(*value, leaves[i].tensor());
    }
    if (gradient != nullptr) await(*gradient, leaves[i].tensor());
  }
  return true;
}

bool ModuleHook::Place::find(const at::Tensor& x, bool recomputation, Found& found) const {
  for (const auto& site : values.all) {
    if (recomputation ? site->expects(x) : site->matches(x)) found.value = site.get();
  }
  for (const auto& site : gradients.all) {
    if (site->expects(x) && (recomputation || !site->disabled)) found.gradient = &site;
  }
  return (found.value != nullptr) == values.watched &&
         (found.gradient != nullptr) == gradients.watched;
}

ModuleHook::Sites ModuleHook::sites_at(const py::object& sites, const std::string& path) {
  if (sites.is_none()) return {};
  const py::object natives = sites[py::str(path)].attr("natives");
  return {true, natives.cast<std::vector<std::shared_ptr<Site>>>()};
}

const ModuleHook::Place* ModuleHook::place(size_t i, const std::string& path) {
  if (i < places_.size() && places_[i].path == path) return &places_[i];
  for (const Place& place : places_) {
    if (place.path == path) return &place;
  }
  if (places_.size() == kMostPlaces) return nullptr;
  places_.push_back({path, sites_at(values_, path), sites_at(gradients_, path)});
  return &places_.back();
}

void OutputHook::add_leaves(PyObject* args, Leaves& leaves) const {
  hooks::add_leaves(PyTuple_GET_ITEM(args, 2), leaves);
}

void InputHook::add_leaves(PyObject* args, Leaves& leaves) const {
  add_argument_leaves(PyTuple_GET_ITEM(args, 1), PyTuple_GET_ITEM(args, 2), leaves);
}

}  // namespace hookstats::hooks
