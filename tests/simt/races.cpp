// A race detector for emulated kernels: finds two accesses to one address, one of them a write and
// not both atomic, that no barrier and no block counter puts in order - whether or not this run's
// order made a difference.
//
// The kernels are compiled with -fsanitize=thread, whose calls at every access end up here in the
// place of ThreadSanitizer's runtime, which knows threads but neither warps nor blocks.
#include <array>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <vector>

#include "simt.h"

extern "C" const char __executable_start;  // the linker's: addr2line wants addresses from there

namespace hookstats::simt {

namespace {

struct Seen {
  uint64_t time = 0;  // 0: never
  int block = 0, thread = 0;
  Progress progress;
  Access access = Access::kRead;
  const void* at = nullptr;
};

// One access is remembered of each kind, and a reader of another warp: of the readers since the
// last barrier, a writer of any warp then still meets one that is not ordered before it.
struct Cell {
  Seen write, read, read_elsewhere;
};

constexpr uintptr_t kGranule = 4;

struct Races {
  uint64_t time = 0, launch = 0;
  std::unordered_map<uintptr_t, Cell> memory;
  // Of this launch: the increments of each block counter.
  std::unordered_map<uintptr_t, std::vector<Seen>> counts;
};
Races races;

bool same_warp(const Seen& a, const Seen& b) { return a.thread / kLanes == b.thread / kLanes; }

// Does `a` come before the later `b` of the same block in every order?
bool ordered_in_block(const Seen& a, const Seen& b) {
  return a.thread == b.thread || a.progress.block < b.progress.block ||
         (same_warp(a, b) && a.progress.warp < b.progress.warp);
}

// Was the block of `a` counted after `a`, and the block of `b` later by the same counter and before
// `b`?
bool ordered_by_counter(const Seen& a, const Seen& b) {
  for (const auto& [address, counts] : races.counts) {
    bool released = false;
    for (const Seen& count : counts) {
      if (count.block == a.block && count.time >= a.time && ordered_in_block(a, count)) {
        released = true;
      }
      if (released && count.block == b.block && ordered_in_block(count, b)) return true;
    }
  }
  return false;
}

bool race(const Seen& before, const Seen& now) {
  if (before.time == 0) return false;
  if (before.access >= Access::kAtomic && now.access >= Access::kAtomic) return false;
  if (before.block == now.block) return !ordered_in_block(before, now);
  return !ordered_by_counter(before, now);
}

std::string text(const Seen& seen) {
  const char* const what[] = {"read", "write", "atomic addition", "block count"};
  char line[120];
  const auto at = reinterpret_cast<uintptr_t>(seen.at);
  std::snprintf(line, sizeof line, "%s by thread %d of block %d",
                what[static_cast<int>(seen.access)], seen.thread, seen.block);
  std::string said = line;
  if (seen.at != nullptr) {
    std::snprintf(line, sizeof line, " (addr2line 0x%zx)",
                  static_cast<size_t>(at - reinterpret_cast<uintptr_t>(&__executable_start)) - 1);
    said += line;
  }
  return said;
}

void see(uintptr_t granule, const Seen& now, bool shared) {
  // Each block has its shared memory.
  const uintptr_t key = shared ? granule + (static_cast<uintptr_t>(now.block + 1) << 48) : granule;
  Cell& cell = races.memory[key];
  const bool writes = now.access != Access::kRead;
  for (const Seen* before : {&cell.write, &cell.read, &cell.read_elsewhere}) {
    if ((writes || before == &cell.write) && race(*before, now)) {
      report(std::string("a race in ") + (shared ? "shared" : "global") +
             " memory: " + text(*before) + ", " + text(now));
    }
  }
  if (writes) {
    cell.write = now;
  } else if (cell.read.time == 0 || (cell.read.block == now.block && same_warp(cell.read, now))) {
    cell.read = now;
  } else {
    cell.read_elsewhere = now;
  }
}

void observe(const void* address, size_t bytes, Access access, const void* at) {
  if (cost != nullptr && is_local(address)) account(address, bytes, Unit::kLocal);
  if (observer == nullptr || running.progress == nullptr || is_private(address)) return;
  Races& r = races;
  if (r.launch != running.launch) {  // launches of a stream are in order
    r.launch = running.launch;
    r.memory.clear();
    r.counts.clear();
  }
  const Seen now{++r.time, running.block, running.thread, *running.progress, access, at};
  const uintptr_t first = reinterpret_cast<uintptr_t>(address);
  if (access == Access::kBlockCount) r.counts[first].push_back(now);
  const bool shared = is_shared(address, bytes);
  for (uintptr_t granule = first / kGranule; granule * kGranule < first + bytes; ++granule) {
    see(granule, now, shared);
  }
}

}  // namespace

}  // namespace hookstats::simt

using hookstats::simt::Access;

// What g++ calls under -fsanitize=thread.
#define HOOKSTATS_ACCESS(name, bytes, access)                                      \
  extern "C" void name(void* address) {                                            \
    hookstats::simt::observe(address, bytes, access, __builtin_return_address(0)); \
  }
#define HOOKSTATS_ACCESSES(bytes)                                      \
  HOOKSTATS_ACCESS(__tsan_read##bytes, bytes, Access::kRead)           \
  HOOKSTATS_ACCESS(__tsan_write##bytes, bytes, Access::kWrite)         \
  HOOKSTATS_ACCESS(__tsan_unaligned_read##bytes, bytes, Access::kRead) \
  HOOKSTATS_ACCESS(__tsan_unaligned_write##bytes, bytes, Access::kWrite)

HOOKSTATS_ACCESSES(1)
HOOKSTATS_ACCESSES(2)
HOOKSTATS_ACCESSES(4)
HOOKSTATS_ACCESSES(8)
HOOKSTATS_ACCESSES(16)

extern "C" {
void __tsan_read_range(void* address, size_t bytes) {
  hookstats::simt::observe(address, bytes, Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  hookstats::simt::observe(address, bytes, Access::kWrite, __builtin_return_address(0));
}
void __tsan_init() { hookstats::simt::observer = hookstats::simt::observe; }
void __sanitizer_cov_trace_pc() {
  hookstats::simt::stop_at_block(__builtin_return_address(0), __builtin_frame_address(0));
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
