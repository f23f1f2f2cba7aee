// Drains the states of a closed step: moves them out of their rows, and leaves the rows empty.
#pragma once

#include <cstdint>

namespace hookstats::cpu {

// Moves `rows` rows of moments, [rows, kMomentColumns], to `first` and on in every column of
// `columns`, [kMomentColumns, total]; tallies likewise.
void drain_moments(double* moments, int64_t rows, double* columns, int64_t first, int64_t total);
void drain_tallies(int64_t* tallies, int64_t rows, int64_t* columns, int64_t first, int64_t total);

// Histograms, and which of their slots were counted in.
struct Histograms {
  int64_t* counts;     // [rows, width]
  int64_t* occupancy;  // [rows, mark_columns(width)], see core/occupancy.h
  int64_t rows, width;
};

// Completes the occupancy: looks at a whole histogram if not all of its tensors (`accumulated`, by
// row) are marked, or if `accumulated` is null. Returns the most entries that there may be.
int64_t complete_occupancy(const Histograms& histograms, const int64_t* accumulated);

// Histograms as sparse rows, as most of their counts are zero: row r has the entries
// offsets[r]..offsets[r + 1] of `slots`, which ascend, and `counts`.
struct SparseCounts {
  int64_t* offsets;  // the first is set
  int32_t* slots;
  int64_t* counts;
  int64_t rows = 0, entries = 0;
};

// Appends the rows of `histograms`, whose occupancy is complete. Entries need as much room as
// `complete_occupancy` said.
void drain_counts(const Histograms& histograms, SparseCounts& into);

}  // namespace hookstats::cpu
