// A forward hook's call: decide, find the tensors, accumulate them, await their gradients.
#include "hooks/module_hook.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace py = pybind11;

namespace hookstats::hooks {

namespace {

// Kernels for this many elements or more release the GIL.
constexpr int64_t kReleaseGil = 1 << 16;

// Python, which has a limit of its own, handles paths beyond this many: they change at every call.
constexpr size_t kMostPlaces = 256;

// A tensor in what a module takes or returns.
struct Leaf {
  std::string path;
  at::Tensor owned;
  // If the value itself is a tensor: where the value keeps it, since a first reference from C++ to
  // a tensor of Python takes the GIL. Valid as long as the value lives. Whenever the GIL was
  // released, another tensor may be there (`torch.utils.swap_tensors`).
  const at::Tensor* borrowed = nullptr;

  const at::Tensor& tensor() const { return borrowed != nullptr ? *borrowed : owned; }
};

using Leaves = c10::SmallVector<Leaf, 4>;

// Python looks into what is nested deeper than this, such as a list that holds itself.
constexpr int kMostNested = 8;

// Appends the tensors in nested tuples and lists, as `leaves.py` does. Returns false where Python
// has to take a value of another type apart.
bool walk(PyObject* value, const std::string& path, Leaves& leaves, int depth = 0) {
  if (Site::is_tensor(value)) {
    const bool is_first = path.find_first_not_of("[0]") == std::string::npos;
    leaves.push_back({is_first ? std::string() : path, THPVariable_Unpack(value)});
    return true;
  }
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    if (depth == kMostNested) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      PyObject* const item = PySequence_Fast_GET_ITEM(value, i);
      if (!walk(item, path + "[" + std::to_string(i) + "]", leaves, depth + 1)) return false;
    }
    return true;
  }
  return value == Py_None || PyUnicode_Check(value) || PyLong_Check(value) || PyFloat_Check(value);
}

// The same of the arguments of a hook: of a call's arguments, or of its output.
bool add_leaves(PyObject* args, bool of_inputs, Leaves& leaves) {
  PyObject* const output = PyTuple_GET_ITEM(args, 2);
  if (!of_inputs && Site::is_tensor(output)) {  // as nearly always
    leaves.push_back({{}, {}, &THPVariable_Unpack(output)});
    return true;
  }
  if (!of_inputs) return walk(output, {}, leaves);
  if (!walk(PyTuple_GET_ITEM(args, 1), {}, leaves)) return false;
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(output)) {
    if (!walk(value.ptr(), "." + name.cast<std::string>(), leaves)) return false;
  }
  return true;
}

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
  const char* reason = kNoGradient;
  const bool done = site->attempt([&] {
    if (x.requires_grad()) reason = await_gradient(site, x);
  });
  if (!done) reason = kDisabled;
  if (reason == nullptr) {
    ++site->missing;
  } else {
    site->skip(reason);
  }
}

}  // namespace

ModuleHook::ModuleHook(std::shared_ptr<DoubleBuffer> buffers, py::object python, py::object values,
                       py::object gradients, int phase, bool of_inputs)
    : buffer_(std::move(buffers)),
      python_(std::move(python)),
      values_(std::move(values)),
      gradients_(std::move(gradients)),
      phase_(phase),
      of_inputs_(of_inputs) {}

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
    if (!error.matches(PyExc_Exception)) throw;  // the Python hook meets other errors again
  }
  if (done) Py_RETURN_NONE;
  hook->outdated_ = true;
  return PyObject_Call(hook->python_.ptr(), args, kwargs);
  END_HANDLE_TH_ERRORS
}

bool ModuleHook::observe(PyObject* args) {
  if (is_odd_call()) return false;
  Leaves leaves;
  if (!add_leaves(args, of_inputs_, leaves) || leaves.empty()) return false;

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

}  // namespace hookstats::hooks
