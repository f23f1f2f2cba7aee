// The occupancy bitmap: which slots of a histogram were counted in, so that readers need not look
// at all slots.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hookstats {

// A row of the bitmap, int64: the number of tensors that marking writers counted, then one bit for
// every kOccupancySlots slots. If more tensors were accumulated into a histogram, it has counts
// without a mark: so a writer that does not mark announces its accumulation before it accumulates.
constexpr int64_t kOccupancySlots = 16;  // as many as kernels add at once, two cache lines
constexpr int64_t kWordSlots = 64 * kOccupancySlots;

constexpr int64_t mark_columns(int64_t slots) { return 1 + (slots + kWordSlots - 1) / kWordSlots; }

// Calls f(begin, end) on the slots of each bit; bits past the last slot are ignored. Always
// inlined: GCC drops calls of functions that do nothing but prefetch.
template <class F>
inline __attribute__((always_inline)) void each_marked(const int64_t* occupancy, int64_t width,
                                                       F&& f) {
  const int64_t* bits = occupancy + 1;
  for (int64_t begin = 0; begin < width; begin += kWordSlots) {
    auto word = static_cast<uint64_t>(*bits++);
    for (; word != 0; word &= word - 1) {
      const int64_t slot = begin + std::countr_zero(word) * kOccupancySlots;
      if (slot >= width) break;
      f(slot, std::min(slot + kOccupancySlots, width));
    }
  }
}

}  // namespace hookstats
