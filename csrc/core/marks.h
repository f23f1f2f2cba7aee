// Marks: which slots of a histogram were counted in, so that readers need not look at all slots.
#pragma once

#include <cstdint>

namespace hookstats {

// A row of marks, int64: the number of tensors that marking writers counted, then one bit for every
// kMarkSlots slots. If more tensors were folded into a histogram, it has counts without a mark: so
// a writer that does not mark announces its fold before it folds.
constexpr int64_t kMarkSlots = 16;  // as many as kernels add at once, two cache lines
constexpr int64_t kWordSlots = 64 * kMarkSlots;

constexpr int64_t mark_columns(int64_t slots) { return 1 + (slots + kWordSlots - 1) / kWordSlots; }

}  // namespace hookstats
