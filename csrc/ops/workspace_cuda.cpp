// Workspaces: kept ones from the driver, those of captured graphs from torch's caching allocator.
#include "ops/workspace_cuda.h"

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

namespace hookstats::cuda {

namespace {

// Of a stream's workspace: most grow no more, for the price of one page of the driver's.
constexpr size_t kLeastBytes = size_t{2} << 20;

void check(cudaError_t error, const char* what, size_t bytes) {
  STD_TORCH_CHECK(error == cudaSuccess, "hookstats could not ", what, " a workspace of ", bytes,
                  " bytes: ", cudaGetErrorString(error));
}

void clear(void* data, size_t bytes, Stream stream) {
  check(cudaMemsetAsync(data, 0, bytes, static_cast<cudaStream_t>(stream)), "clear", bytes);
}

// Memory of the graph that is captured on the current stream, which is `stream`.
class OfGraph {
 public:
  OfGraph(size_t bytes, Stream stream) : bytes_(bytes) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_caching_allocator_raw_alloc(bytes, &data_));
    clear(data_, bytes, stream);
  }
  ~OfGraph() {
    // Nothing is to be done where that fails.
    if (data_ != nullptr) (void)aoti_torch_cuda_caching_allocator_raw_delete(data_);
  }
  OfGraph(const OfGraph&) = delete;
  OfGraph& operator=(const OfGraph&) = delete;

  Workspace workspace() const { return {data_, bytes_}; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Zeroed memory that is kept, and not torch's: graphs are warmed up on memory that has to come
// back. Never freed, which would wait for the device: what grows is doubled, so little is lost.
Workspace keep(size_t bytes, Stream stream) {
  Workspace made{nullptr, bytes};
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // other threads may be capturing
  check(cudaThreadExchangeStreamCaptureMode(&mode), "prepare", bytes);
  const cudaError_t error = cudaMalloc(&made.data, bytes);
  check(cudaThreadExchangeStreamCaptureMode(&mode), "prepare", bytes);  // as it was
  check(error, "allocate", bytes);
  clear(made.data, bytes, stream);
  return made;
}

struct Kept {
  std::mutex mutex;
  std::map<std::pair<int32_t, Stream>, Workspace> workspaces;
};

// Never destroyed: at exit the driver may be gone before this library.
Kept& kept() {
  static Kept* const kept = new Kept;
  return *kept;
}

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

void with_workspace(int32_t device, Stream stream, size_t bytes,
                    const std::function<void(Workspace)>& launch) {
  if (bytes == 0) return launch({nullptr, 0});
  if (is_capturing(stream)) {
    const OfGraph memory(bytes, stream);
    return launch(memory.workspace());
  }
  const std::lock_guard<std::mutex> lock(kept().mutex);
  Workspace& workspace = kept().workspaces[{device, stream}];
  if (workspace.bytes < bytes) {
    workspace = keep(std::bit_ceil(std::max(bytes, kLeastBytes)), stream);
  }
  launch(workspace);
}

}  // namespace hookstats::cuda
