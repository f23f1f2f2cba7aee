// Kernels run by threads of the tests' own, or by none.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

namespace cases {

template <int kThreads>
void threads(int64_t tasks, void (*body)(int64_t, int64_t, void*), void* context) {
  std::vector<std::thread> pool;
  for (int64_t t = 0; t < kThreads; ++t) {
    const int64_t begin = tasks * t / kThreads, end = tasks * (t + 1) / kThreads;
    if (begin < end) pool.emplace_back(body, begin, end, context);
  }
  for (std::thread& thread : pool) thread.join();
}

inline void serial(int64_t tasks, void (*body)(int64_t, int64_t, void*), void* context) {
  body(0, tasks, context);
}

}  // namespace cases
