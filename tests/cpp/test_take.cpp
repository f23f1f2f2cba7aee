// Rows taken out of a closed step: what comes out is what was in, and nothing is left.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "core/state.h"
#include "cpu/take.h"

namespace {

using namespace hookstats;

void test_counts(int64_t rows, int64_t width, int64_t every) {
  std::vector<int64_t> dense(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < dense.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    dense[i] = n % every == 0 ? (n + 1) << 33 : 0;
  }
  std::vector<int64_t> left = dense, back(dense.size());
  cpu::SparseCounts sparse;
  cpu::take_counts(left.data(), rows, width, sparse);
  bool ascending = true;
  for (int64_t r = 0; r < rows; ++r) {
    const auto first = static_cast<size_t>(sparse.offsets[static_cast<size_t>(r)]);
    const auto last = static_cast<size_t>(sparse.offsets[static_cast<size_t>(r) + 1]);
    for (size_t i = first; i < last; ++i) {
      ascending = ascending && (i == first || sparse.slots[i - 1] < sparse.slots[i]);
      back[static_cast<size_t>(r * width + sparse.slots[i])] = sparse.counts[i];
    }
  }
  char label[64];
  std::snprintf(label, sizeof label, "%d x %d, every %d", static_cast<int>(rows),
                static_cast<int>(width), static_cast<int>(every));
  CHECK(back == dense, "%s", label);
  CHECK(ascending, "%s", label);
  CHECK(sparse.offsets.size() == static_cast<size_t>(rows) + 1, "%s", label);
  CHECK(left == std::vector<int64_t>(dense.size(), 0), "%s", label);
}

void test_rows(int64_t rows) {
  constexpr int64_t kBefore = 2, kAfter = 3;
  const int64_t total = kBefore + rows + kAfter;
  std::vector<double> moments(static_cast<size_t>(rows * kMomentColumns));
  std::vector<int64_t> tallies(static_cast<size_t>(rows * kTallyColumns));
  for (size_t i = 0; i < moments.size(); ++i) moments[i] = 0.5 + static_cast<double>(i);
  for (size_t i = 0; i < tallies.size(); ++i) tallies[i] = 7 + static_cast<int64_t>(i);
  const std::vector<double> all_moments = moments;
  const std::vector<int64_t> all_tallies = tallies;
  std::vector<double> moment_columns(static_cast<size_t>(total * kMomentColumns), -1.0);
  std::vector<int64_t> tally_columns(static_cast<size_t>(total * kTallyColumns), -1);
  cpu::take_moments(moments.data(), rows, moment_columns.data(), kBefore, total);
  cpu::take_tallies(tallies.data(), rows, tally_columns.data(), kBefore, total);
  for (int64_t r = -kBefore; r < rows + kAfter; ++r) {
    const bool taken = 0 <= r && r < rows;
    for (int64_t c = 0; c < kMomentColumns; ++c) {
      const auto row = static_cast<size_t>(r * kMomentColumns + c);
      const auto column = static_cast<size_t>(c * total + kBefore + r);
      CHECK(moment_columns[column] == (taken ? all_moments[row] : -1.0), "moment %d", int(c));
      CHECK(tally_columns[column] == (taken ? all_tallies[row] : -1), "tally %d", int(c));
    }
    if (!taken) continue;
    const Channel left =
        load_row(moments.data() + r * kMomentColumns, tallies.data() + r * kTallyColumns);
    const Channel none;
    CHECK(left.count == 0 && left.nan == 0 && left.mean == 0.0 && left.m2 == 0.0, "row %d", int(r));
    CHECK(left.min == none.min && left.max == none.max && left.l1 == 0.0, "row %d", int(r));
  }
}

}  // namespace

int main() {
  for (int64_t rows : {0, 1, 3}) {
    for (int64_t width : {0, 1, 7, 8, 9, 31, 33, 997}) {
      for (int64_t every : {1, 2, 7, 8, 1000}) test_counts(rows, width, every);
    }
  }
  for (int64_t rows : {0, 1, 31, 33}) test_rows(rows);
  return check::finish("take");
}
