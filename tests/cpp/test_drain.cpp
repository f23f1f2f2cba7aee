// Rows taken out of a closed step: what comes out is what was in, and nothing is left.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "core/occupancy.h"
#include "core/state.h"
#include "cpu/drain.h"

namespace {

using namespace hookstats;

struct Sample {
  int64_t rows, width;
  std::vector<int64_t> counts, occupancy, accumulated;
};

bool is_empty(const std::vector<int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [](int64_t value) { return value == 0; });
}

// One count in `every` slots. Row r is of r tensors; of every third, one is not marked. A mark may
// be of slots that are empty again.
Sample sample(int64_t rows, int64_t width, int64_t every) {
  Sample made{rows, width, {}, {}, {}};
  for (int64_t r = 0; r < rows; ++r) {
    const bool lacks = r % 3 == 2;
    std::vector<int64_t> occupancy(static_cast<size_t>(mark_columns(width)));
    occupancy[0] = r - lacks;
    for (int64_t slot = 0; slot < width; ++slot) {
      const int64_t n = r * width + slot;
      made.counts.push_back(n % every == 0 ? (n + 1) << 33 : 0);
      if ((n % every == 0 && !(lacks && slot % 5 == 0)) || slot == width / 2) {
        occupancy[static_cast<size_t>(1 + slot / kWordSlots)] |=
            static_cast<int64_t>(uint64_t{1} << (slot / kOccupancySlots % 64));
      }
    }
    made.occupancy.insert(made.occupancy.end(), occupancy.begin(), occupancy.end());
    made.accumulated.push_back(r);
  }
  return made;
}

// How many slots there are in groups that have a count or the mark of nothing.
int64_t most_entries(const Sample& of) {
  int64_t most = 0;
  for (int64_t r = 0; r < of.rows; ++r) {
    for (int64_t begin = 0; begin < of.width; begin += kOccupancySlots) {
      const int64_t end = std::min(begin + kOccupancySlots, of.width);
      bool any = begin <= of.width / 2 && of.width / 2 < end;
      for (int64_t slot = begin; slot < end; ++slot) {
        any = any || of.counts[static_cast<size_t>(r * of.width + slot)] != 0;
      }
      if (any) most += end - begin;
    }
  }
  return most;
}

void test_counts(int64_t rows, int64_t width, int64_t every, bool tell) {
  const Sample before = sample(rows, width, every);
  Sample left = before;
  const cpu::Histograms histograms{left.counts.data(), left.occupancy.data(), rows, width};
  const int64_t room =
      cpu::complete_occupancy(histograms, tell ? before.accumulated.data() : nullptr);
  std::vector<int64_t> offsets(static_cast<size_t>(rows) + 1);
  std::vector<int32_t> slots(static_cast<size_t>(room));
  std::vector<int64_t> counts(static_cast<size_t>(room)), back(before.counts.size());
  cpu::SparseCounts sparse{offsets.data(), slots.data(), counts.data()};
  cpu::drain_counts(histograms, sparse);
  bool ascending = true;
  for (int64_t r = 0; r < rows; ++r) {
    const auto first = static_cast<size_t>(offsets[static_cast<size_t>(r)]);
    const auto last = static_cast<size_t>(offsets[static_cast<size_t>(r) + 1]);
    for (size_t i = first; i < last; ++i) {
      ascending = ascending && (i == first || slots[i - 1] < slots[i]);
      back[static_cast<size_t>(r * width + slots[i])] = counts[i];
    }
  }
  char label[64];
  std::snprintf(label, sizeof label, "%d x %d, every %d, %s", static_cast<int>(rows),
                static_cast<int>(width), static_cast<int>(every), tell ? "told" : "not told");
  CHECK(back == before.counts, "%s", label);
  CHECK(ascending, "%s", label);
  CHECK(room <= most_entries(before), "%s: room for %d", label, int(room));
  CHECK(sparse.rows == rows && sparse.entries == offsets.back(), "%s", label);
  CHECK(is_empty(left.counts) && is_empty(left.occupancy), "%s", label);
}

