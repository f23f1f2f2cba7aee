// Shifted sums of one thread, and the channel statistics they amount to.
//
// A thread sums in fp32 around a shift close to the mean and adds to fp64 every kAdditions.
// Non-finite values take part in no sum, however many they are, so all data take the same time.
// Squares that overflow or vanish and a bad shift show in the sums, which are then made again in
// fp64.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/state.h"
#include "cuda/policy.h"
#include "cuda/primitives.cuh"

namespace hookstats::cuda {

template <class Real>
constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
template <class Real>
constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();

// x[i] without taking an address: an array without an address may stay in registers.
template <class T, int N>
HOOKSTATS_DEVICE T pick(const T (&x)[N], int i) {
  T picked = x[0];
  HOOKSTATS_UNROLL
  for (int j = 1; j < N; ++j) {
    if (j == i) picked = x[j];
  }
  return picked;
}

template <class T, int N>
HOOKSTATS_DEVICE void put(T (&x)[N], int i, T value) {
  HOOKSTATS_UNROLL
  for (int j = 0; j < N; ++j) {
    if (j == i) x[j] = value;
  }
}

// Takes the first N of M values away, and moves the others up: where a loop does that as often as
// there are N, nothing is chosen by an index.
template <class T, int M, int N>
HOOKSTATS_DEVICE void move_up(T (&x)[M], T (&first)[N]) {
  HOOKSTATS_UNROLL
  for (int i = 0; i < N; ++i) first[i] = x[i];
  HOOKSTATS_UNROLL
  for (int i = N; i < M; ++i) x[i - N] = x[i];
}

template <class Real>
HOOKSTATS_DEVICE bool is_finite(Real x) {
  return std::fabs(x) < kInfinity<Real>;
}

// The power of two that brings values of a magnitude, given as the bits of one, near 1: squares of
// gradients are often below the normal range of fp32. 1 where nothing is known.
HOOKSTATS_DEVICE float factor_for(uint32_t magnitude) {
  constexpr uint32_t kOne = 127, kFarthest = 100;
  const uint32_t exponent = magnitude >> 23;
  if (magnitude == 0 || exponent == 255) return 1;
  const uint32_t least = kOne - kFarthest, greatest = kOne + kFarthest;
  const uint32_t within = exponent < least ? least : exponent > greatest ? greatest : exponent;
  return float_from_bits((2 * kOne - within) << 23);
}

// The bits of |x|, or 0 if x is not finite.
HOOKSTATS_DEVICE uint32_t magnitude_of(float x) {
  const uint32_t bits = bits_from_float(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0;
}

// Has `instead` take the place of a value that is not finite, and counts it in `lost`; the
// magnitude of a finite one goes into the sum `l1`. Returns whether it is finite.
HOOKSTATS_PREDICATED bool replace_nonfinite(float& x, float instead, float& l1, uint32_t& lost) {
  const float magnitude = std::fabs(x);
  const bool finite = magnitude < kInfinity<float>;
  l1 += finite ? magnitude : 0.0f;
  lost += finite ? 0 : 1;
  x = finite ? x : instead;
  return finite;
}

// Sums of a few values, all of which are finite if the sum of squares is: half the instructions of
// sums that leave out what is not. The least and greatest values, and zeros, are found in memory's
// own words. Deviations are multiplied by a power of two.
struct TileSums {
  float s1 = 0, s2 = 0, l1 = 0;

  // `offset` is the shift times -factor.
  HOOKSTATS_DEVICE void add(float x, float factor, float offset) {
    add_deviation(x, factor, offset);
    l1 += std::fabs(x);
  }
  // The same without |x|.
  HOOKSTATS_DEVICE void add_deviation(float x, float factor, float offset) {
    const float d = std::fma(x, factor, offset);
    s1 += d;
    s2 = std::fma(d, d, s2);
  }
  HOOKSTATS_DEVICE bool finite() const { return s2 < kInfinity<float>; }
};

// The tallies of finite values of each element of `kWords` words of T side by side, each fewer than
// 65536.
template <class T, int kWords>
struct WordTallies {
  // Of words of two elements, sums of all bits of those that count; of fp32 numbers, for which
  // additions are the cheaper ones.
  using Sum = std::conditional_t<sizeof(T) == 4, float, uint32_t>;
  Sum sums[kValueTallies][kWords] = {};

  HOOKSTATS_DEVICE void add(int i, uint32_t word) { sums[kZero - kZero][i] += zeros_of<T>(word); }
  // Adds the value of element `i` of words of two elements.
  HOOKSTATS_DEVICE void add_one(int i, float x) {
    const uint32_t bits = i % 2 == 0 ? 0xffffu : 0xffff0000u;
    sums[kZero - kZero][i / 2 % kWords] += x == 0 ? bits : 0;
  }
  // The tally of element `i` of the words.
  HOOKSTATS_DEVICE uint32_t of(int tally, int i) const {
    if constexpr (sizeof(T) == 4) return static_cast<uint32_t>(sums[tally][i]);
    const uint32_t sum = static_cast<uint32_t>(sums[tally][i / 2]), first = (0 - sum) & 0xffffu;
    return i % 2 == 0 ? first : (first - ((sum + first) >> 16)) & 0xffffu;
  }
  // Of all elements of one word.
  HOOKSTATS_DEVICE uint32_t all(int tally = 0) const {
    static_assert(kWords == 1);
    if constexpr (sizeof(T) == 4) return of(tally, 0);
    const uint32_t each = 0 - static_cast<uint32_t>(sums[tally][0]);
    return (2 * each + (each >> 16)) & 0xffffu;
  }
};

// What is no sum: the least and greatest finite values, and how many are infinite.
template <class Real>
struct Others {
  Real least = kInfinity<Real>, greatest = -kInfinity<Real>;
  uint32_t posinf = 0, neginf = 0;

  HOOKSTATS_DEVICE void add_infinity(Real x) {
    posinf += x == kInfinity<Real>;
    neginf += x == -kInfinity<Real>;
  }
  HOOKSTATS_DEVICE void add_others(const Others& other) {
    least = std::fmin(least, other.least);
    greatest = std::fmax(greatest, other.greatest);
    posinf += other.posinf;
    neginf += other.neginf;
  }
};

// Sums in Real of at most kAdditions values, of which those that are not finite take no part.
template <class Real>
struct Sums : Others<Real> {
  Real s1 = 0, s2 = 0, l1 = 0;                   // of x - shift, its square, |x|
  Real finite = 0, tallied[kValueTallies] = {};  // in Real, whose additions are the cheaper ones

  // `factor` and `offset` as in TileSums; in fp64 the factor is 1.
  HOOKSTATS_DEVICE void add(Real x, [[maybe_unused]] Real factor, Real offset) {
    Real& least = this->least;
    Real& greatest = this->greatest;
    if constexpr (sizeof(Real) == sizeof(float)) {
      add_if_finite(x, factor, offset, s1, s2, l1, least, greatest, finite);
    } else if (is_finite(x)) {
      const Real d = x + offset;
      s1 += d;
      s2 += d * d;
      l1 += std::fabs(x);
      least = std::fmin(least, x);
      greatest = std::fmax(greatest, x);
      finite += 1;
    }
    tallied[kZero - kZero] += x == 0 ? Real{1} : Real{0};
  }
};

// Sums of all of a thread's values, in fp64.
template <class Real>
struct Totals : Others<Real> {
  double wide_s1 = 0, wide_s2 = 0, wide_l1 = 0;
  uint32_t wide_finite = 0, tallied[kValueTallies] = {};

  // Adds the sums of `count` finite values, about the same shift and by the same factor.
  template <class T>
  HOOKSTATS_DEVICE void add(const TileSums& tile, const WordTallies<T, 1>& tallies, int count) {
    wide_s1 += static_cast<double>(tile.s1);
    wide_s2 += static_cast<double>(tile.s2);
    wide_l1 += static_cast<double>(tile.l1);
    wide_finite += static_cast<uint32_t>(count);
    HOOKSTATS_UNROLL
    for (int t = 0; t < kValueTallies; ++t) tallied[t] += tallies.all(t);
  }

  // Adds sums about the same shift and by the same factor, but for what is no sum.
  HOOKSTATS_DEVICE void add_sums(const Sums<Real>& sums) {
    wide_s1 += static_cast<double>(sums.s1);
    wide_s2 += static_cast<double>(sums.s2);
    wide_l1 += static_cast<double>(sums.l1);
    wide_finite += static_cast<uint32_t>(sums.finite);
    HOOKSTATS_UNROLL
    for (int t = 0; t < kValueTallies; ++t) tallied[t] += static_cast<uint32_t>(sums.tallied[t]);
  }

  // Adds totals about the same shift.
  HOOKSTATS_DEVICE void add(const Totals& other) {
    wide_s1 += other.wide_s1;
    wide_s2 += other.wide_s2;
    wide_l1 += other.wide_l1;
    wide_finite += other.wide_finite;
    HOOKSTATS_UNROLL
    for (int t = 0; t < kValueTallies; ++t) tallied[t] += other.tallied[t];
    this->add_others(other);
  }

  // Every lane gets the sums of all of its `lanes` neighbours, a power of two, which have one
  // shift.
  HOOKSTATS_DEVICE void reduce(int lanes) {
    HOOKSTATS_NO_UNROLL
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      wide_s1 += shuffle_xor(wide_s1, mask);
      wide_s2 += shuffle_xor(wide_s2, mask);
      wide_l1 += shuffle_xor(wide_l1, mask);
      this->least = std::fmin(this->least, shuffle_xor(this->least, mask));
      this->greatest = std::fmax(this->greatest, shuffle_xor(this->greatest, mask));
      wide_finite += shuffle_xor(wide_finite, mask);
      HOOKSTATS_UNROLL
      for (uint32_t& each : tallied) each += shuffle_xor(each, mask);
      this->posinf += shuffle_xor(this->posinf, mask);
      this->neginf += shuffle_xor(this->neginf, mask);
    }
  }

  HOOKSTATS_DEVICE uint32_t zeros() const { return tallied[kZero - kZero]; }

  // Sums by a factor, as they are without it.
  HOOKSTATS_DEVICE void unscale(float factor) {
    const double back = 1.0 / static_cast<double>(factor);
    wide_s1 *= back;
    wide_s2 *= back * back;
  }

  // The least square that keeps its digits in sums by a factor.
  static HOOKSTATS_DEVICE double least_square(float factor) {
    const double back = 1.0 / static_cast<double>(factor);
    return 1e-30 * back * back;
  }

  // Whether the sums can be trusted, of which squares below `least` lost digits. If not, they must
  // be made again, in fp64 around `mean`.
  HOOKSTATS_DEVICE bool trusted(double least) const {
    constexpr bool kSingle = sizeof(Real) == sizeof(float);
    if (wide_finite == 0) return true;
    if (!(wide_s2 < kInfinity<double>) || !(wide_l1 < kInfinity<double>)) return false;
    if (wide_s2 == 0.0 && this->least == this->greatest) return true;  // constant
    const double n = static_cast<double>(wide_finite);
    // Squares below the normal range of fp32 lose digits.
    if (kSingle && wide_s2 < n * least) return false;
    // A shift far from the mean costs digits: s2 is then much more than m2. The CPU adds 64 times
    // and lets s2 be 3 times m2; half the additions may have twice that.
    constexpr double kMost = kSingle ? 3.0 * 64 / kAdditions - 1 : 1e4;
    const double off = wide_s1 * wide_s1;
    return off <= kMost * (wide_s2 * n - off);
  }

  // A finite value close to the mean, as far as sums tell it.
  HOOKSTATS_DEVICE double mean(double shift) const {
    const double mean = shift + wide_s1 / static_cast<double>(wide_finite);
    return is_finite(mean) ? mean : shift;
  }

  // All but the count of NaNs: the caller knows the number of elements.
  HOOKSTATS_DEVICE Channel channel(double shift) const {
    Channel c;
    c.count = wide_finite;
    c.posinf = this->posinf;
    c.neginf = this->neginf;
    if (wide_finite == 0) return c;
#define HOOKSTATS_TALLY(field, column) c.field = tallied[column - kZero];
    HOOKSTATS_VALUE_TALLIES(HOOKSTATS_TALLY)
#undef HOOKSTATS_TALLY
    const double ahead = wide_s1 / static_cast<double>(wide_finite);
    c.mean = shift + ahead;
    c.m2 = wide_s2 - wide_s1 * ahead;
    // Rounding may leave m2 just below zero; fp64 squares that overflowed leave inf - inf.
    if (!(c.m2 > 0.0)) c.m2 = wide_s2 < kInfinity<double> ? 0.0 : wide_s2;
    c.min = static_cast<double>(this->least);
    c.max = static_cast<double>(this->greatest);
    c.l1 = wide_l1;
    return c;
  }
};

// Of sums about the same shift.
template <class Real>
HOOKSTATS_DEVICE void merge(Totals<Real>& into, const Totals<Real>& from) {
  into.add(from);
}

// Sums again what fp32 could not hold: the sums alone, as the rest was right.
struct WideSums {
  double s1 = 0, s2 = 0, l1 = 0;

