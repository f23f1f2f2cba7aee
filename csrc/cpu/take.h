// Takes the states of a closed step out of their rows, and leaves these empty.
#pragma once

#include <cstdint>
#include <vector>

namespace hookstats::cpu {

// Histograms as sparse rows, as most of their counts are zero: row r has the entries
// offsets[r]..offsets[r + 1] of `slots`, which ascend, and `counts`.
struct SparseCounts {
  std::vector<int64_t> offsets{0};
  std::vector<int32_t> slots;
  std::vector<int64_t> counts;
};

// Moves `rows` rows of moments, [rows, kMomentColumns], to `first` and on in every column of
// `columns`, [kMomentColumns, total]; tallies likewise.
void take_moments(double* moments, int64_t rows, double* columns, int64_t first, int64_t total);
void take_tallies(int64_t* tallies, int64_t rows, int64_t* columns, int64_t first, int64_t total);

// Appends the rows of `dense`, [rows, width].
void take_counts(int64_t* dense, int64_t rows, int64_t width, SparseCounts& into);

}  // namespace hookstats::cpu
