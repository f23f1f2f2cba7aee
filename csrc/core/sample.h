// Which elements a sampled histogram counts: of every `every` consecutive units of 16 elements in
// logical order one, chosen by its place and the step.
//
// stats/sample.py does the same, to the bit.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace hookstats {

constexpr int64_t kUnit = 16;             // elements: a cache line of fp32, a vector of the kernels
constexpr int64_t kAutoElements = 65536;  // counted at least, if larger tensors are sampled
constexpr int64_t kMostEvery = 1 << 20;

// Columns of the `sampling` tensor (int64): the step, and the `every` of the tensor's and of the
// channels' histograms; 0 leaves it to `automatic_every`.
enum SamplingColumn { kStep, kTensorEvery, kChannelEvery, kSamplingColumns };

// At most kMostEvery, though that is only reached beyond 2^36 elements.
HOOKSTATS_HOST_DEVICE constexpr int64_t automatic_every(int64_t elements) {
  if (elements < 2 * kAutoElements) return 1;
  return elements / kAutoElements < kMostEvery ? elements / kAutoElements : kMostEvery;
}

// The finalizer of MurmurHash3.
HOOKSTATS_HOST_DEVICE inline uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ (h >> 16);
}

struct Sample {
  int64_t every = 1;  // 1: every element is counted
  int64_t units = 0;  // of the tensor
  uint32_t seed = 0;

  // Eight neighbouring groups choose in each eighth of a group once, in a random order: data that
  // repeat every 2, 4 or 8 units are counted evenly. The order is r -> a r + b in the field of 8
  // elements, with random a != 0 and b: any two groups choose as if the order were any of all.
  struct Order {
    uint32_t eighths;  // in four bits each

    HOOKSTATS_HOST_DEVICE uint32_t of(uint32_t group) const {
      return eighths >> (group & 7) * 4 & 7;
    }
  };

  HOOKSTATS_HOST_DEVICE bool all() const { return every == 1; }
  HOOKSTATS_HOST_DEVICE int64_t groups() const { return (units + every - 1) / every; }

  // The order of the eight groups among which `group` is.
  HOOKSTATS_HOST_DEVICE Order order_of(int64_t group) const {
    const uint32_t turn = mix(((static_cast<uint32_t>(group) >> 3) + 0x9e3779b9u) ^ seed);
    const uint32_t a = 1 + static_cast<uint32_t>((uint64_t{turn} * 7) >> 32), b = turn & 7;
    const uint32_t a2 = (a << 1) ^ ((a >> 2) * 11), a4 = (a2 << 1) ^ ((a2 >> 2) * 11);
    return {a * 0x10101010u ^ a2 * 0x11001100u ^ a4 * 0x11110000u ^ b * 0x11111111u};
  }

  // The unit that is counted of a group. The last group may have fewer units than others.
  HOOKSTATS_HOST_DEVICE int64_t unit_of(int64_t group, const Order& order) const {
    const uint32_t low = static_cast<uint32_t>(group);
    const uint32_t fraction = order.of(low) << 29 | mix(low ^ seed) >> 3;  // of 2^32
    const int64_t first = group * every, left = units - first;
    const auto choice = static_cast<uint32_t>(left < every ? left : every);
    return first + static_cast<int64_t>((uint64_t{fraction} * choice) >> 32);
  }
  HOOKSTATS_HOST_DEVICE int64_t unit_of(int64_t group) const {
    return unit_of(group, order_of(group));
  }
};

// `every` as it stands in the sampling tensor; `elements` are those in memory, which expanded
// dimensions do not repeat.
HOOKSTATS_HOST_DEVICE inline Sample make_sample(int64_t every, int64_t step, int64_t elements) {
  Sample sample;
  sample.every = every <= 0 ? automatic_every(elements) : every < kMostEvery ? every : kMostEvery;
  sample.units = (elements + kUnit - 1) / kUnit;
  const auto bits = static_cast<uint64_t>(step);
  sample.seed = mix(static_cast<uint32_t>(bits) ^ mix(static_cast<uint32_t>(bits >> 32)));
  return sample;
}

}  // namespace hookstats
