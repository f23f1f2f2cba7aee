// A state copied into an empty one: byte for byte the same, and nothing beside it is touched.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "core/bins.h"
#include "core/copy_state.h"
#include "core/marks.h"
#include "core/state.h"
#include "core/update_params.h"

namespace {

using namespace hookstats;

struct Case {
  int64_t channels, bins, channel_bins;  // no histogram: 0
  bool higher, from_marks, to_marks;
};

// A state with one row more of everything, which is not its own.
struct State {
  std::vector<double> moments;
  std::vector<int64_t> tallies, counts, channel_counts, marks;
  UpdateParams params{};

  State(const Case& of, bool marked, bool filled) {
    const int64_t columns = of.higher ? kHigherColumns : kMomentColumns;
    const auto log = [](int64_t bins) {
      Bins made;
      made.kind = bins == 0 ? BinKind::kNone : BinKind::kLog;
      made.bins = bins;
      return made;
    };
    params.higher = of.higher;
    params.tensor_bins = log(of.bins);
    params.channel_bins = log(of.channel_bins);
    const int64_t slots = params.tensor_bins.slots();
    const int64_t channel_slots = params.channel_bins.slots();
    moments.assign(static_cast<size_t>((of.channels + 1) * columns), 0.0);
    tallies.assign(static_cast<size_t>((of.channels + 1) * kTallyColumns), 0);
    counts.assign(static_cast<size_t>(2 * slots), 0);
    channel_counts.assign(static_cast<size_t>((of.channels + 1) * channel_slots), 0);
    marks.assign(static_cast<size_t>(mark_columns(slots)) + 1, 0);
    if (filled) fill(of, columns, slots, channel_slots);
    params.moments = moments.data();
    params.tallies = tallies.data();
    params.tensor_counts = of.bins == 0 ? nullptr : counts.data();
    params.channel_counts = of.channel_bins == 0 ? nullptr : channel_counts.data();
    params.tensor_marks = marked && of.bins != 0 ? marks.data() : nullptr;
  }

  void fill(const Case& of, int64_t columns, int64_t slots, int64_t channel_slots) {
    const auto number = [](int64_t n) { return n * 0x10001 + 1; };
    for (int64_t i = 0; i < of.channels * columns; ++i) {
      moments[static_cast<size_t>(i)] = 0.5 + static_cast<double>(i);
    }
    for (int64_t i = 0; i < of.channels * kTallyColumns; ++i) {
      tallies[static_cast<size_t>(i)] = number(i);
    }
    for (int64_t i = 0; of.bins != 0 && i < slots; i += i % 7 == 0 ? 1 : 129) {
      counts[static_cast<size_t>(i)] = number(i);
      marks[static_cast<size_t>(1 + i / kWordSlots)] |=
          static_cast<int64_t>(uint64_t{1} << (i / kMarkSlots % 64));
    }
    for (int64_t i = 0; of.channel_bins != 0 && i < of.channels * channel_slots; ++i) {
      channel_counts[static_cast<size_t>(i)] = number(i);
    }
  }
};

void test(const Case& of) {
  const State from(of, of.from_marks, true);
  State to(of, of.to_marks, false);
  copy_state(from.params, to.params, of.channels);
  char label[96];
  std::snprintf(label, sizeof label, "%d channels, %d and %d bins, higher %d, marks %d %d",
                static_cast<int>(of.channels), static_cast<int>(of.bins),
                static_cast<int>(of.channel_bins), of.higher, of.from_marks, of.to_marks);
  CHECK(to.moments == from.moments, "%s", label);
  CHECK(to.tallies == from.tallies, "%s", label);
  CHECK(to.counts == from.counts, "%s", label);
  CHECK(to.channel_counts == from.channel_counts, "%s", label);
  const bool marks = of.from_marks && of.to_marks && of.bins != 0;
  CHECK(to.marks == (marks ? from.marks : std::vector<int64_t>(from.marks.size())), "%s", label);
}

}  // namespace

int main() {
  for (int64_t channels : {0, 1, 31, 33, 997}) {
    for (int64_t bins : {0, 1, 33, 997, 1022, 4081}) {
      for (int64_t channel_bins : {0, 1, 31}) {
        for (int marks : {0, 1, 2, 3}) {
          for (bool higher : {false, true}) {
            test({channels, bins, channel_bins, higher, marks % 2 != 0, marks / 2 != 0});
          }
        }
      }
    }
  }
  return check::finish("copy");
}
