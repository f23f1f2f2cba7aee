// hookstats::update_ on the CPU: check the arguments, fill the parameters, call the kernel.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <string>
#include <vector>

#include "cpu/kernel.h"
#include "cpu/update.h"
#include "ops/scalar_type.h"

namespace hookstats {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

std::string shape_of(const Tensor& t) {
  std::string shape = "[";
  for (int64_t d = 0; d < t.dim(); ++d) {
    shape += (d == 0 ? "" : ", ") + std::to_string(t.size(d));
  }
  return shape + "]";
}

// `rows` < 0: a tensor of one dimension, [columns].
void check_state(const Tensor& t, const char* name, ScalarType dtype, int64_t rows,
                 int64_t columns) {
  const bool shaped = rows < 0 ? t.dim() == 1 && t.size(0) == columns
                               : t.dim() == 2 && t.size(0) == rows && t.size(1) == columns;
  STD_TORCH_CHECK(t.is_cpu() && t.scalar_type() == dtype && t.is_contiguous() && shaped, name,
                  " is ", t.scalar_type(), " ", shape_of(t),
                  "; expected a contiguous CPU tensor of ", dtype, " [",
                  rows < 0 ? "" : std::to_string(rows) + ", ", columns, "]");
}

// `edges` is where the kernel's own copy of linear edges is kept.
Bins read_bins(const std::optional<Tensor>& counts, const std::optional<Tensor>& bins,
               const char* name, std::vector<float>& edges) {
  STD_TORCH_CHECK(counts.has_value() == bins.has_value(), name,
                  " and its counts were not given together; expected both or neither");
  if (!bins.has_value()) return {};
  const Tensor& t = *bins;
  STD_TORCH_CHECK(t.is_cpu() && t.dim() == 1 && t.is_contiguous(), name,
                  " is not a contiguous CPU tensor of one dimension, but has shape ", shape_of(t));
  if (t.scalar_type() == ScalarType::Float) {
    const int64_t size = t.size(0);
    STD_TORCH_CHECK(size >= 2, name, " has ", size, " edges; expected at least 2");
    const float* values = static_cast<const float*>(t.const_data_ptr());
    edges.assign(values, values + size);
    for (int64_t i = 0; i + 1 < size; ++i) {
      STD_TORCH_CHECK(values[i] < values[i + 1] && values[i + 1] - values[i + 1] == 0.0f, name,
                      " has edges ", values[i], ", ", values[i + 1], " at ", i,
                      "; expected finite ascending edges");
    }
    return linear_bins(edges.data(), size - 1);
  }
  STD_TORCH_CHECK(
      t.scalar_type() == ScalarType::Int && t.size(0) == 3, name, " is ", t.scalar_type(), " ",
      shape_of(t),
      "; expected float32 edges, or int32 [3]: subdivision_bits, min_exponent, max_exponent");
  const int32_t* values = static_cast<const int32_t*>(t.const_data_ptr());
  STD_TORCH_CHECK(
      0 <= values[0] && values[0] <= 7 && -127 <= values[1] && values[1] <= values[2] &&
          values[2] <= 127,
      name, " is (", values[0], ", ", values[1], ", ", values[2],
      "); expected subdivision_bits in 0..7 and -127 <= min_exponent <= max_exponent <= 127");
  return log_bins(values[0], values[1], values[2]);
}

void parallel_for(int64_t tasks, void (*body)(int64_t, int64_t, void*), void* context) {
  torch::stable::parallel_for(0, tasks, 1,
                              [=](int64_t begin, int64_t end) { body(begin, end, context); });
}

void update_cpu(const Tensor& x, std::optional<int64_t> channel_dim, Tensor moments, Tensor tallies,
                std::optional<Tensor> counts, std::optional<Tensor> bins,
                std::optional<Tensor> channel_counts, std::optional<Tensor> channel_bins) {
  const int64_t dims = x.dim();
  int64_t dim = -1;
  if (channel_dim.has_value()) {
    STD_TORCH_CHECK(-dims <= *channel_dim && *channel_dim < dims, "channel_dim is ", *channel_dim,
                    "; expected -", dims, " <= channel_dim < ", dims, " for x of shape ",
                    shape_of(x));
    dim = *channel_dim < 0 ? *channel_dim + dims : *channel_dim;
  }
  cpu::UpdateParams params{};
  const std::optional<DType> dtype = dtype_of(x.scalar_type());
  STD_TORCH_CHECK(dtype.has_value(), "x has dtype ", x.scalar_type(),
                  "; expected a real floating point, integer or bool dtype");
  params.dtype = *dtype;
  params.view = channel_view(x.sizes().data(), x.strides().data(), static_cast<int>(dims),
                             static_cast<int>(dim));
  const int64_t channels = params.view.channels;
  check_state(moments, "moments", ScalarType::Double, channels, kMomentColumns);
  check_state(tallies, "tallies", ScalarType::Long, channels, kTallyColumns);
  cpu::Scratch& scratch = cpu::thread_scratch();
  params.tensor_bins = read_bins(counts, bins, "bins", scratch.tensor_edges);
  params.channel_bins =
      read_bins(channel_counts, channel_bins, "channel_bins", scratch.channel_edges);
  if (counts.has_value()) {
    check_state(*counts, "counts", ScalarType::Long, -1, params.tensor_bins.slots());
    params.tensor_counts = static_cast<int64_t*>(counts->mutable_data_ptr());
  }
  if (channel_counts.has_value()) {
    check_state(*channel_counts, "channel_counts", ScalarType::Long, channels,
                params.channel_bins.slots());
    params.channel_counts = static_cast<int64_t*>(channel_counts->mutable_data_ptr());
  }
  params.data = x.const_data_ptr();
  params.moments = static_cast<double*>(moments.mutable_data_ptr());
  params.tallies = static_cast<int64_t*>(tallies.mutable_data_ptr());
  cpu::update(params, parallel_for);
}

// For the C++ hooks, a library of their own that was built with this one.
void update_params(const cpu::UpdateParams& params) { cpu::update(params, parallel_for); }

int64_t cpu_entry(int64_t params_size) {
  STD_TORCH_CHECK(params_size == int64_t{sizeof(cpu::UpdateParams)}, "params_size is ", params_size,
                  "; expected ", sizeof(cpu::UpdateParams), ", that of the same build");
  return reinterpret_cast<int64_t>(&update_params);
}

std::string cpu_capability() { return cpu::capability(); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) { m.impl("update_", TORCH_BOX(&update_cpu)); }

STABLE_TORCH_LIBRARY_IMPL(hookstats, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&cpu_capability));
  m.impl("cpu_entry", TORCH_BOX(&cpu_entry));
}

}  // namespace hookstats
