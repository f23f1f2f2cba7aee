// What all hooks of a watch share: whether to record, which buffer to fill, the kernels, and the
// lock.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/DeviceType.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/kept_rows.h"
#include "ops/kernels.h"

namespace hookstats::hooks {

// The kernels by device type; null for types whose tensors the Python hooks accumulate.
using KernelTable = std::array<const Kernels*, c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

// A recursive mutex that adds up how long it was held: what hooks cost the threads of the training.
class TimedMutex {
 public:
  void lock() {
    mutex_.lock();
    begin();
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    begin();
    return true;
  }
  void unlock() {
    if (--depth_ == 0) held_.store(held() + (Clock::now() - since_), std::memory_order_relaxed);
    mutex_.unlock();
  }
  // How often this thread holds the mutex.
  int depth() {
    if (!mutex_.try_lock()) return 0;
    const int depth = depth_;
    mutex_.unlock();
    return depth;
  }
  // The seconds so far, without those since a thread locked it that has not unlocked it yet. Waits
  // for no thread.
  double seconds() const { return std::chrono::duration<double>(held()).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  void begin() {
    if (depth_++ == 0) since_ = Clock::now();
  }
  Clock::duration held() const { return held_.load(std::memory_order_relaxed); }

  std::recursive_mutex mutex_;
  int depth_ = 0;
  Clock::time_point since_;
  std::atomic<Clock::duration> held_{Clock::duration{0}};  // changed by whoever holds the mutex
};

// A mask with the rows that it keeps, found once for all tensors of a call.
class Mask {
 public:
  // `tensor` is bool and contiguous, on any device.
  explicit Mask(at::Tensor tensor) : tensor_(std::move(tensor)) {
    kept_.dims = static_cast<int>(tensor_.dim());
    for (int d = 0; d < kept_.dims; ++d) kept_.sizes[d] = tensor_.size(d);
    if (!tensor_.is_cpu()) {
      kept_.flags = static_cast<const uint8_t*>(tensor_.const_data_ptr());
      kept_.count = kept_.total();
      return;
    }
    memory_.resize(static_cast<size_t>(kept_.total()) + 1);
    kept_.count = keep_rows(tensor_.const_data_ptr<bool>(), tensor_.sizes().data(),
                            tensor_.strides().data(), kept_.dims, memory_.data());
    kept_.rows = memory_.data();
  }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;

  const at::Tensor& tensor() const { return tensor_; }  // as Python has it
  const KeptRows& kept() const { return kept_; }

 private:
  at::Tensor tensor_;
  std::vector<int64_t> memory_;
  KeptRows kept_;
};

// Lock order: no thread waits for `mutex` while it holds the GIL. A thread that has the mutex may
// therefore take the GIL and run Python, and backward threads need no GIL at all.
struct DoubleBuffer {
  explicit DoubleBuffer(const KernelTable& kernels) : kernels_(kernels) {}

  // The kernels for a tensor; null where the Python hook has to look at it, as at any tensor while
  // its device captures a graph.
  const Kernels* kernels(const at::Tensor& x) const {
    const c10::Device device = x.device();
    const Kernels* const found = kernels_[static_cast<size_t>(device.type())];
    return found == nullptr || is_captured(*found, device.index()) ? nullptr : found;
  }

  std::atomic<bool> recording{false};
  // Whether Python is to look at calls of training without gradients, which may be evaluation.
  std::atomic<bool> skips_evaluation{false};
  // Which hooks handle calls now: those of training, 0, or of a phase that was entered.
  std::atomic<int> phase{0};
  int front = 0;  // the buffer to fill; guarded by the mutex
  // Counts the first tensors of sites in steps, in order; guarded by the mutex.
  int64_t clock = 0;

  // Of the calls under way on this thread; null where there is none. Callers hold the mutex.
  std::shared_ptr<const Mask> mask() const {
    if (masks_.empty()) return nullptr;
    const auto found = masks_.find(std::this_thread::get_id());
    return found == masks_.end() ? nullptr : found->second;
  }
  void set_mask(std::shared_ptr<const Mask> mask) {
    if (mask == nullptr) {
      masks_.erase(std::this_thread::get_id());
    } else {
      masks_[std::this_thread::get_id()] = std::move(mask);
    }
  }

  TimedMutex mutex;

 private:
  const KernelTable kernels_;
  std::unordered_map<std::thread::id, std::shared_ptr<const Mask>> masks_;
};

// Locks a double buffer, on a thread that holds the GIL.
class LockWithGil {
 public:
  explicit LockWithGil(DoubleBuffer& buffers) : buffer_(buffers) { lock(buffers); }
  ~LockWithGil() { buffer_.mutex.unlock(); }
  LockWithGil(const LockWithGil&) = delete;
  LockWithGil& operator=(const LockWithGil&) = delete;

  static void lock(DoubleBuffer& buffers) {
    if (buffers.mutex.try_lock()) return;
    PyThreadState* const saved = PyEval_SaveThread();
    buffers.mutex.lock();
    PyEval_RestoreThread(saved);
  }

 private:
  DoubleBuffer& buffer_;
};

}  // namespace hookstats::hooks
