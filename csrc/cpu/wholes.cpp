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

// As `merge` (core/state.h), for any number of groups at once: Chan, Golub, LeVeque (1979) and
// Pebay (2008).
static_assert(kMomentColumns == 5 && kHigherColumns == 7 && kTallyColumns == 5,
              "columns that are not merged here");
template <class C>
void merge_rows(const double* columns, const int64_t* tally_columns, int64_t first, int64_t last,
                int64_t total, double* moments, int64_t* tallies) {
  const int64_t n = last - first;
  const auto column = [=](MomentColumn c) { return columns + c * total + first; };
  const auto tally = [=](TallyColumn c) { return tally_columns + c * total + first; };
  const int64_t* const counts = tally(kCount);
  const double* const means = column(kMean);
  C whole;
  whole.count = sum(counts, n);
  whole.nan = sum(tally(kNan), n);
  whole.posinf = sum(tally(kPosInf), n);
  whole.neginf = sum(tally(kNegInf), n);
  whole.zero = sum(tally(kZero), n);
  if (whole.count != 0) {
    const C none;
    const auto value = [](const double* values) { return [=](int64_t i) { return values[i]; }; };
    const auto sum_of = [=](auto term) { return reduce(n, 0.0, add, term); };
    whole.min = reduce(n, none.min, lesser, value(column(kMin)));
    whole.max = reduce(n, none.max, greater, value(column(kMax)));
    whole.l1 = sum_of(value(column(kL1)));
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
    if constexpr (C::kColumns == kHigherColumns) {
      const double *const m3 = column(kM3), *const m4 = column(kM4);
      // Where a mean is that of all, nothing is added: 0 times infinity would be NaN.
      whole.m3 = sum_of([=](int64_t i) {
        const double d = away(i);
        return d == 0.0 ? m3[i] : m3[i] + d * (3.0 * m2[i] + count(i) * (d * d));
      });
      whole.m4 = sum_of([=](int64_t i) {
        const double d = away(i), d2 = d * d;
        return d == 0.0 ? m4[i] : m4[i] + (4.0 * d * m3[i] + d2 * (6.0 * m2[i] + count(i) * d2));
      });
    }
  }
  store_row(whole, moments, tallies);
}
template void merge_rows<Channel>(const double*, const int64_t*, int64_t, int64_t, int64_t, double*,
                                  int64_t*);
template void merge_rows<HigherChannel>(const double*, const int64_t*, int64_t, int64_t, int64_t,
                                        double*, int64_t*);

}  // namespace hookstats::cpu
