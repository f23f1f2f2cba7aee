// Reads dense counts once, a cache line at a time.
#include "cpu/sparse.h"

#include <cstddef>

namespace hookstats::cpu {

SparseCounts sparse_counts(const int64_t* dense, int64_t rows, int64_t width) {
  constexpr int64_t kLine = 8;
  SparseCounts sparse;
  sparse.offsets.reserve(static_cast<std::size_t>(rows) + 1);
  sparse.offsets.push_back(0);
  const auto take = [&sparse](const int64_t* row, int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      if (row[slot] == 0) continue;
      sparse.slots.push_back(static_cast<int32_t>(slot));
      sparse.counts.push_back(row[slot]);
    }
  };
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t* row = dense + r * width;
    int64_t slot = 0;
    for (; slot + kLine <= width; slot += kLine) {
      int64_t any = 0;
      for (int64_t i = 0; i < kLine; ++i) any |= row[slot + i];
      if (any != 0) take(row, slot, slot + kLine);
    }
    take(row, slot, width);
    sparse.offsets.push_back(static_cast<int64_t>(sparse.slots.size()));
  }
  return sparse;
}

}  // namespace hookstats::cpu
