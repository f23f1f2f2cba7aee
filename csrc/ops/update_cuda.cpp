// hookstats::update_ and update_many_ on CUDA: check the arguments, fill the parameters, launch.
//
// All is asked of the current stream. Nothing waits for the device, and what is in its memory is
// not looked at: linear bins are described to the kernels by the edges that are given.
#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/update.h"
#include "ops/arguments.h"
#include "ops/kernels.h"
#include "ops/workspace_cuda.h"

namespace hookstats {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Bins read_bins(const std::optional<Tensor>& bins, const char* name, const Place& place) {
  if (!bins.has_value()) return {};
  check_bins(*bins, name, place);
  if (bins->scalar_type() != ScalarType::Float) return read_log_bins(*bins, name);
  return described_bins(bins->size(0) - 1, static_cast<const float*>(bins->const_data_ptr()));
}

cuda::Stream current_stream(int32_t device) {
  cuda::Stream stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return stream;
}

const cuda::Device& device_at(int32_t index) {
  static std::mutex mutex;
  static std::map<int32_t, cuda::Device> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = devices.find(index);
  return found != devices.end() ? found->second
                                : devices.emplace(index, cuda::device(index)).first->second;
}

void launch(const UpdateParams* params, int64_t count, int32_t index) {
  const torch::stable::accelerator::DeviceGuard guard(index);
  const cuda::Stream stream = current_stream(index);
  const cuda::Device& device = device_at(index);
  const size_t bytes = count == 1 ? cuda::workspace_bytes(device, *params)
                                  : cuda::workspace_bytes_many(device, params, count);
  cuda::with_workspace(index, stream, bytes, [&](cuda::Workspace workspace) {
    if (count == 1) {
      cuda::update(device, *params, workspace, stream);
    } else {
      cuda::update_many(device, params, count, workspace, stream);
    }
  });
}

void update_cuda(const Tensor& x, std::optional<int64_t> channel_dim, Tensor moments,
                 Tensor tallies, std::optional<Tensor> counts, std::optional<Tensor> bins,
                 std::optional<Tensor> channel_counts, std::optional<Tensor> channel_bins) {
  check_pairs(counts.has_value(), bins.has_value(), channel_counts.has_value(),
              channel_bins.has_value());
  STD_TORCH_CHECK(x.is_cuda(), "x is not on CUDA, as its state is; expected both on one device");
  const Place place{x.get_device_index()};
  const Fold fold{x, moments, tallies, counts ? &*counts : nullptr,
                  channel_counts ? &*channel_counts : nullptr};
  const UpdateParams params = check(fold, place, channel_dim, read_bins(bins, "bins", place),
                                    read_bins(channel_bins, "channel_bins", place));
  launch(&params, 1, place.cuda);
}

void update_many_cuda(std::vector<Tensor> xs, std::optional<int64_t> channel_dim,
                      std::vector<Tensor> moments, std::vector<Tensor> tallies,
                      std::vector<Tensor> counts, std::optional<Tensor> bins,
                      std::vector<Tensor> channel_counts, std::optional<Tensor> channel_bins,
                      std::optional<Tensor> scale) {
  const Folds folds{xs, moments, tallies, counts, channel_counts};
  check_lengths(folds, bins.has_value(), channel_bins.has_value());
  if (xs.empty()) return;
  STD_TORCH_CHECK(xs[0].is_cuda(), "xs[0] is not on CUDA, as others are; expected one device");
  const Place place{xs[0].get_device_index()};
  const float* divisor = nullptr;
  if (scale.has_value()) {
    check_scale(*scale, place);
    divisor = static_cast<const float*>(scale->const_data_ptr());
  }
  std::vector<UpdateParams> params =
      check(folds, place, channel_dim, read_bins(bins, "bins", place),
            read_bins(channel_bins, "channel_bins", place));
  for (UpdateParams& each : params) each.device_scale = divisor;
  launch(params.data(), static_cast<int64_t>(params.size()), place.cuda);
}

bool is_capturing(int32_t device) { return cuda::is_capturing(current_stream(device)); }

int64_t cuda_entry(int64_t params_size) {
  static constexpr Kernels kernels{launch, is_capturing};
  return entry(kernels, params_size);
}

void ignore_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
  STD_TORCH_CHECK(error == cudaSuccess,
                  "cudaThreadExchangeStreamCaptureMode: ", cudaGetErrorString(error));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CUDA, m) {
  m.impl("update_", TORCH_BOX(&update_cuda));
  m.impl("update_many_", TORCH_BOX(&update_many_cuda));
}

STABLE_TORCH_LIBRARY_IMPL(hookstats, CompositeExplicitAutograd, m) {
  m.impl("cuda_entry", TORCH_BOX(&cuda_entry));
  m.impl("ignore_captures", TORCH_BOX(&ignore_captures));
}

}  // namespace hookstats
