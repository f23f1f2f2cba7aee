// Marks: which slots of a histogram were counted in, so that nobody has to look at all of them.
#pragma once

#include <cstdint>

namespace hookstats {

// A row of marks, int64: how many tensors' writer marked what it counted, then a bit for every
// kMarkSlots slots. A histogram that more tensors were folded into has counts that no bit tells of.
constexpr int64_t kMarkSlots = 16;  // as many as kernels add at once, two cache lines
constexpr int64_t kWordSlots = 64 * kMarkSlots;

constexpr int64_t mark_columns(int64_t slots) { return 1 + (slots + kWordSlots - 1) / kWordSlots; }

}  // namespace hookstats