  HOOKSTATS_DEVICE void add(double x, double shift) {
    if (!is_finite(x)) return;
    const double d = x - shift;
    s1 += d;
    s2 += d * d;
    l1 += std::fabs(x);
  }
  HOOKSTATS_DEVICE void add(const WideSums& other) {
    s1 += other.s1;
    s2 += other.s2;
    l1 += other.l1;
  }
  HOOKSTATS_DEVICE void reduce(int lanes) {
    HOOKSTATS_NO_UNROLL
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      s1 += shuffle_xor(s1, mask);
      s2 += shuffle_xor(s2, mask);
      l1 += shuffle_xor(l1, mask);
    }
  }
  template <class Real>
  HOOKSTATS_DEVICE void replace(Totals<Real>& totals) const {
    totals.wide_s1 = s1;
    totals.wide_s2 = s2;
    totals.wide_l1 = l1;
  }
};

// N values, with the first finite one in the place of those that are not finite; NaN if none is.
template <int N, class Real>
HOOKSTATS_DEVICE void replace_nonfinite(Real (&x)[N]) {
  Real instead = kNaN<Real>;
  HOOKSTATS_UNROLL
  for (int i = N - 1; i >= 0; --i) instead = is_finite(x[i]) ? x[i] : instead;
  HOOKSTATS_UNROLL
  for (int i = 0; i < N; ++i) x[i] = is_finite(x[i]) ? x[i] : instead;
}

