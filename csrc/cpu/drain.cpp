// One pass over the rows of a step, which transposes what is dense and compacts what is sparse.
#include "cpu/drain.h"

#include <algorithm>
#include <cstring>

#include "core/occupancy.h"
#include "core/state.h"

// Processors that lack the instruction ignore it.
#if defined(__x86_64__)
#define HOOKSTATS_PREFETCHES_TO_WRITE __attribute__((target("prfchw")))
#else
#define HOOKSTATS_PREFETCHES_TO_WRITE
#endif

namespace hookstats::cpu {

namespace {

template <int kColumns, class T>
void drain_columns(T* rows, int64_t count, const T (&empty)[kColumns], T* columns, int64_t total) {
  for (int64_t r = 0; r < count; ++r, rows += kColumns) {
    for (int c = 0; c < kColumns; ++c) columns[c * total + r] = rows[c];
    std::memcpy(rows, empty, sizeof empty);
  }
}

bool any_nonzero(const int64_t* counts, int64_t n) {
  int64_t any = 0;
  for (int64_t i = 0; i < n; ++i) any |= counts[i];
  return any != 0;
}

void mark_nonzero(const int64_t* counts, int64_t width, int64_t* occupancy) {
  int64_t* bits = occupancy + 1;
  for (int64_t begin = 0; begin < width; begin += kWordSlots) {
    const int64_t end = std::min(begin + kWordSlots, width);
    uint64_t word = 0, bit = 1;
    int64_t slot = begin;
    for (; slot + kOccupancySlots <= end; slot += kOccupancySlots, bit <<= 1) {
      if (any_nonzero(counts + slot, kOccupancySlots)) word |= bit;
    }
    if (any_nonzero(counts + slot, end - slot)) word |= bit;
    *bits++ |= static_cast<int64_t>(word);
  }
}

}  // namespace

void drain_moments(double* moments, int64_t rows, double* columns, int64_t first, int64_t total) {
  double empty[kMomentColumns];
  int64_t no_tallies[kTallyColumns];
  store_row(Channel{}, empty, no_tallies);
  drain_columns(moments, rows, empty, columns + first, total);
}

void drain_tallies(int64_t* tallies, int64_t rows, int64_t* columns, int64_t first, int64_t total) {
  constexpr int64_t empty[kTallyColumns] = {};
  drain_columns(tallies, rows, empty, columns + first, total);
}

int64_t complete_occupancy(const Histograms& histograms, const int64_t* accumulated) {
  const auto& [counts, occupancy, rows, width] = histograms;
  const int64_t columns = mark_columns(width);
  int64_t entries = 0;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t* const row = occupancy + r * columns;
    if (accumulated == nullptr || accumulated[r] != row[0])
      mark_nonzero(counts + r * width, width, row);
    each_marked(row, width, [&](int64_t begin, int64_t end) { entries += end - begin; });
  }
  return entries;
}

HOOKSTATS_PREFETCHES_TO_WRITE
void drain_counts(const Histograms& histograms, SparseCounts& into) {
  int64_t* const occupancy = histograms.occupancy;
  const int64_t rows = histograms.rows, width = histograms.width;
  const int64_t columns = mark_columns(width);
  int32_t* const slots = into.slots;
  int64_t* const values = into.counts;
  int64_t entries = into.entries;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t* const row = histograms.counts + r * width;
    if (r + 1 < rows) {  // it is in no cache, and far from this one
      each_marked(occupancy + (r + 1) * columns, width,
                  [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
                    for (int64_t slot = begin; slot < end; slot += 8)
                      __builtin_prefetch(row + width + slot, 1);
                  });
    }
    each_marked(occupancy + r * columns, width, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        slots[entries] = static_cast<int32_t>(slot);
        values[entries] = row[slot];
        entries += row[slot] != 0;  // else the next one takes its place
        row[slot] = 0;
      }
    });
    std::memset(occupancy + r * columns, 0, static_cast<size_t>(columns) * sizeof(int64_t));
    into.offsets[++into.rows] = entries;
  }
  into.entries = entries;
}

}  // namespace hookstats::cpu
