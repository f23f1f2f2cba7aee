// What all hooks of a watch share: whether to record, into which buffer, by which kernels, and the
// lock.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <atomic>
#include <mutex>

#include "ops/kernels.h"

namespace hookstats::hooks {

// Lock order: nobody waits for `mutex` while holding the GIL. So the GIL may be taken, and Python
// be run, under the mutex, and backward threads need no GIL at all.
struct Arena {
  // `cuda`: null where CUDA tensors are Python's.
  Arena(const Kernels& cpu, const Kernels* cuda) : cpu_(cpu), cuda_(cuda) {}

  // The kernels for a tensor; none where it is Python's, as all that is captured into a graph is.
  const Kernels* kernels(const at::Tensor& x) const {
    if (x.is_cpu()) return &cpu_;
    if (!x.is_cuda() || cuda_ == nullptr || cuda_->is_capturing(x.get_device())) return nullptr;
    return cuda_;
  }

  std::atomic<bool> recording{false};
  int front = 0;  // the buffer that is being filled; under the mutex
  std::recursive_mutex mutex;

 private:
  const Kernels& cpu_;
  const Kernels* const cuda_;
};

// Locks an arena on a thread that holds the GIL.
class LockWithGil {
 public:
  explicit LockWithGil(Arena& arena) : arena_(arena) { lock(arena); }
  ~LockWithGil() { arena_.mutex.unlock(); }
  LockWithGil(const LockWithGil&) = delete;
  LockWithGil& operator=(const LockWithGil&) = delete;

  static void lock(Arena& arena) {
    if (arena.mutex.try_lock()) return;
    PyThreadState* const saved = PyEval_SaveThread();
    arena.mutex.lock();
    PyEval_RestoreThread(saved);
  }

 private:
  Arena& arena_;
};

}  // namespace hookstats::hooks
