// Workspaces: kept ones from the driver, those of captured graphs from torch's caching allocator.
#include "ops/workspace_cuda.h"

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>

namespace hookstats::cuda {

namespace {

constexpr int32_t kMostDevices = 128;  // torch has fewer

}  // namespace

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) {
    // Of the legacy stream, which must not even be asked while others are captured.
    (void)cudaGetLastError();
    return true;
  }
  return status != cudaStreamCaptureStatusNone;
}

Streams& streams_of(int32_t device) {
  static auto* const streams = new std::array<Streams, kMostDevices>;
  STD_TORCH_CHECK(0 <= device && device < kMostDevices, "device is ", device,
                  "; expected an index below ", kMostDevices);
  return (*streams)[static_cast<size_t>(device)];
}

Leased::Leased(int32_t device, Stream stream, size_t bytes)
    : device_(device), stream_(stream), captured_(is_capturing(stream)) {
  if (bytes == 0) return;
  if (!captured_) {
    workspace_ = streams_of(device).workspace(stream, bytes);
    return;
  }
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_caching_allocator_raw_alloc(bytes, &workspace_.data));
  workspace_.bytes = bytes;
  const cudaError_t error =
      cudaMemsetAsync(workspace_.data, 0, bytes, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return;
  (void)aoti_torch_cuda_caching_allocator_raw_delete(workspace_.data);
  STD_TORCH_CHECK(false, "hookstats could not clear a workspace of ", bytes,
                  " bytes: ", cudaGetErrorString(error));
}

void Leased::launched() {
  if (!captured_) streams_of(device_).launched(stream_);
}

Leased::~Leased() {
  // Nothing is to be done where that fails.
  if (captured_ && workspace_.data != nullptr) {
    (void)aoti_torch_cuda_caching_allocator_raw_delete(workspace_.data);
  }
}

}  // namespace hookstats::cuda
