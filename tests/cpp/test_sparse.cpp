// Dense counts as sparse rows: every width around a cache line, against the entries one by one.
#include <cstdint>
#include <vector>

#include "check.h"
#include "cpu/sparse.h"

namespace {

using hookstats::cpu::sparse_counts;
using hookstats::cpu::SparseCounts;

void test_round_trip(int64_t rows, int64_t width, int64_t every) {
  std::vector<int64_t> dense(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < dense.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    dense[i] = n % every == 0 ? (n + 1) << 33 : 0;
  }
  const SparseCounts sparse = sparse_counts(dense.data(), rows, width);
  std::vector<int64_t> back(dense.size());
  bool ascending = true;
  for (int64_t r = 0; r < rows; ++r) {
    const auto first = static_cast<size_t>(sparse.offsets[static_cast<size_t>(r)]);
    const auto last = static_cast<size_t>(sparse.offsets[static_cast<size_t>(r) + 1]);
    for (size_t i = first; i < last; ++i) {
      ascending = ascending && (i == first || sparse.slots[i - 1] < sparse.slots[i]);
      back[static_cast<size_t>(r * width + sparse.slots[i])] = sparse.counts[i];
    }
  }
  const auto label = [&](const char* what) {
    static char text[64];
    std::snprintf(text, sizeof text, "%s of %d x %d, every %d", what, static_cast<int>(rows),
                  static_cast<int>(width), static_cast<int>(every));
    return text;
  };
  CHECK(back == dense, "%s", label("entries"));
  CHECK(ascending, "%s", label("order"));
  CHECK(sparse.offsets.size() == static_cast<size_t>(rows) + 1, "%s", label("offsets"));
}

}  // namespace

int main() {
  for (int64_t rows : {0, 1, 3}) {
    for (int64_t width : {0, 1, 7, 8, 9, 31, 33, 997}) {
      for (int64_t every : {1, 2, 7, 8, 1000}) test_round_trip(rows, width, every);
    }
  }
  return check::finish("sparse");
}
