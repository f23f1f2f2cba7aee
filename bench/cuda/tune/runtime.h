// What the tuner's programs use of a device: memory, replayed launches and their time, and its
// facts; with HOOKSTATS_SIMT the emulator's, which makes no sense of time but runs the same code.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/launch.h"
#include "cuda/primitives.cuh"

namespace hookstats::tune {

struct Facts {
  std::string name;
  size_t cache_bytes;  // of L2
};

#if defined(HOOKSTATS_SIMT)

inline Facts facts() { return {"emulated", 0}; }
inline double megahertz() { return 0.0; }
inline void set_zero(void* memory, size_t bytes) { std::memset(memory, 0, bytes); }
inline void copy_in(void* memory, const void* from, size_t n) { std::memcpy(memory, from, n); }
inline void copy_out(void* to, const void* memory, size_t n) { std::memcpy(to, memory, n); }
inline void finish() {}
inline cuda::Stream stream() { return nullptr; }

// Memory of the device, zero at first.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes), words_((bytes + 255) / 256 * 32 + 32) {}
  void* data() const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(words_.data());
    return reinterpret_cast<void*>((begin + 255) / 256 * 256);
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::vector<uint64_t> words_;
};

// The launches of `work`, to be made again and again.
template <class Work>
class Replay {
 public:
  explicit Replay(Work work) : work_(std::move(work)) {}
  double seconds() {
    const auto began = std::chrono::steady_clock::now();
    work_();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

 private:
  Work work_;
};
template <class Work>
using Queued = Replay<Work>;

template <class... Parameters>
void launch_dependent(void (*kernel)(Parameters...), const cuda::LaunchConfig& config,
                      Parameters... arguments) {
  cuda::launch(kernel, config, arguments...);
}
inline void await_kernel_before() {}

#else

using cuda::check;

inline cudaStream_t stream() {
  static const cudaStream_t made = [] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }();
  return made;
}
inline void finish() { check(cudaStreamSynchronize(stream()), "the kernels"); }
inline void set_zero(void* memory, size_t bytes) {
  check(cudaMemsetAsync(memory, 0, bytes, stream()), "cudaMemsetAsync");
}
inline void copy_in(void* memory, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(memory, from, bytes, cudaMemcpyHostToDevice, stream()), "a copy");
  finish();
}
inline void copy_out(void* to, const void* memory, size_t bytes) {
  check(cudaMemcpyAsync(to, memory, bytes, cudaMemcpyDeviceToHost, stream()), "a copy");
  finish();
}

inline Facts facts() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return {properties.name, static_cast<size_t>(properties.l2CacheSize)};
}

// Clocks of a multiprocessor, and nanoseconds, of a while.
__global__ void wait_a_while(int64_t* passed) {
  uint64_t began = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  const int64_t clock = clock64();
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - began < 50'000);
  passed[0] = clock64() - clock;
  passed[1] = static_cast<int64_t>(now - began);
}

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    data_.reset(memory);
    set_zero(memory, bytes);
    finish();
  }
  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  size_t bytes_;
  std::unique_ptr<void, Free> data_;
};

// Has the device wait, and returns where it says how long.
inline const void* launch_wait() {
  static const Memory passed(2 * sizeof(int64_t));
  cuda::launch(wait_a_while, {1, 1, 0, stream(), 0, 0}, static_cast<int64_t*>(passed.data()));
  return passed.data();
}

// The clock right now, as a kernel finds it.
inline double megahertz() {
  int64_t found[2];
  copy_out(found, launch_wait(), sizeof found);
  return 1e3 * static_cast<double>(found[0]) / static_cast<double>(found[1]);
}

// Launches a kernel whose blocks may begin as soon as those of the kernel before have ended; what
// these wrote is there after await_kernel_before().
template <class... Parameters>
void launch_dependent(void (*kernel)(Parameters...), const cuda::LaunchConfig& config,
                      Parameters... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t dependent{};
  dependent.gridDim = dim3(static_cast<unsigned>(config.grid));
  dependent.blockDim = dim3(static_cast<unsigned>(config.block));
  dependent.dynamicSmemBytes = config.shared_bytes;
  dependent.stream = static_cast<cudaStream_t>(config.stream);
  dependent.attrs = &attribute;
  dependent.numAttrs = 1;
  check(cudaLaunchKernelEx(&dependent, kernel, arguments...), "a dependent launch");
}

// Older devices have no dependent launches, and nothing to wait for.
__device__ inline void await_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The device's time from one place of the stream to another.
class Stopwatch {
 public:
  Stopwatch() {
    check(cudaEventCreate(&began_), "cudaEventCreate");
    check(cudaEventCreate(&ended_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(began_);
    cudaEventDestroy(ended_);
  }
  template <class Work>
  double seconds(Work& work) {
    check(cudaEventRecord(began_, stream()), "cudaEventRecord");
    work();
    check(cudaEventRecord(ended_, stream()), "cudaEventRecord");
    finish();
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, began_, ended_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t began_ = nullptr, ended_ = nullptr;
};

// As a training launches; the device has something else to do until the host is ahead.
template <class Work>
class Queued {
 public:
  explicit Queued(Work work) : work_(std::move(work)) {}
  double seconds() {
    launch_wait();
    return stopwatch_.seconds(work_);
  }

 private:
  Work work_;
  Stopwatch stopwatch_;
};

// As a graph, so that the host's time is no part of the launches'.
template <class Work>
class Replay {
 public:
  explicit Replay(Work work) {
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), "a capture");
    work();
    check(cudaStreamEndCapture(stream(), &graph_), "a capture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  double seconds() {
    const auto launch = [this] {
      check(cudaGraphLaunch(executable_, stream()), "cudaGraphLaunch");
    };
    return stopwatch_.seconds(launch);
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  Stopwatch stopwatch_;
};

#endif

// Of the shortest time, the median and the longest of some replays, after one that nobody times; in
// seconds of one of its `launches`.
struct Times {
  double least, median, most;
};

template <template <class> class Timed = Replay, class Work>
Times times(int replays, int launches, Work work) {
  Timed<Work> timed(std::move(work));
  timed.seconds();
  std::vector<double> all;
  for (int i = 0; i < replays; ++i) all.push_back(timed.seconds() / launches);
  std::sort(all.begin(), all.end());
  return {all.front(), all[all.size() / 2], all.back()};
}

}  // namespace hookstats::tune