void test_occupancy_past_the_width(int64_t width) {
  std::vector<int64_t> left(static_cast<size_t>(width), 1);
  std::vector<int64_t> occupancy(static_cast<size_t>(mark_columns(width)), -1);
  const cpu::Histograms histograms{left.data(), occupancy.data(), 1, width};
  const int64_t accumulated = -1;
  const int64_t room = cpu::complete_occupancy(histograms, &accumulated);
  CHECK(room == width, "width %d: room for %d", int(width), int(room));
  std::vector<int64_t> offsets(2), counts(static_cast<size_t>(width));
  std::vector<int32_t> slots(static_cast<size_t>(width));
  cpu::SparseCounts sparse{offsets.data(), slots.data(), counts.data()};
  cpu::drain_counts(histograms, sparse);
  CHECK(sparse.entries == width && is_empty(left) && is_empty(occupancy), "width %d", int(width));
}

void test_rows(int64_t rows) {
  constexpr int64_t kColumns = kMomentColumns;
  constexpr int64_t kBefore = 2, kAfter = 3;
  const int64_t total = kBefore + rows + kAfter;
  std::vector<double> moments(static_cast<size_t>(rows * kColumns));
  std::vector<int64_t> tallies(static_cast<size_t>(rows * kTallyColumns));
  for (size_t i = 0; i < moments.size(); ++i) moments[i] = 0.5 + static_cast<double>(i);
  for (size_t i = 0; i < tallies.size(); ++i) tallies[i] = 7 + static_cast<int64_t>(i);
  const std::vector<double> all_moments = moments;
  const std::vector<int64_t> all_tallies = tallies;
  std::vector<double> moment_columns(static_cast<size_t>(total * kColumns), -1.0);
  std::vector<int64_t> tally_columns(static_cast<size_t>(total * kTallyColumns), -1);
  cpu::drain_moments(moments.data(), rows, moment_columns.data(), kBefore, total);
  cpu::drain_tallies(tallies.data(), rows, tally_columns.data(), kBefore, total);
  for (int64_t r = -kBefore; r < rows + kAfter; ++r) {
    const bool taken = 0 <= r && r < rows;
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto row = static_cast<size_t>(r * kColumns + c);
      const auto column = static_cast<size_t>(c * total + kBefore + r);
      CHECK(moment_columns[column] == (taken ? all_moments[row] : -1.0), "moment %d", int(c));
    }
    for (int64_t c = 0; c < kTallyColumns; ++c) {
      const auto row = static_cast<size_t>(r * kTallyColumns + c);
      const auto column = static_cast<size_t>(c * total + kBefore + r);
      CHECK(tally_columns[column] == (taken ? all_tallies[row] : -1), "tally %d", int(c));
    }
    if (!taken) continue;
    Channel left;
    const Channel none;
    load_row(left, moments.data() + r * kColumns, tallies.data() + r * kTallyColumns);
    CHECK(left.count == 0 && left.nan == 0 && left.mean == 0.0 && left.m2 == 0.0, "row %d", int(r));
    CHECK(left.min == none.min && left.max == none.max && left.l1 == 0.0, "row %d", int(r));
  }
}

}  // namespace

int main() {
  for (int64_t rows : {0, 1, 3, 7}) {
    for (int64_t width : {0, 1, 7, 16, 17, 31, 33, 997, 1024, 1025, 4083}) {
      for (int64_t every : {1, 2, 7, 16, 1000}) {
        for (bool tell : {false, true}) test_counts(rows, width, every, tell);
      }
    }
  }
  for (int64_t width : {1, 17, 997, 1024, 1025}) test_occupancy_past_the_width(width);
  for (int64_t rows : {0, 1, 31, 33}) test_rows(rows);
  return check::finish("take");
}
