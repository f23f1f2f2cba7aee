// The CUDA backend of update_ and update_many_.
//
// All work goes to the current stream. Nothing waits for the device or reads its memory: the
// kernels get a pointer to the edges of linear bins.
#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/util/Exception.h>

#include <map>
#include <mutex>

#include "cuda/update.h"
#include "ops/arguments.h"
#include "ops/kernels.h"
#include "ops/update.h"
#include "ops/workspace_cuda.h"

namespace hookstats {

namespace {

using torch::stable::Tensor;

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
  cuda::Leased leased(index, stream, bytes);
  if (count == 1) {
    cuda::update(device, *params, leased.workspace(), stream);
  } else {
    cuda::update_many(device, params, count, leased.workspace(), stream);
  }
  leased.launched();
}

bool is_capturing(int32_t device) { return cuda::is_capturing(current_stream(device)); }

struct CudaBackend {
  static Place place(const Tensor& x) {
    STD_TORCH_CHECK(x.is_cuda(),
                    "the first tensor is not on CUDA, as its state is; expected both "
                    "on one device");
    return {torch::headeronly::DeviceType::CUDA, "cuda", x.get_device_index()};
  }

  static Bins linear(const Tensor& edges, Histogram) {
    return described_bins(edges.size(0) - 1, static_cast<const float*>(edges.const_data_ptr()));
  }

  static void divide(UpdateParams& params, const Tensor& scale) {
    params.device_scale = static_cast<const float*>(scale.const_data_ptr());
  }

  static KeptRows keep(const Tensor&) {
    STD_TORCH_CHECK(false, "mask was given; expected none, as the kernels of cuda read every row");
    return {};
  }

  static constexpr Kernels kernels{launch, is_capturing};
};

int64_t cuda_entry(int64_t params_size) { return entry(CudaBackend::kernels, params_size); }

void close_streams(int64_t device) {
  const auto index = static_cast<int32_t>(device);
  const torch::stable::accelerator::DeviceGuard guard(index);
  cuda::streams_of(index).close(current_stream(index));
}

void wait_for_streams(int64_t device) {
  const auto index = static_cast<int32_t>(device);
  const torch::stable::accelerator::DeviceGuard guard(index);
  cuda::streams_of(index).wait(current_stream(index));
}

void ignore_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
  STD_TORCH_CHECK(error == cudaSuccess,
                  "cudaThreadExchangeStreamCaptureMode: ", cudaGetErrorString(error));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CUDA, m) {
  m.impl("update_", TORCH_BOX(&update<CudaBackend>));
  m.impl("update_many_", TORCH_BOX(&update_many<CudaBackend>));
}

STABLE_TORCH_LIBRARY_IMPL(hookstats, CompositeExplicitAutograd, m) {
  m.impl("cuda_entry", TORCH_BOX(&cuda_entry));
  m.impl("cuda_close", TORCH_BOX(&close_streams));
  m.impl("cuda_wait", TORCH_BOX(&wait_for_streams));
  m.impl("ignore_captures", TORCH_BOX(&ignore_captures));
}

}  // namespace hookstats
