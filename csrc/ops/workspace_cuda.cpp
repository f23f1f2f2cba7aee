// Workspaces from torch's caching allocator: allocated and freed in the order of their stream.
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

// Zeroed memory of the current stream, which is `stream`.
class Memory {
 public:
  Memory() = default;
  Memory(size_t bytes, Stream stream) : bytes_(bytes) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_caching_allocator_raw_alloc(bytes, &data_));
    const cudaError_t error = cudaMemsetAsync(data_, 0, bytes, static_cast<cudaStream_t>(stream));
    STD_TORCH_CHECK(error == cudaSuccess, "hookstats could not clear its workspace of ", bytes,
                    " bytes: ", cudaGetErrorString(error));
  }
  ~Memory() {
    // Nothing is to be done where that fails.
    if (data_ != nullptr) (void)aoti_torch_cuda_caching_allocator_raw_delete(data_);
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }

  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  Workspace workspace() const { return {data_, bytes_}; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

struct Kept {
  std::mutex mutex;
  std::map<std::pair<int32_t, Stream>, Memory> memory;
};

// Never destroyed: at exit torch's allocator may be gone before this library.
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
    const Memory of_graph(bytes, stream);
    return launch(of_graph.workspace());
  }
  Memory spare;  // outlives the lock: see below
  std::unique_lock<std::mutex> lock(kept().mutex);
  Memory& memory = kept().memory[{device, stream}];
  if (memory.bytes() < bytes) {
    // The allocator may call observers that want the GIL, whose holder may wait for the lock.
    lock.unlock();
    spare = Memory(std::bit_ceil(std::max(bytes, kLeastBytes)), stream);
    lock.lock();
    if (memory.bytes() < spare.bytes()) memory.swap(spare);
  }
  launch(memory.workspace());
}

}  // namespace hookstats::cuda
