// What the host uses of CUDA's runtime to launch kernels; with HOOKSTATS_SIMT the emulator's.
#pragma once

#include "cuda/launch_config.h"

#if defined(HOOKSTATS_SIMT)

#include "simt.h"

namespace hookstats::cuda {

inline DeviceLimits device_limits(int) { return {132, static_cast<int>(simt::shared_limit)}; }

}  // namespace hookstats::cuda

#else

#include <cuda_runtime.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace hookstats::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error) + ", " +
                           cudaGetErrorString(error));
}

inline DeviceLimits device_limits(int index) {
  const auto read = [index](cudaDeviceAttr attribute) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, attribute, index), "cudaDeviceGetAttribute");
    return value;
  };
  return {read(cudaDevAttrMultiProcessorCount), read(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

// Lets a kernel use as much shared memory as the device has. The attribute is the kernel's, not the
// launch's: were it what a launch needs, another thread could lower it before the launch.
inline void allow_most_shared(const void* kernel, const LaunchConfig& config) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int> > allowed;
  const std::lock_guard<std::mutex> lock(mutex);
  if (allowed.count({kernel, config.device}) != 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(config.most_shared_bytes)),
        "cudaFuncSetAttribute of a kernel's shared memory");
  allowed.emplace(kernel, config.device);
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& config, Arguments&&... arguments) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  if (config.shared_bytes > kWithoutAsking) {
    allow_most_shared(reinterpret_cast<const void*>(kernel), config);
  }
  cudaLaunchConfig_t launch_config{};
  launch_config.gridDim = dim3(static_cast<unsigned>(config.grid));
  launch_config.blockDim = dim3(static_cast<unsigned>(config.block));
  launch_config.dynamicSmemBytes = config.shared_bytes;
  launch_config.stream = static_cast<cudaStream_t>(config.stream);
  check(cudaLaunchKernelEx(&launch_config, kernel, std::forward<Arguments>(arguments)...),
        "the launch of a kernel");
}

}  // namespace hookstats::cuda

#endif
