// The mergeable statistics of one channel, and the rows of the state tensors that hold them.
#pragma once

#include <cstdint>
#include <limits>

#include "core/macros.h"

namespace hookstats {

// Every statistic of a channel, in the order of its tensor's columns: X(field, column). Moments are
// float64, tallies int64. stats/state.py has the same table. Moments that are sums come last, as do
// the tallies of finite values.
#define HOOKSTATS_SUMS(X) X(l1, kL1)
#define HOOKSTATS_MOMENTS(X) X(mean, kMean) X(m2, kM2) X(min, kMin) X(max, kMax) HOOKSTATS_SUMS(X)
#define HOOKSTATS_VALUE_TALLIES(X) X(zero, kZero)
#define HOOKSTATS_TALLIES(X) \
  X(count, kCount) X(nan, kNan) X(posinf, kPosInf) X(neginf, kNegInf) HOOKSTATS_VALUE_TALLIES(X)

#define HOOKSTATS_COLUMN(field, column) column,
enum MomentColumn { HOOKSTATS_MOMENTS(HOOKSTATS_COLUMN) kMomentColumns };
enum TallyColumn { HOOKSTATS_TALLIES(HOOKSTATS_COLUMN) kTallyColumns };
#undef HOOKSTATS_COLUMN
constexpr int kValueTallies = kTallyColumns - kZero;

// Moments are over the `count` finite values; infinities and NaNs are tallied. A default Channel is
// the identity of `merge`.
struct Channel {
  double mean = 0.0;
  double m2 = 0.0;  // sum of squared deviations from the mean
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
#define HOOKSTATS_FIELD(field, column) double field = 0.0;
  HOOKSTATS_SUMS(HOOKSTATS_FIELD)
#undef HOOKSTATS_FIELD
#define HOOKSTATS_FIELD(field, column) int64_t field = 0;
  HOOKSTATS_TALLIES(HOOKSTATS_FIELD)
#undef HOOKSTATS_FIELD
};

// Chan, Golub, LeVeque (1979): the parallel update of mean and m2.
HOOKSTATS_HOST_DEVICE inline void merge(Channel& into, const Channel& from) {
  if (from.count != 0 && into.count == 0) {
    into.mean = from.mean;
    into.m2 = from.m2;
  } else if (from.count != 0) {
    const double n = static_cast<double>(into.count) + static_cast<double>(from.count);
    const double share = static_cast<double>(from.count) / n;
    const double delta = from.mean - into.mean;
    into.m2 += from.m2 + delta * delta * (static_cast<double>(into.count) * share);
    into.mean += delta * share;
  }
  into.min = from.min < into.min ? from.min : into.min;
  into.max = from.max > into.max ? from.max : into.max;
#define HOOKSTATS_ADD(field, column) into.field += from.field;
  HOOKSTATS_SUMS(HOOKSTATS_ADD)
  HOOKSTATS_TALLIES(HOOKSTATS_ADD)
#undef HOOKSTATS_ADD
}

// The statistics of a channel that is repeated `times` times, as in an expanded (stride 0) tensor.
HOOKSTATS_HOST_DEVICE inline void repeat(Channel& channel, int64_t times) {
  channel.m2 *= static_cast<double>(times);
#define HOOKSTATS_MULTIPLY(field, column) channel.field *= static_cast<double>(times);
  HOOKSTATS_SUMS(HOOKSTATS_MULTIPLY)
#undef HOOKSTATS_MULTIPLY
#define HOOKSTATS_MULTIPLY(field, column) channel.field *= times;
  HOOKSTATS_TALLIES(HOOKSTATS_MULTIPLY)
#undef HOOKSTATS_MULTIPLY
}

// A row of the state tensors to and from a channel.
HOOKSTATS_HOST_DEVICE inline void load_row(Channel& c, const double* moments,
                                           const int64_t* tallies) {
#define HOOKSTATS_LOAD(field, column) c.field = moments[column];
  HOOKSTATS_MOMENTS(HOOKSTATS_LOAD)
#undef HOOKSTATS_LOAD
#define HOOKSTATS_LOAD(field, column) c.field = tallies[column];
  HOOKSTATS_TALLIES(HOOKSTATS_LOAD)
#undef HOOKSTATS_LOAD
}

HOOKSTATS_HOST_DEVICE inline void store_row(const Channel& c, double* moments, int64_t* tallies) {
#define HOOKSTATS_STORE(field, column) moments[column] = c.field;
  HOOKSTATS_MOMENTS(HOOKSTATS_STORE)
#undef HOOKSTATS_STORE
#define HOOKSTATS_STORE(field, column) tallies[column] = c.field;
  HOOKSTATS_TALLIES(HOOKSTATS_STORE)
#undef HOOKSTATS_STORE
}

}  // namespace hookstats
