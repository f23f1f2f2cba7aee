// The streams that kernels were launched on: a workspace for each, and what a closed step waits
// for.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/launch.h"
#include "cuda/update.h"

namespace hookstats::cuda {

// One device's, which is the current one in every call. No lock is held while anything is submitted
// to a stream: a stream whose queue is full blocks who submits, and others must get on.
class Streams {
 public:
  // A workspace of `bytes` or more for kernels on `stream`. It is allocated once a stream, is kept,
  // and grows where more is needed; what it grew out of is kept, too, for launches under way.
  Workspace workspace(Stream stream, size_t bytes) {
    const Key key = key_of(stream);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const Workspace& known = entries_[key].workspace;
      if (known.bytes >= bytes) return known;
    }
    const Workspace made = allocate(std::bit_ceil(std::max(bytes, kLeastBytes)), stream);
    const std::lock_guard<std::mutex> lock(mutex_);
    Workspace& known = entries_[key].workspace;
    if (known.bytes < made.bytes) known = made;
    return made;
  }

  // A kernel was launched on `stream`. Most are on the stream that steps are closed on, whose own
  // order is enough; an event follows each of the others.
  void launched(Stream stream) {
    if (stream == home_ && !is_per_thread(stream)) return;
    record(event_of(stream), stream);
  }

  // A step is closed by a thread whose current stream is `stream`; an event there stands for all
  // work of that stream. Where steps were closed on another one, an event follows what it has.
  void close(Stream stream) {
    const Stream before = home_.exchange(stream);
    if (before == stream || is_per_thread(before)) return;
    const cudaEvent_t event = event_of(before);
    if (cudaEventRecord(event, static_cast<cudaStream_t>(before)) != cudaSuccess) {
      // The stream is gone, and its kernels may still run: only the device can be waited for.
      // Training, which closes steps, neither fails nor waits.
      cudaGetLastError();
      const std::lock_guard<std::mutex> lock(mutex_);
      ++lost_homes_;
    }
  }

  // Has `stream` wait for all kernels of streams other than that of the last `close`.
  void wait(Stream stream) {
    std::vector<cudaEvent_t> events;
    unsigned lost = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (lost_homes_ != waited_for_) lost = lost_homes_;
      for (const auto& [key, entry] : entries_) {
        if (entry.event != nullptr) events.push_back(entry.event);
      }
    }
    for (const cudaEvent_t event : events) {
      check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0),
            "cudaStreamWaitEvent of a step that is read");
    }
    if (lost == 0) return;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize for kernels of a stream that is gone");
    const std::lock_guard<std::mutex> lock(mutex_);
    waited_for_ = lost;
  }

 private:
  // Of a stream's workspace: most grow no more, for the price of one page of the driver's.
  static constexpr size_t kLeastBytes = size_t{2} << 20;

  // The handle of per-thread default streams is the same in every thread, and means that of the
  // thread that uses it. So another thread could put no event on such a stream.
  static bool is_per_thread(Stream stream) {
    return stream == static_cast<Stream>(cudaStreamPerThread);
  }

  using Key = std::pair<Stream, std::thread::id>;
  static Key key_of(Stream stream) {
    if (!is_per_thread(stream)) return {stream, {}};
    return {stream, std::this_thread::get_id()};
  }

  struct Entry {
    Workspace workspace{nullptr, 0};
    cudaEvent_t event = nullptr;
  };

  cudaEvent_t event_of(Stream stream) {
    const Key key = key_of(stream);
    const std::lock_guard<std::mutex> lock(mutex_);
    cudaEvent_t& event = entries_[key].event;
    if (event == nullptr) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
    return event;
  }

  static void record(cudaEvent_t event, Stream stream) {
    check(cudaEventRecord(event, static_cast<cudaStream_t>(stream)),
          "cudaEventRecord behind a kernel");
  }

  // Zeroed memory that is never given back: that would wait for the device, and what grows is
  // doubled, so little is lost. Not torch's: graphs are warmed up on memory that has to come back.
  static Workspace allocate(size_t bytes, Stream stream) {
    const std::string text = "a workspace of " + std::to_string(bytes) + " bytes";
    const char* const what = text.c_str();
    Workspace made{nullptr, bytes};
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // other threads may be capturing
    check(cudaThreadExchangeStreamCaptureMode(&mode), what);
    const cudaError_t error = cudaMalloc(&made.data, bytes);
    check(cudaThreadExchangeStreamCaptureMode(&mode), what);  // as it was
    check(error, what);
    check(cudaMemsetAsync(made.data, 0, bytes, static_cast<cudaStream_t>(stream)), what);
    return made;
  }

  std::mutex mutex_;
  std::map<Key, Entry> entries_;
  // That of the last `close`; none where it is a per-thread one.
  std::atomic<Stream> home_{static_cast<Stream>(cudaStreamPerThread)};
  // How many homes were destroyed with kernels that no event follows, and how many of these the
  // device was waited for.
  unsigned lost_homes_ = 0, waited_for_ = 0;
};

}  // namespace hookstats::cuda
