// Channels merged into the statistics of their tensor, against `merge` of one after the other.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.h"
#include "core/state.h"
#include "cpu/wholes.h"

namespace {

using namespace hookstats;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kBefore = 2, kAfter = 3;  // rows of other tensors

bool close(double a, double b) {
  return a == b || std::abs(a - b) <= 1e-11 * (std::abs(a) + std::abs(b));
}

// Columns as `drain_moments` and `drain_tallies` leave them.
struct Columns {
  explicit Columns(const std::vector<Channel>& channels)
      : rows(static_cast<int64_t>(channels.size())),
        total(kBefore + rows + kAfter),
        moments(static_cast<size_t>(total * kMomentColumns), -7.5),
        tallies(static_cast<size_t>(total * kTallyColumns), 1000) {
    for (int64_t r = 0; r < rows; ++r) {
      double row[kMomentColumns];
      int64_t tally[kTallyColumns];
      store_row(channels[static_cast<size_t>(r)], row, tally);
      for (int64_t c = 0; c < kMomentColumns; ++c) at(moments, c, r) = row[c];
      for (int64_t c = 0; c < kTallyColumns; ++c) at(tallies, c, r) = tally[c];
    }
  }

  Channel merged() const {
    std::vector<double> row(kMomentColumns);  // on the heap, where sanitizers see what is beyond
    std::vector<int64_t> tally(kTallyColumns);
    cpu::merge_rows(moments.data(), tallies.data(), kBefore, kBefore + rows, total, row.data(),
                    tally.data());
    Channel whole;
    load_row(whole, row.data(), tally.data());
    return whole;
  }

  template <class T>
  T& at(std::vector<T>& columns, int64_t column, int64_t row) const {
    return columns[static_cast<size_t>(column * total + kBefore + row)];
  }

  int64_t rows, total;
  std::vector<double> moments;
  std::vector<int64_t> tallies;
};

double uniform() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(state >> 11) * 0x1p-53;
}

// Of `values` values; every `empty`-th channel has none that are finite.
std::vector<Channel> channels(int64_t rows, int64_t values, int64_t empty, double mean) {
  std::vector<Channel> made;
  for (int64_t r = 0; r < rows; ++r) {
    Channel channel;
    for (int64_t i = 0; i < values && r % empty != empty - 1; ++i) {
      Channel one;
      one.count = 1;
      one.mean = one.min = one.max = mean + uniform();
      one.l1 = std::abs(one.mean);
      one.zero = i % 2;  // beside the values: tallies are only added
      merge(channel, one);
    }
    channel.nan = r;
    channel.posinf = 2 * r;
    channel.neginf = int64_t{1} << 40;
    made.push_back(channel);
  }
  return made;
}

void check_same(const Channel& found, const Channel& expected, const char* label, int64_t rows) {
  CHECK(found.count == expected.count && found.nan == expected.nan && found.zero == expected.zero &&
            found.posinf == expected.posinf && found.neginf == expected.neginf,
        "%s, %d rows", label, int(rows));
  CHECK(found.min == expected.min && found.max == expected.max, "%s, %d rows", label, int(rows));
  CHECK(close(found.mean, expected.mean), "%s, %d rows", label, int(rows));
  CHECK(close(found.m2, expected.m2), "%s, %d rows", label, int(rows));
  CHECK(close(found.l1, expected.l1), "%s, %d rows", label, int(rows));
}

void test(const char* label) {
  for (int64_t rows : {0, 1, 2, 7, 8, 9, 31, 33, 997}) {
    for (int64_t empty : {1, 2, 3, 1000}) {
      for (double mean : {0.0, -3.0, 1e6}) {
        const std::vector<Channel> each = channels(rows, 5, empty, mean);
        Channel expected;
        for (const Channel& channel : each) merge(expected, channel);
        const Channel found = Columns(each).merged();
        if (mean < 1e6) check_same(found, expected, label, rows);
        // Far from zero, the order of additions shows in the last bits of the squares.
        CHECK(std::abs(found.m2 - expected.m2) <= 1e-9 * (1.0 + expected.m2), "%s", label);
      }
    }
  }
  Channel same;
  same.count = 3;
  same.mean = 0.1;
  std::vector<Channel> equal(33, same);
  equal[5] = Channel{};
  for (size_t i = 0; i < equal.size(); ++i) equal[i].count *= static_cast<int64_t>(i);
  const Channel whole = Columns(equal).merged();
  CHECK(whole.mean == 0.1 && whole.m2 == 0.0, "%s: %g, %g", label, whole.mean, whole.m2);
}

void test_infinite_moments() {
  Channel one;
  one.count = 4;
  one.mean = 0.5;
  one.m2 = kInf;
  const Channel whole = Columns({one, Channel{}, one}).merged();
  CHECK(whole.count == 8 && whole.mean == 0.5, "%d", int(whole.count));
  CHECK(whole.m2 == kInf, "%g", whole.m2);
}

}  // namespace

int main() {
  test("moments");
  test_infinite_moments();
  return check::finish("wholes");
}
