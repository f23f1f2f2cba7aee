// Where a fiber goes on: its stack and registers, and the switch from one to another.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace hookstats::simt {

// Sanitized frames are several times larger; pages that are never touched cost nothing.
constexpr size_t kStackBytes = 128 * 1024;

// Fresh memory of whole pages, which is never given back.
char* map_pages(size_t bytes);

struct Context {
  // `main`, which never returns, begins at the first swap to here; `stack` is its lowest address.
  void prepare(char* stack, void (*main)());
  static void swap(Context& from, Context& to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace hookstats::simt
