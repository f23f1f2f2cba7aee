// Channels merged by columns: two passes, around the greatest of their means.
#include "cpu/wholes.h"

#include <algorithm>

#include "core/state.h"

namespace hookstats::cpu {

namespace {

// Reduces n terms to one. Many results at once: a single one would wait for each step.
template <class Op, class F>
double reduce(int64_t n, double none, Op&& op, F&& term) {
  constexpr int64_t kResults = 8;
  double results[kResults];
  std::fill_n(results, kResults, none);
  int64_t i = 0;
  for (; i + kResults <= n; i += kResults) {
    for (int64_t k = 0; k < kResults; ++k) results[k] = op(results[k], term(i + k));
  }
  for (; i < n; ++i) results[i % kResults] = op(results[i % kResults], term(i));
  for (int64_t width = kResults / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) results[k] = op(results[k], results[k + width]);
  }
  return results[0];
}

constexpr auto add = [](double a, double b) { return a + b; };
constexpr auto lesser = [](double a, double b) { return b < a ? b : a; };
constexpr auto greater = [](double a, double b) { return b > a ? b : a; };

int64_t sum(const int64_t* values, int64_t n) {
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += values[i];
  return total;
}

}  // namespace

// As `merge` (core/state.h), for any number of groups at once: Chan, Golub, LeVeque (1979).
void merge_rows(const double* columns, const int64_t* tally_columns, int64_t first, int64_t last,
                int64_t total, double* moments, int64_t* tallies) {
  const int64_t n = last - first;
  const auto column = [=](MomentColumn c) { return columns + c * total + first; };
  const auto tally = [=](TallyColumn c) { return tally_columns + c * total + first; };
  const int64_t* const counts = tally(kCount);
  const double* const means = column(kMean);
  Channel whole;
#define HOOKSTATS_SUM(field, column) whole.field = sum(tally(column), n);
  HOOKSTATS_TALLIES(HOOKSTATS_SUM)
#undef HOOKSTATS_SUM
  if (whole.count != 0) {
    const Channel none;
    const auto value = [](const double* values) { return [=](int64_t i) { return values[i]; }; };
    const auto sum_of = [=](auto term) { return reduce(n, 0.0, add, term); };
    whole.min = reduce(n, none.min, lesser, value(column(kMin)));
    whole.max = reduce(n, none.max, greater, value(column(kMax)));
#define HOOKSTATS_SUM(field, of) whole.field = sum_of(value(column(of)));
    HOOKSTATS_SUMS(HOOKSTATS_SUM)
#undef HOOKSTATS_SUM
    const auto count = [=](int64_t i) { return static_cast<double>(counts[i]); };
    // A channel without values has no mean.
    const double shift = reduce(n, none.max, greater,
                                [=](int64_t i) { return counts[i] > 0 ? means[i] : none.max; });
    const auto beyond = [=](int64_t i) { return counts[i] > 0 ? means[i] - shift : 0.0; };
    const double offset =
        sum_of([=](int64_t i) { return count(i) * beyond(i); }) / static_cast<double>(whole.count);
    const auto away = [=](int64_t i) { return counts[i] > 0 ? means[i] - shift - offset : 0.0; };
    whole.mean = shift + offset;
    const double* const m2 = column(kM2);
    whole.m2 = sum_of([=](int64_t i) { return m2[i] + count(i) * (away(i) * away(i)); });
  }
  store_row(whole, moments, tallies);
}
}  // namespace hookstats::cpu
