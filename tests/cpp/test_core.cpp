// core: conversions, bins, channel views and merging, each against a plain definition.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "core/bins.h"
#include "core/channel_view.h"
#include "core/dtype.h"
#include "core/kept_rows.h"
#include "core/state.h"

using namespace hookstats;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Value of an IEEE-like pattern; `has_inf` says whether the top exponent is infinity and NaN.
double decode(uint32_t bits, int exponent_bits, int mantissa_bits, bool has_inf) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) & 1 ? -1.0 : 1.0;
  const int top = (1 << exponent_bits) - 1;
  if (exponent == top && has_inf) return mantissa == 0 ? sign * kInf : NAN;
  if (exponent == top && mantissa == (1u << mantissa_bits) - 1) return NAN;
  const double fraction = mantissa / std::ldexp(1.0, mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

bool same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

void test_widen() {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    CHECK(same(widen(Half{bits}), decode(i, 5, 10, true)), "half %x", i);
    CHECK(same(widen(BFloat16{bits}), decode(i, 8, 7, true)), "bfloat16 %x", i);
  }
  for (uint32_t i = 0; i < 0x100; ++i) {
    const uint8_t bits = static_cast<uint8_t>(i);
    CHECK(same(widen(Float8E5M2{bits}), decode(i, 5, 2, true)), "float8_e5m2 %x", i);
    CHECK(same(widen(Float8E4M3FN{bits}), decode(i, 4, 3, false)), "float8_e4m3fn %x", i);
  }
}

void test_linear_bins() {
  for (const int64_t bins : {1, 2, 63, 64, 1000}) {
    std::vector<float> edges(static_cast<size_t>(bins + 1));
    for (int64_t i = 0; i <= bins; ++i) {
      edges[static_cast<size_t>(i)] = static_cast<float>(-3.0 + 7.0 * i / bins);
    }
    const std::vector<float> original = edges;
    const Bins b = linear_bins(edges.data(), bins);
    CHECK(b.slots() == bins + 2 && b.uniform, "%ld bins", static_cast<long>(bins));
    for (int64_t i = 0; i <= bins; ++i) {
      const float edge = original[static_cast<size_t>(i)];
      const int64_t above = i == bins ? bins : i + 1;  // the last bin is closed on both sides
      CHECK(slot(b, edge) == above, "edge %ld", static_cast<long>(i));
      CHECK(slot(b, std::nextafter(edge, -INFINITY)) == i, "below edge %ld", static_cast<long>(i));
      const double just_above = std::nextafter(static_cast<double>(edge), kInf);
      CHECK(slot(b, just_above) == i + 1, "fp64 above edge %ld", static_cast<long>(i));
    }
    CHECK(slot(b, NAN) == 0 && slot(b, -INFINITY) == 0 && slot(b, INFINITY) == bins + 1, "rest");
  }
}

void test_log_bins() {
  for (const int k : {0, 1, 3, 7}) {
    for (const int least : {-127, -126, -20}) {
      const int greatest = least == -20 ? 10 : 127;
      const Bins b = log_bins(k, least, greatest);
      const int64_t zero = (b.slots() - 1) / 2;
      CHECK(slot(b, 0.0f) == zero && slot(b, -0.0f) == zero, "zero");
      for (int e = -149; e <= 127; ++e) {
        for (const double fraction : {1.0, 1.06, 1.5, 1.99}) {
          const float x = static_cast<float>(std::ldexp(fraction, e));
          int64_t magnitude;  // bins above zero, by definition
          if (e > greatest) {
            magnitude = b.magnitudes;
          } else if (least == -127 && e < -126) {
            magnitude = static_cast<int64_t>(std::floor(std::ldexp(x, 126 + k)));
          } else if (e < least) {
            magnitude = 0;
          } else {
            int exponent;
            const double m = std::frexp(x, &exponent) * 2.0 - 1.0;
            const int64_t small = least > -127 ? 1 : 1 << k;  // bins below the first octave
            const int first = least > -127 ? least : -126;
            magnitude = small + ((exponent - 1 - first) * (int64_t{1} << k)) +
                        static_cast<int64_t>(std::floor(std::ldexp(m, k)));
          }
          CHECK(slot(b, x) == zero + 1 + magnitude, "k=%d x=%g", k, x);
          CHECK(slot(b, -x) == zero - 1 - magnitude, "k=%d x=-%g", k, x);
          CHECK(slot(b, static_cast<double>(x)) == slot(b, x), "fp64 %g", x);
          const float before = std::nextafter(x, 0.0f);
          const double below = std::nextafter(static_cast<double>(x), 0.0);  // toward zero
          const int64_t of_below = before == 0.0f ? slot(b, x) : slot(b, before);
          CHECK(slot(b, below) == of_below, "fp64 below %g", x);
        }
      }
      CHECK(slot(b, 1e300) == b.bins + 1 && slot(b, -1e300) == 0, "beyond fp32");
      CHECK(slot(b, 1e-300) == zero + 1 && slot(b, -1e-300) == zero - 1, "below fp32");
    }
  }
}

