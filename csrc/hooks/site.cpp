// Site: counts and accumulates the tensors of one place in a model.
#include "hooks/site.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "core/bins.h"
#include "core/channel_view.h"
#include "ops/scalar_type.h"

namespace py = pybind11;

namespace hookstats::hooks {

namespace {

// The keys that a tensor with plain memory may have, on any device. Python subclasses, functorch's
// wrappers, fake, sparse, nested and quantised tensors, and lazy conj and neg bits have other keys.
constexpr c10::DispatchKeySet kPlainKeys =
    c10::DispatchKeySet(c10::DispatchKey::Dense) | c10::backend_bitset_mask |
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

bool has_only(const at::Tensor& x, c10::DispatchKeySet keys) {
  return (x.key_set().raw_repr() & ~keys.raw_repr()) == 0;
}

// Only kernels read edges in the memory of other devices.
Bins read_bins(const std::optional<at::Tensor>& bins, std::vector<float>& edges) {
  if (!bins) return {};
  if (bins->scalar_type() == at::kFloat) {
    const float* values = bins->const_data_ptr<float>();
    if (!bins->is_cpu()) return described_bins(bins->numel() - 1, values);
    edges.assign(values, values + bins->numel());
    return linear_bins(edges.data(), bins->numel() - 1);
  }
  const int32_t* values = bins->const_data_ptr<int32_t>();
  return log_bins(values[0], values[1], values[2]);
}

template <class T>
T* row_of(const at::Tensor& block, int64_t row) {
  return block.mutable_data_ptr<T>() + row * block.stride(0);
}

int64_t* row_of(const std::optional<at::Tensor>& block, int64_t row) {
  return block ? row_of<int64_t>(*block, row) : nullptr;
}

// None for an undefined tensor.
py::object to_python(const at::Tensor& x) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(x));
}

// Calls a method of the Python Site, if the Site still exists; takes the GIL.
template <class Call>
void call_owner(PyObject* owner, const char* method, Call call) {
  py::gil_scoped_acquire gil;
  try {
    const py::object site = py::handle(owner)();
    if (!site.is_none()) call(site.attr(method));
  } catch (py::error_already_set& raised) {
    // Autograd hands errors of this form on to the thread that called backward.
    raised.restore();
    python_error error;
    error.persist();
    throw std::move(error);
  }
}

}  // namespace

Site::Site(std::shared_ptr<DoubleBuffer> buffers, PyObject* owner)
    : buffer_(std::move(buffers)), owner_(PyWeakref_NewRef(owner, nullptr)) {
  if (owner_ == nullptr) throw py::error_already_set();
}

Site::~Site() {
  if (!Py_IsInitialized()) return;
  // A backward thread may destroy the last gradient hook.
  py::gil_scoped_acquire gil;
  Py_DECREF(owner_);
}

