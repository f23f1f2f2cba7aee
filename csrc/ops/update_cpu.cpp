// hookstats::update_ and update_many_ on the CPU: check the arguments, fill the parameters, call
// the kernel.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
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

// An argument as errors name it: "moments", or "moments[3]" where it is one of a list.
struct Name {
  const char* argument;
  int64_t index = -1;
};

std::ostream& operator<<(std::ostream& out, const Name& name) {
  out << name.argument;
  return name.index < 0 ? out : out << '[' << name.index << ']';
}

// `rows` < 0: a tensor of one dimension, [columns].
void check_state(const Tensor& t, const Name& name, ScalarType dtype, int64_t rows,
                 int64_t columns) {
  const bool shaped = rows < 0 ? t.dim() == 1 && t.size(0) == columns
                               : t.dim() == 2 && t.size(0) == rows && t.size(1) == columns;
  STD_TORCH_CHECK(t.is_cpu() && t.scalar_type() == dtype && t.is_contiguous() && shaped, name,
                  " is ", t.scalar_type(), " ", shape_of(t),
                  "; expected a contiguous CPU tensor of ", dtype, " [",
                  rows < 0 ? "" : std::to_string(rows) + ", ", columns, "]");
}

// `edges` is where the kernel's own copy of linear edges is kept.
Bins read_bins(const std::optional<Tensor>& bins, const char* name, std::vector<float>& edges) {
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

// One tensor and the state it goes to; null where there is no histogram.
struct Fold {
  const Tensor& x;
  const Tensor& moments;
  const Tensor& tallies;
  const Tensor* counts;
  const Tensor* channel_counts;
};

// Checks one fold. `index` is its place in the lists, or -1.
UpdateParams check(const Fold& fold, std::optional<int64_t> channel_dim, const Bins& bins,
                   const Bins& channel_bins, int64_t index) {
  const Tensor& x = fold.x;
  const Name name{index < 0 ? "x" : "xs", index};
  STD_TORCH_CHECK(x.is_cpu(), name, " is not on the CPU, the device of the first tensor");
  const int64_t dims = x.dim();
  int64_t dim = -1;
  if (channel_dim.has_value()) {
    STD_TORCH_CHECK(-dims <= *channel_dim && *channel_dim < dims, "channel_dim is ", *channel_dim,
                    "; expected -", dims, " <= channel_dim < ", dims, " for ", name, " of shape ",
                    shape_of(x));
    dim = *channel_dim < 0 ? *channel_dim + dims : *channel_dim;
  }
  UpdateParams params{};
  const std::optional<DType> dtype = dtype_of(x.scalar_type());
  STD_TORCH_CHECK(dtype.has_value(), name, " has dtype ", x.scalar_type(),
                  "; expected a real floating point, integer or bool dtype");
  params.dtype = *dtype;
  params.view = channel_view(x.sizes().data(), x.strides().data(), static_cast<int>(dims),
                             static_cast<int>(dim));
  const int64_t channels = params.view.channels;
  check_state(fold.moments, {"moments", index}, ScalarType::Double, channels, kMomentColumns);
  check_state(fold.tallies, {"tallies", index}, ScalarType::Long, channels, kTallyColumns);
  params.tensor_bins = bins;
  params.channel_bins = channel_bins;
  if (fold.counts != nullptr) {
    check_state(*fold.counts, {"counts", index}, ScalarType::Long, -1, bins.slots());
    params.tensor_counts = static_cast<int64_t*>(fold.counts->mutable_data_ptr());
  }
  if (fold.channel_counts != nullptr) {
    check_state(*fold.channel_counts, {"channel_counts", index}, ScalarType::Long, channels,
                channel_bins.slots());
    params.channel_counts = static_cast<int64_t*>(fold.channel_counts->mutable_data_ptr());
  }
  params.data = x.const_data_ptr();
  STD_TORCH_CHECK(params.data != nullptr || params.view.numel() == 0, Name{"x", index},
                  " has shape ", shape_of(x), " and no memory; expected one that is not freed");
  params.moments = static_cast<double*>(fold.moments.mutable_data_ptr());
  params.tallies = static_cast<int64_t*>(fold.tallies.mutable_data_ptr());
  return params;
}

void parallel_for(int64_t tasks, void (*body)(int64_t, int64_t, void*), void* context) {
  torch::stable::parallel_for(0, tasks, 1,
                              [=](int64_t begin, int64_t end) { body(begin, end, context); });
}

void update_cpu(const Tensor& x, std::optional<int64_t> channel_dim, Tensor moments, Tensor tallies,
                std::optional<Tensor> counts, std::optional<Tensor> bins,
                std::optional<Tensor> channel_counts, std::optional<Tensor> channel_bins) {
  STD_TORCH_CHECK(counts.has_value() == bins.has_value() &&
                      channel_counts.has_value() == channel_bins.has_value(),
                  counts.has_value() == bins.has_value() ? "channel_bins" : "bins",
                  " and its counts were not given together; expected both or neither");
  cpu::Scratch& scratch = cpu::thread_scratch();
  const Fold fold{x, moments, tallies, counts ? &*counts : nullptr,
                  channel_counts ? &*channel_counts : nullptr};
  cpu::update(check(fold, channel_dim, read_bins(bins, "bins", scratch.tensor_edges),
                    read_bins(channel_bins, "channel_bins", scratch.channel_edges), -1),
              parallel_for);
}

void check_length(const std::vector<Tensor>& tensors, const char* name, size_t expected) {
  STD_TORCH_CHECK(tensors.size() == expected, name, " has ", tensors.size(), " tensors; expected ",
                  expected, ", one a tensor of xs where there is something to fill");
}

// Threads fill states side by side, so no two may share memory.
void check_apart(const std::vector<Tensor>& tensors, const char* name) {
  struct Range {
    const char* begin;
    const char* end;
    size_t index;
  };
  std::vector<Range> ranges;
  ranges.reserve(tensors.size());
  for (const Tensor& t : tensors) {
    const char* begin = static_cast<const char*>(t.const_data_ptr());
    ranges.push_back({begin, begin + t.numel() * t.element_size(), ranges.size()});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    STD_TORCH_CHECK(ranges[i - 1].end <= ranges[i].begin, name, "[",
                    std::min(ranges[i - 1].index, ranges[i].index), "] and ", name, "[",
                    std::max(ranges[i - 1].index, ranges[i].index),
                    "] share memory; expected a state of its own for every tensor of xs");
  }
}

float read_scale(const std::optional<Tensor>& scale) {
  if (!scale.has_value()) return 1.0f;
  STD_TORCH_CHECK(scale->is_cpu() && scale->scalar_type() == ScalarType::Float && scale->dim() == 0,
                  "scale is ", scale->scalar_type(), " ", shape_of(*scale),
                  "; expected a CPU tensor of ", ScalarType::Float, " []");
  return *static_cast<const float*>(scale->const_data_ptr());
}

void update_many_cpu(std::vector<Tensor> xs, std::optional<int64_t> channel_dim,
                     std::vector<Tensor> moments, std::vector<Tensor> tallies,
                     std::vector<Tensor> counts, std::optional<Tensor> bins,
                     std::vector<Tensor> channel_counts, std::optional<Tensor> channel_bins,
                     std::optional<Tensor> scale) {
  check_length(moments, "moments", xs.size());
  check_length(tallies, "tallies", xs.size());
  check_length(counts, "counts", bins.has_value() ? xs.size() : 0);
  check_length(channel_counts, "channel_counts", channel_bins.has_value() ? xs.size() : 0);
  cpu::Scratch& scratch = cpu::thread_scratch();
  const Bins read = read_bins(bins, "bins", scratch.tensor_edges);
  const Bins channel_read = read_bins(channel_bins, "channel_bins", scratch.channel_edges);
  const float divisor = read_scale(scale);
  std::vector<UpdateParams> params;
  params.reserve(xs.size());
  for (size_t i = 0; i < xs.size(); ++i) {
    const Fold fold{xs[i], moments[i], tallies[i], bins ? &counts[i] : nullptr,
                    channel_bins ? &channel_counts[i] : nullptr};
    params.push_back(check(fold, channel_dim, read, channel_read, static_cast<int64_t>(i)));
    params.back().scale = divisor;
  }
  check_apart(moments, "moments");
  check_apart(tallies, "tallies");
  check_apart(counts, "counts");
  check_apart(channel_counts, "channel_counts");
  cpu::update_many(params.data(), static_cast<int64_t>(params.size()), parallel_for);
}

// For the C++ hooks, a library of their own that was built with this one.
void update_params(const UpdateParams& params) { cpu::update(params, parallel_for); }

int64_t cpu_entry(int64_t params_size) {
  STD_TORCH_CHECK(params_size == int64_t{sizeof(UpdateParams)}, "params_size is ", params_size,
                  "; expected ", sizeof(UpdateParams), ", that of the same build");
  return reinterpret_cast<int64_t>(&update_params);
}

std::string cpu_capability() { return cpu::capability(); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) {
  m.impl("update_", TORCH_BOX(&update_cpu));
  m.impl("update_many_", TORCH_BOX(&update_many_cpu));
}

STABLE_TORCH_LIBRARY_IMPL(hookstats, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&cpu_capability));
  m.impl("cpu_entry", TORCH_BOX(&cpu_entry));
}

}  // namespace hookstats
