// Histograms as sparse rows: what is kept of their counts, most of which are zero.
#pragma once

#include <cstdint>
#include <vector>

namespace hookstats::cpu {

// Row r has the entries offsets[r]..offsets[r + 1] of `slots`, which ascend, and `counts`.
struct SparseCounts {
  std::vector<int64_t> offsets;
  std::vector<int32_t> slots;
  std::vector<int64_t> counts;
};

// The nonzero entries of `dense`, [rows, width].
SparseCounts sparse_counts(const int64_t* dense, int64_t rows, int64_t width);

}  // namespace hookstats::cpu