void test_channel_view() {
  const int64_t nchw_sizes[] = {2, 3, 4, 5}, nchw[] = {60, 20, 5, 1}, nhwc[] = {60, 1, 15, 3};
  ChannelView v = channel_view(nchw_sizes, nchw, 4, 1);
  CHECK(v.channels == 3 && v.inner.size == 20 && v.inner.stride == 1, "channels first");
  CHECK(v.outer_dims == 1 && v.outer[0].size == 2 && v.outer[0].stride == 60, "channels first");
  v = channel_view(nchw_sizes, nhwc, 4, 1);
  CHECK(v.channel_stride == 1 && v.inner.size == 1, "channels last");
  CHECK(v.outer_dims == 1 && v.outer[0].size == 40 && v.outer[0].stride == 3, "channels last");
  v = channel_view(nchw_sizes, nhwc, 4, -1);
  CHECK(v.channels == 1 && v.inner.size == 120 && v.outer_size == 1, "whole tensor");
  const int64_t expanded[] = {0, 1, 0, 3};
  v = channel_view(nchw_sizes, expanded, 4, 1);
  CHECK(v.repeat == 8 && v.outer_size == 5 && v.numel() == 15, "expanded");
  const int64_t sliced_sizes[] = {4, 3, 2}, sliced[] = {100, 10, 2};
  v = channel_view(sliced_sizes, sliced, 3, 0);
  CHECK(v.inner.size == 2 && v.inner.stride == 2 && v.outer_offset(2) == 20, "sliced");
  v = channel_view(nullptr, nullptr, 0, -1);
  CHECK(v.numel() == 1, "no dimensions");
  const int64_t empty_sizes[] = {3, 0}, empty[] = {1, 1};
  CHECK(channel_view(empty_sizes, empty, 2, 0).numel() == 0, "empty");
}

