// Merges the channels of a tensor into the statistics of the whole tensor.
#pragma once

#include <cstdint>

namespace hookstats::cpu {

// Merges rows `first` to `last` of the columns that `drain_moments` and `drain_tallies` fill, each
// of `total` rows, into one row of moments, [kMomentColumns], and of tallies, [kTallyColumns]. If
// all means are equal, the result has that mean to the last bit.
void merge_rows(const double* columns, const int64_t* tally_columns, int64_t first, int64_t last,
                int64_t total, double* moments, int64_t* tallies);

}  // namespace hookstats::cpu
