// Workspaces: kept ones from the driver, those of captured graphs from torch's caching allocator.
#include "ops/workspace_cuda.h"

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>

namespace hookstats::cuda {

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

Leased::Leased(int32_t device, Stream stream)
    : device_(device), stream_(stream), captured_(is_capturing(stream)) {}

Workspace Leased::lend(size_t bytes) {
  if (!captured_) return streams_of(device_).workspace(stream_, bytes);
  Workspace workspace{nullptr, bytes};
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_caching_allocator_raw_alloc(bytes, &workspace.data));
  lent_.push_back(workspace.data);
  const cudaError_t error =
      cudaMemsetAsync(workspace.data, 0, bytes, static_cast<cudaStream_t>(stream_));
  STD_TORCH_CHECK(error == cudaSuccess, "hookstats could not clear a workspace of ", bytes,
                  " bytes: ", cudaGetErrorString(error));
  return workspace;
}

void Leased::launched() {
  if (!captured_) streams_of(device_).launched(stream_);
}

Leased::~Leased() {
  // Nothing is to be done where that fails.
  for (void* const data : lent_) (void)aoti_torch_cuda_caching_allocator_raw_delete(data);
}

}  // namespace hookstats::cuda