bool Site::is_tensor(PyObject* value) {
  return PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

bool Site::is_plain(const at::Tensor& x) {
  return has_only(x, kPlainKeys) && x.layout() == at::kStrided && x.has_storage() &&
         (x.const_data_ptr() != nullptr || x.numel() == 0) &&
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

bool Site::is_strided(const at::Tensor& x) {
  constexpr c10::DispatchKeySet lazy(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return has_only(x, kPlainKeys | lazy) && x.layout() == at::kStrided;
}

void Site::set_plan(const at::Tensor& x, std::optional<int64_t> channel_dim,
                    std::array<State, 2> states, std::array<at::Tensor, 2> calls,
                    const std::optional<std::array<at::Tensor, 2>>& occupancy, const Rows& rows) {
  bound_.reset();
  const std::optional<DType> dtype = dtype_of(x.scalar_type());
  const Kernels* const kernels = buffer_->kernels(x);
  if (!dtype || kernels == nullptr) return;
  int dim = -1;
  if (channel_dim) dim = static_cast<int>(*channel_dim < 0 ? *channel_dim + x.dim() : *channel_dim);
  Bound& bound = bound_.emplace(Bound{.kernels = kernels,
                                      .dtype = x.scalar_type(),
                                      .device = x.device(),
                                      .sizes = x.sizes().vec(),
                                      .strides = x.strides().vec(),
                                      .channel_dim = dim,
                                      .states = std::move(states),
                                      .calls = std::move(calls),
                                      .occupancy = occupancy});
  UpdateParams params{};
  params.dtype = *dtype;
  const State& first = bound.states[0];
  params.sampling = first.sampling ? first.sampling->const_data_ptr<int64_t>() : nullptr;
  params.view = channel_view(x.sizes().data(), x.strides().data(), static_cast<int>(x.dim()), dim);
  params.tensor_bins = read_bins(first.bins, bound.tensor_edges);
  params.channel_bins = read_bins(first.channel_bins, bound.channel_edges);
  for (size_t buffer = 0; buffer < 2; ++buffer) {
    const State& state = bound.states[buffer];
    params.moments = row_of<double>(state.moments, rows.channel);
    params.tallies = row_of<int64_t>(state.tallies, rows.channel);
    params.tensor_counts = row_of(state.counts, rows.tensor);
    params.channel_counts = row_of(state.channel_counts, rows.channel);
    params.tensor_occupancy =
        bound.occupancy ? row_of<int64_t>((*bound.occupancy)[buffer], rows.tensor) : nullptr;
    bound.params[buffer] = params;
    bound.call_counts[buffer] = row_of<int64_t>(bound.calls[buffer], rows.call);
  }
}

int64_t Site::forwards() const {
  int64_t calls = observed + missing;
  for (const auto& [reason, count] : skipped) calls += count;
  return calls;
}

void Site::count_gradient(bool first, const std::optional<std::string>& reason, bool whole) {
  ++backwards;
  if (!first) return;
  --missing;
  count(reason, whole);
}

int Site::covered(const at::Tensor& x, const Mask* mask) const {
  if (mask == nullptr || mask->tensor().device() != x.device()) return 0;
  return covered_dims(mask->kept(), x.sizes().data(), static_cast<int>(x.dim()),
                      bound_->channel_dim);
}

const UpdateParams& Site::prepare(const at::Tensor& x, const Mask* mask) {
  Bound& bound = *bound_;
  UpdateParams& params = bound.params[buffer_->front];
  const int masked = covered(x, mask);
  if (masked > 0 || bound.masked || x.strides() != bound.strides) {
    bound.strides = x.strides().vec();
    bound.masked = masked > 0;
    const ChannelView view =
        channel_view(x.sizes().data(), x.strides().data(), static_cast<int>(x.dim()),
                     bound.channel_dim, masked > 0 ? &mask->kept() : nullptr, masked);
    for (UpdateParams& each : bound.params) each.view = view;
  }
  params.data = x.const_data_ptr();
  return params;
}

void Site::accumulate(const UpdateParams& prepared) {
  // Not captured: else `takes` had refused.
  bound_->kernels->update(&prepared, 1, bound_->device.index(), false);
  count_accumulated();
}

void Site::receive(const at::Tensor& gradient, bool first,
                   const std::shared_ptr<const Mask>& mask) {
  {
    std::lock_guard<TimedMutex> lock(buffer_->mutex);
    const bool recording = buffer_->recording;
    if (!recording || takes(gradient)) {
      std::optional<std::string> reason = kNotRecorded;
      if (recording) {
        const bool accumulated = attempt([&] { accumulate(gradient, mask.get()); });
        reason = accumulated ? std::nullopt : std::optional<std::string>(kDisabled);
      }
      count_gradient(first, reason, recording && is_whole(gradient, mask.get()));
      return;
    }
  }
  const at::Tensor masked_by = mask == nullptr ? at::Tensor() : mask->tensor();
  call_owner(owner_, "receive", [&](const py::object& call) {
    call(to_python(gradient), first, to_python(masked_by));
  });
}

void Site::fail(const std::exception& error) {
  call_owner(owner_, "disable", [&](const py::object& method) {
    method(py::handle(PyExc_RuntimeError)(error.what()));
  });
}

}  // namespace hookstats::hooks
