// Marks: which slots of a histogram were counted in, so that readers need not look at all slots.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hookstats {

// A row of marks, int64: the number of tensors that marking writers counted, then one bit for every
// kMarkSlots slots. If more tensors were folded into a histogram, it has counts without a mark: so
// a writer that does not mark announces its fold before it folds.
constexpr int64_t kMarkSlots = 16;  // as many as kernels add at once, two cache lines
constexpr int64_t kWordSlots = 64 * kMarkSlots;

constexpr int64_t mark_columns(int64_t slots) { return 1 + (slots + kWordSlots - 1) / kWordSlots; }

// Calls f(begin, end) on the slots of each mark; marks past the last slot are ignored. Always
// inlined: GCC drops calls of functions that do nothing but prefetch.
template <class F>
inline __attribute__((always_inline)) void each_marked(const int64_t* marks, int64_t width, F&& f) {
  const int64_t* bits = marks + 1;
  for (int64_t begin = 0; begin < width; begin += kWordSlots) {
    auto word = static_cast<uint64_t>(*bits++);
    for (; word != 0; word &= word - 1) {
      const int64_t slot = begin + std::countr_zero(word) * kMarkSlots;
      if (slot >= width) break;
      f(slot, std::min(slot + kMarkSlots, width));
    }
  }
}

}  // namespace hookstats
