// hookstats::update_ and update_many_ on the CPU: check the arguments, fill the parameters, call
// the kernel.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpu/kernel.h"
#include "cpu/update.h"
#include "ops/arguments.h"
#include "ops/kernels.h"

namespace hookstats {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr Place kCpu{};

// `edges` is where the kernel's own copy of linear edges is kept.
Bins read_bins(const std::optional<Tensor>& bins, const char* name, std::vector<float>& edges) {
  if (!bins.has_value()) return {};
  check_bins(*bins, name, kCpu);
  const int64_t size = bins->size(0);
  if (bins->scalar_type() == ScalarType::Float) {
    const float* values = static_cast<const float*>(bins->const_data_ptr());
    edges.assign(values, values + size);
    for (int64_t i = 0; i + 1 < size; ++i) {
      STD_TORCH_CHECK(values[i] < values[i + 1] && values[i + 1] - values[i + 1] == 0.0f, name,
                      " has edges ", values[i], ", ", values[i + 1], " at ", i,
                      "; expected finite ascending edges");
    }
    return linear_bins(edges.data(), size - 1);
  }
  return read_log_bins(*bins, name);
}

void parallel_for(int64_t tasks, void (*body)(int64_t, int64_t, void*), void* context) {
  torch::stable::parallel_for(0, tasks, 1,
                              [=](int64_t begin, int64_t end) { body(begin, end, context); });
}

void update_cpu(const Tensor& x, std::optional<int64_t> channel_dim, Tensor moments, Tensor tallies,
                std::optional<Tensor> counts, std::optional<Tensor> bins,
                std::optional<Tensor> channel_counts, std::optional<Tensor> channel_bins) {
  check_pairs(counts.has_value(), bins.has_value(), channel_counts.has_value(),
              channel_bins.has_value());
  cpu::Scratch& scratch = cpu::thread_scratch();
  const Fold fold{x, moments, tallies, counts ? &*counts : nullptr,
                  channel_counts ? &*channel_counts : nullptr};
  cpu::update(check(fold, kCpu, channel_dim, read_bins(bins, "bins", scratch.tensor_edges),
                    read_bins(channel_bins, "channel_bins", scratch.channel_edges)),
              parallel_for);
}

void update_many_cpu(std::vector<Tensor> xs, std::optional<int64_t> channel_dim,
                     std::vector<Tensor> moments, std::vector<Tensor> tallies,
                     std::vector<Tensor> counts, std::optional<Tensor> bins,
                     std::vector<Tensor> channel_counts, std::optional<Tensor> channel_bins,
                     std::optional<Tensor> scale) {
  const Folds folds{xs, moments, tallies, counts, channel_counts};
  check_lengths(folds, bins.has_value(), channel_bins.has_value());
  cpu::Scratch& scratch = cpu::thread_scratch();
  const Bins read = read_bins(bins, "bins", scratch.tensor_edges);
  const Bins channel_read = read_bins(channel_bins, "channel_bins", scratch.channel_edges);
  float divisor = 1.0f;
  if (scale.has_value()) {
    check_scale(*scale, kCpu);
    divisor = *static_cast<const float*>(scale->const_data_ptr());
  }
  std::vector<UpdateParams> params = check(folds, kCpu, channel_dim, read, channel_read);
  for (UpdateParams& each : params) each.scale = divisor;
  cpu::update_many(params.data(), static_cast<int64_t>(params.size()), parallel_for);
}

// One tensor is shared out among threads, of many each is one thread's.
void update_params(const UpdateParams* params, int64_t count, int32_t) {
  if (count == 1) {
    cpu::update(*params, parallel_for);
  } else {
    cpu::update_many(params, count, parallel_for);
  }
}

int64_t cpu_entry(int64_t params_size) {
  static constexpr Kernels kernels{update_params, nullptr};
  return entry(kernels, params_size);
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
