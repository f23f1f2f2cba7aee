// Marks: which slots of a histogram were counted in, so that nobody has to look at all of them.
#pragma once

#include <cstdint>

namespace hookstats {

// A row of marks, int64: how many tensors were counted by writers that mark, then a bit for every
// kMarkSlots slots. A histogram that more tensors were folded into has counts that no bit tells of:
// so a writer that does not mark says that it folds before it does.
constexpr int64_t kMarkSlots = 16;  // as many as kernels add at once, two cache lines
constexpr int64_t kWordSlots = 64 * kMarkSlots;

constexpr int64_t mark_columns(int64_t slots) { return 1 + (slots + kWordSlots - 1) / kWordSlots; }

}  // namespace hookstats
