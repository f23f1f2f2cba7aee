// A CUDA runtime for tests of the host's part: it runs nothing, keeps what it is told, and refuses
// what a driver would refuse. Only what csrc/cuda's host code calls is here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidResourceHandle = 400
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed = 2 };
constexpr unsigned cudaEventDisableTiming = 2;

using cudaStream_t = struct Stream_*;
using cudaEvent_t = struct Event_*;
inline const auto cudaStreamPerThread = reinterpret_cast<cudaStream_t>(uintptr_t{2});

struct dim3 {
  unsigned x = 1;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace driver {

// What each stream was given, in order: how many kernels, and by event how many were before it.
struct State {
  std::mutex mutex;
  std::map<const void*, size_t> most_shared;
  int set_attributes = 0;
  std::map<cudaStream_t, int> kernels;
  struct Mark {
    cudaStream_t stream;
    int kernels;
  };
  std::vector<Mark> events;
  std::map<cudaStream_t, std::map<cudaStream_t, int>> waits_for;  // the kernels of other streams
  std::set<cudaStream_t> destroyed;
  int device_waits = 0;  // for all streams
  std::vector<std::unique_ptr<char[]>> allocated;
  std::function<void()> before_next;  // what happens before the next launch or event, once
};
inline State state;

inline void submitting() {
  std::function<void()> happens;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    happens.swap(state.before_next);
  }
  if (happens) happens();
}

inline void reset() {
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.set_attributes = 0;
  state.allocated.clear();
  state.kernels.clear();
  state.events.clear();
  state.waits_for.clear();
  state.destroyed.clear();
  state.device_waits = 0;
  state.before_next = nullptr;
}

// What a handle means to the thread that uses it: the per-thread default stream is its own.
inline cudaStream_t meant_by(cudaStream_t stream) {
  static thread_local char own = 0;
  return stream == cudaStreamPerThread ? reinterpret_cast<cudaStream_t>(&own) : stream;
}

// A kernel that somebody else's code launched.
inline void run_kernel(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  ++state.kernels[meant_by(stream)];
}

}  // namespace driver

inline const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaErrorInvalidValue";
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 * 1024 : 9;
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  const std::lock_guard<std::mutex> lock(driver::state.mutex);
  if (value > 227 * 1024) return cudaErrorInvalidValue;
  driver::state.most_shared[kernel] = static_cast<size_t>(value);
  ++driver::state.set_attributes;
  return cudaSuccess;
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&...) {
  driver::submitting();
  const std::lock_guard<std::mutex> lock(driver::state.mutex);
  const auto found = driver::state.most_shared.find(reinterpret_cast<const void*>(kernel));
  const size_t most = found == driver::state.most_shared.end() ? 48 * 1024 : found->second;
  if (config->dynamicSmemBytes > most) return cudaErrorInvalidValue;
  ++driver::state.kernels[driver::meant_by(config->stream)];
  return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(driver::state.mutex);
  // The code under test gives nothing back: this goes with the test.
  driver::state.allocated.push_back(std::make_unique_for_overwrite<char[]>(bytes));
  *data = std::memset(driver::state.allocated.back().get(), 0xa5, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard<std::mutex> lock(driver::state.mutex);
  driver::state.events.push_back({nullptr, 0});
  *event = reinterpret_cast<cudaEvent_t>(driver::state.events.size());
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  driver::submitting();
  const std::lock_guard<std::mutex> lock(driver::state.mutex);
  stream = driver::meant_by(stream);
  if (driver::state.destroyed.count(stream) != 0) return cudaErrorInvalidResourceHandle;
  driver::state.events[reinterpret_cast<uintptr_t>(event) - 1] = {stream,
                                                                  driver::state.kernels[stream]};
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard<std::mutex> lock(driver::state.mutex);
  ++driver::state.device_waits;
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard<std::mutex> lock(driver::state.mutex);
  const auto [of, kernels] = driver::state.events[reinterpret_cast<uintptr_t>(event) - 1];
  int& known = driver::state.waits_for[stream][of];
  if (known < kernels) known = kernels;
  return cudaSuccess;
}
