// The mergeable statistics of one channel, and the rows of the state tensors that hold them.
#pragma once

#include <cstdint>
#include <limits>

#include "core/macros.h"

namespace hookstats {

// Columns of the `moments` tensor (float64) and of the `tallies` tensor (int64).
enum MomentColumn { kMean, kM2, kMin, kMax, kL1, kMomentColumns };
enum TallyColumn { kCount, kNan, kPosInf, kNegInf, kZero, kTallyColumns };

// Moments, min, max and l1 are over the `count` finite values; infinities and NaNs are tallied.
// A default Channel is the identity of `merge`.
struct Channel {
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

// The statistics of a channel seen `times` times over, as an expanded (stride 0) tensor shows it.
HOOKSTATS_HOST_DEVICE inline void repeat(Channel& channel, int64_t times) {
  channel.count *= times;
  channel.nan *= times;
  channel.posinf *= times;
  channel.neginf *= times;
  channel.zero *= times;
  channel.m2 *= static_cast<double>(times);
  channel.l1 *= static_cast<double>(times);
}

HOOKSTATS_HOST_DEVICE inline Channel load_row(const double* moments, const int64_t* tallies) {
  return {tallies[kCount], tallies[kNan], tallies[kPosInf], tallies[kNegInf], tallies[kZero],
          moments[kMean],  moments[kM2],  moments[kMin],    moments[kMax],    moments[kL1]};
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

}  // namespace hookstats
