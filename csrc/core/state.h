// The mergeable statistics of one channel, and the rows of the state tensors that hold them.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/macros.h"

namespace hookstats {

// Columns of the `moments` tensor (float64) and of the `tallies` tensor (int64). The higher moments
// are optional: a `moments` tensor has kMomentColumns or, with them, kHigherColumns.
enum MomentColumn {
  kMean,
  kM2,
  kMin,
  kMax,
  kL1,
  kMomentColumns,
  kM3 = kMomentColumns,
  kM4,
  kHigherColumns
};
enum TallyColumn { kCount, kNan, kPosInf, kNegInf, kZero, kTallyColumns };

// Moments, min, max and l1 are over the `count` finite values; infinities and NaNs are tallied.
// A default Channel is the identity of `merge`.
struct Channel {
  static constexpr int kColumns = kMomentColumns;

  int64_t count = 0;
  int64_t nan = 0;
  int64_t posinf = 0;
  int64_t neginf = 0;
  int64_t zero = 0;
  double mean = 0.0;
  double m2 = 0.0;  // sum of squared deviations from the mean
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double l1 = 0.0;
};

// The same with the sums of the third and fourth powers of the deviations from the mean: infinite
// or NaN where a double cannot hold them.
struct HigherChannel : Channel {
  static constexpr int kColumns = kHigherColumns;

  double m3 = 0.0;
  double m4 = 0.0;
};

template <bool kHigher>
using ChannelOf = std::conditional_t<kHigher, HigherChannel, Channel>;

// Chan, Golub, LeVeque (1979): the parallel update of mean and m2.
HOOKSTATS_HOST_DEVICE inline void merge(Channel& into, const Channel& from) {
  into.nan += from.nan;
  into.posinf += from.posinf;
  into.neginf += from.neginf;
  if (from.count == 0) return;
  if (into.count == 0) {
    into.mean = from.mean;
    into.m2 = from.m2;
  } else {
    const double n = static_cast<double>(into.count) + static_cast<double>(from.count);
    const double share = static_cast<double>(from.count) / n;
    const double delta = from.mean - into.mean;
    into.m2 += from.m2 + delta * delta * (static_cast<double>(into.count) * share);
    into.mean += delta * share;
  }
  into.count += from.count;
  into.zero += from.zero;
  into.min = from.min < into.min ? from.min : into.min;
  into.max = from.max > into.max ? from.max : into.max;
  into.l1 += from.l1;
}

// Pebay (2008), formulas 2.1: the moments of either side are moved to the common mean, then added.
HOOKSTATS_HOST_DEVICE inline void merge(HigherChannel& into, const HigherChannel& from) {
  if (from.count != 0 && into.count == 0) {
    into.m3 = from.m3;
    into.m4 = from.m4;
  } else if (from.count != 0) {
    const double n_into = static_cast<double>(into.count), n_from = static_cast<double>(from.count);
    const double delta = from.mean - into.mean;
    const double behind = delta * (n_from / (n_into + n_from));  // mean of `into` to the common one
    const double ahead = delta - behind;                         // and from there to that of `from`
    const double behind2 = behind * behind, ahead2 = ahead * ahead;
    into.m4 += from.m4 + 4.0 * (ahead * from.m3 - behind * into.m3) +
               6.0 * (ahead2 * from.m2 + behind2 * into.m2) +
               (n_into * behind2 * behind2 + n_from * ahead2 * ahead2);
    into.m3 += from.m3 + 3.0 * (ahead * from.m2 - behind * into.m2) +
               (n_from * ahead2 * ahead - n_into * behind2 * behind);
  }
  merge(static_cast<Channel&>(into), from);
}

// The statistics of a channel that is repeated `times` times, as in an expanded (stride 0) tensor.
HOOKSTATS_HOST_DEVICE inline void repeat(Channel& channel, int64_t times) {
  channel.count *= times;
  channel.nan *= times;
  channel.posinf *= times;
  channel.neginf *= times;
  channel.zero *= times;
  channel.m2 *= static_cast<double>(times);
  channel.l1 *= static_cast<double>(times);
}
HOOKSTATS_HOST_DEVICE inline void repeat(HigherChannel& channel, int64_t times) {
  repeat(static_cast<Channel&>(channel), times);
  channel.m3 *= static_cast<double>(times);
  channel.m4 *= static_cast<double>(times);
}

// A row of the state tensors, C::kColumns of moments, to and from a channel. These are overloads
// and no template: the linker might use what a file for one instruction set instantiates in all
// files.
HOOKSTATS_HOST_DEVICE inline void load_row(Channel& c, const double* moments,
                                           const int64_t* tallies) {
  c.count = tallies[kCount];
  c.nan = tallies[kNan];
  c.posinf = tallies[kPosInf];
  c.neginf = tallies[kNegInf];
  c.zero = tallies[kZero];
  c.mean = moments[kMean];
  c.m2 = moments[kM2];
  c.min = moments[kMin];
  c.max = moments[kMax];
  c.l1 = moments[kL1];
}
HOOKSTATS_HOST_DEVICE inline void load_row(HigherChannel& c, const double* moments,
                                           const int64_t* tallies) {
  load_row(static_cast<Channel&>(c), moments, tallies);
  c.m3 = moments[kM3];
  c.m4 = moments[kM4];
}

HOOKSTATS_HOST_DEVICE inline void store_row(const Channel& c, double* moments, int64_t* tallies) {
  tallies[kCount] = c.count;
  tallies[kNan] = c.nan;
  tallies[kPosInf] = c.posinf;
  tallies[kNegInf] = c.neginf;
  tallies[kZero] = c.zero;
  moments[kMean] = c.mean;
  moments[kM2] = c.m2;
  moments[kMin] = c.min;
  moments[kMax] = c.max;
  moments[kL1] = c.l1;
}
HOOKSTATS_HOST_DEVICE inline void store_row(const HigherChannel& c, double* moments,
                                            int64_t* tallies) {
  store_row(static_cast<const Channel&>(c), moments, tallies);
  moments[kM3] = c.m3;
  moments[kM4] = c.m4;
}

}  // namespace hookstats
