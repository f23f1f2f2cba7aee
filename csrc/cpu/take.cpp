// One pass over the rows of a step, which transposes what is dense and compacts what is sparse.
#include "cpu/take.h"

#include "core/state.h"

namespace hookstats::cpu {

void take_moments(double* moments, int64_t rows, double* columns, int64_t first, int64_t total) {
  double empty[kMomentColumns];
  int64_t no_tallies[kTallyColumns];
  store_row(Channel{}, empty, no_tallies);
  for (int64_t r = 0; r < rows; ++r, moments += kMomentColumns) {
    for (int c = 0; c < kMomentColumns; ++c) {
      columns[c * total + first + r] = moments[c];
      moments[c] = empty[c];
    }
  }
}

void take_tallies(int64_t* tallies, int64_t rows, int64_t* columns, int64_t first, int64_t total) {
  for (int64_t r = 0; r < rows; ++r, tallies += kTallyColumns) {
    for (int c = 0; c < kTallyColumns; ++c) {
      columns[c * total + first + r] = tallies[c];
      tallies[c] = 0;
    }
  }
}

void take_counts(int64_t* dense, int64_t rows, int64_t width, SparseCounts& into) {
  constexpr int64_t kLine = 8;  // a cache line is tested at once; most are zero
  const auto take = [&into](int64_t* row, int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      if (row[slot] == 0) continue;
      into.slots.push_back(static_cast<int32_t>(slot));
      into.counts.push_back(row[slot]);
      row[slot] = 0;
    }
  };
  for (int64_t r = 0; r < rows; ++r) {
    int64_t* row = dense + r * width;
    int64_t slot = 0;
    for (; slot + kLine <= width; slot += kLine) {
      int64_t any = 0;
      for (int64_t i = 0; i < kLine; ++i) any |= row[slot + i];
      if (any != 0) take(row, slot, slot + kLine);
    }
    take(row, slot, width);
    into.offsets.push_back(static_cast<int64_t>(into.slots.size()));
  }
}

}  // namespace hookstats::cpu