// The mean of N values by a tree, which is exact if all are equal; NaN if none is finite. N is a
// power of two.
template <int N, class Real>
HOOKSTATS_DEVICE Real tree_mean(const Real (&x)[N]) {
  Real tree[N];
  HOOKSTATS_UNROLL
  for (int i = 0; i < N; ++i) tree[i] = x[i];
  replace_nonfinite(tree);
  HOOKSTATS_UNROLL
  for (int half = N / 2; half > 0; half /= 2) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < half; ++i) tree[i] += tree[i + half];
  }
  return tree[0] * (Real{1} / N);
}

// The lower median of N values, which it sorts; NaN if none is finite.
template <int N, class Real>
HOOKSTATS_DEVICE Real median(Real (&x)[N]) {
  replace_nonfinite(x);
  HOOKSTATS_UNROLL
  for (int round = 0; round < N; ++round) {  // odd-even transposition
    HOOKSTATS_UNROLL
    for (int i = round % 2; i + 1 < N; i += 2) {
      const Real lesser = std::fmin(x[i], x[i + 1]);
      x[i + 1] = std::fmax(x[i], x[i + 1]);
      x[i] = lesser;
    }
  }
  return x[(N - 1) / 2];
}

// The mean of the values of each kLanes neighbouring lanes, likewise; 0 if there is none.
template <int kLanes, class Real>
HOOKSTATS_DEVICE Real lanes_mean(Real x) {
  int first = is_finite(x) ? lane() : kWarp;
  HOOKSTATS_UNROLL
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    const int other = shuffle_xor(first, mask);
    first = other < first ? other : first;
  }
  const Real instead = shuffle_from(x, first % kWarp);
  if (!is_finite(x)) x = instead;
  HOOKSTATS_UNROLL
  for (int mask = kLanes / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  x *= Real{1} / kLanes;
  return is_finite(x) ? x : Real{0};
}

// The greatest magnitude of a warp's values, each of which has N.
template <int N>
HOOKSTATS_DEVICE uint32_t warp_magnitude(const float (&x)[N]) {
  uint32_t greatest = 0;
  HOOKSTATS_UNROLL
  for (const float each : x) {
    const uint32_t magnitude = magnitude_of(each);
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  HOOKSTATS_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const uint32_t other = shuffle_xor(greatest, mask);
    greatest = other > greatest ? other : greatest;
  }
  return greatest;
}

}  // namespace hookstats::cuda