void test_masks() {
  const int8_t padding[] = {1, 1, 0, 0, 1, 1, 1, 0};  // every second line of it is read
  const int64_t mask_sizes[] = {2, 2}, mask_strides[] = {4, 1};
  int64_t rows[5];
  KeptRows kept{rows, nullptr, keep_rows(padding, mask_sizes, mask_strides, 2, rows), 2, {2, 2}};
  CHECK(kept.count == 4 && rows[0] == 0 && rows[3] == 3, "all are kept");
  const int64_t across[] = {1, 4};
  kept.count = keep_rows(padding, mask_sizes, across, 2, rows);
  CHECK(kept.count == 4 && kept.total() == 4, "as many of the transposed");
  const int8_t some[] = {0, 1, 1, 0};
  const int64_t dense[] = {2, 1};
  kept.count = keep_rows(some, mask_sizes, dense, 2, rows);
  CHECK(kept.count == 2 && rows[0] == 1 && rows[1] == 2, "one of each line");

  const int64_t sizes[] = {2, 2, 3}, strides[] = {6, 3, 1}, flat[] = {4, 3};
  CHECK(covered_dims(kept, sizes, 3, 2) == 2 && covered_dims(kept, sizes, 3, -1) == 2, "fits");
  CHECK(covered_dims(kept, sizes, 3, 1) == 0, "channels along the mask");
  CHECK(covered_dims(kept, flat, 2, 1) == 1 && covered_dims(kept, flat, 2, 0) == 0, "flat");
  const int64_t attention[] = {2, 5, 2, 2}, square[] = {2, 2, 2, 2};
  CHECK(covered_dims(kept, attention, 4, 3) == 0, "attention of other heads");
  CHECK(covered_dims(kept, square, 4, 3) == 0 && covered_dims(kept, sizes, 0, -1) == 0, "never");

  ChannelView v = channel_view(sizes, strides, 3, 2, &kept, 2);
  CHECK(v.numel() == 6 && v.positions() == 12 && v.row_positions() == 3, "numbers of elements");
  CHECK(v.outer_offset(0) == 3 && v.outer_offset(1) == 6, "offsets");
  CHECK(v.follow_each_other(0, 2), "neighbours");
  v = channel_view(sizes, strides, 3, -1, &kept, 2);
  CHECK(v.inner.size == 3 && v.outer_size == 2 && v.outer_dims == 1, "rows are not joined to runs");
  const int64_t repeated[] = {3, 0, 1};
  v = channel_view(sizes, repeated, 3, 2, &kept, 2);
  CHECK(v.repeat == 1 && v.outer_offset(0) == 0 && v.outer_offset(1) == 3, "expanded rows");
  kept.count = 0;
  CHECK(channel_view(sizes, strides, 3, 2, &kept, 2).numel() == 0, "nothing is kept");
}

void test_merge_nonfinite() {
  Channel into, from;
  into.nan = 1, into.posinf = 2, into.neginf = 3;
  from.nan = 10, from.posinf = 20, from.neginf = 30;
  merge(into, from);  // neither has finite values
  CHECK(into.nan == 11 && into.posinf == 22 && into.neginf == 33, "without finite values");
  from.count = 1;
  merge(into, from);
  CHECK(into.nan == 21 && into.posinf == 42 && into.neginf == 63, "with finite values");
  repeat(into, 2);
  CHECK(into.nan == 42 && into.posinf == 84 && into.neginf == 126, "repeat");
}

Channel of(const std::vector<double>& values) {
  Channel c;
  for (const double x : values) {
    Channel one;
    one.count = 1;
    one.mean = one.min = one.max = x;
    one.l1 = std::fabs(x);
    one.zero = x == 0.0;
    merge(c, one);
  }
  return c;
}

void test_merge() {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(3.0, 2.0);
  for (int example = 0; example < 200; ++example) {
    std::vector<double> all(random() % 50), parts[3];
    for (double& x : all) {
      x = random() % 5 == 0 ? 0.0 : normal(random);
      parts[random() % 3].push_back(x);
    }
    const Channel whole = of(all);
    Channel merged = of(parts[2]), tail = of(parts[0]);
    merge(tail, of(parts[1]));
    merge(merged, tail);
    CHECK(merged.count == whole.count && merged.zero == whole.zero, "counts");
    CHECK(merged.min == whole.min && merged.max == whole.max, "extremes");
    CHECK(std::fabs(merged.mean - whole.mean) <= 1e-12 * (1.0 + std::fabs(whole.mean)), "mean");
    CHECK(std::fabs(merged.m2 - whole.m2) <= 1e-12 * (1.0 + whole.m2), "m2");
    Channel twice = whole, doubled = whole;
    merge(twice, whole);
    repeat(doubled, 2);
    CHECK(twice.count == doubled.count && twice.zero == doubled.zero, "repeat");
    CHECK(std::fabs(twice.m2 - doubled.m2) <= 1e-12 * (1.0 + doubled.m2), "repeat");
  }
}

}  // namespace

int main() {
  test_widen();
  test_linear_bins();
  test_log_bins();
  test_channel_view();
  test_masks();
  test_merge();
  test_merge_nonfinite();
  return check::finish("core");
}
