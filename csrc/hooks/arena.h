// What all hooks of a watch share: whether to record, into which buffer, and the lock.
#pragma once

#include <Python.h>

#include <atomic>
#include <mutex>

#include "core/update_params.h"

namespace hookstats::hooks {

using Update = void (*)(const UpdateParams&);

// Lock order: nobody waits for `mutex` while holding the GIL. So the GIL may be taken, and Python
// be run, under the mutex, and backward threads need no GIL at all.
struct Arena {
  explicit Arena(Update update_cpu) : update_cpu(update_cpu) {}

  const Update update_cpu;
  std::atomic<bool> recording{false};
  int front = 0;  // the buffer that is being filled; under the mutex
  std::recursive_mutex mutex;
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
