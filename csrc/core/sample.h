// Which elements a sampled histogram counts: of every `every` consecutive blocks of 64 elements
// one.
//
// Elements are numbered as kernels walk a ChannelView: by outer index, then by channel, then by
// inner index. The element (o, c, i) has the position (o * channels + c) * inner.size + i. `o`
// counts all rows of a masked tensor, those that the mask leaves out, too, and elements that
// expanded dimensions repeat have one position. Block b has the positions from 64 b on. Of the
// blocks group * every and on, of which there are `every` (fewer in the last group),
// block_of(group) is counted: its place in the group goes on by the golden ratio from group to
// group, so that data that repeat are counted evenly, and begins at a hash of the step.
//
// stats/sample.py does the same, to the bit.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace hookstats {

constexpr int64_t kSampleBlock = 64;      // elements
constexpr int64_t kAutoElements = 65536;  // counted at least, if larger tensors are sampled
constexpr int64_t kMostEvery = 1 << 20;

// Columns of the `sampling` tensor (int64): the step, and the `every` of the tensor's and of the
// channels' histograms; 0 leaves it to `automatic_every`. Those of graphs have one more, whether
// the step is recorded: where it is 0, an update does nothing.
enum SamplingColumn { kStep, kTensorEvery, kChannelEvery, kSamplingColumns };
constexpr int kRecorded = kSamplingColumns;

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
  int64_t every = 1;   // 1: every element is counted
  int64_t blocks = 0;  // of the tensor
  uint32_t seed = 0;

  HOOKSTATS_HOST_DEVICE bool all() const { return every == 1; }
  HOOKSTATS_HOST_DEVICE int64_t groups() const { return (blocks + every - 1) / every; }

  // The block that is counted of a group.
  HOOKSTATS_HOST_DEVICE int64_t block_of(int64_t group) const {
    const int64_t first = group * every, left = blocks - first;
    const auto choice = static_cast<uint32_t>(left < every ? left : every);
    const uint32_t fraction = static_cast<uint32_t>(group) * 0x9e3779b9u + seed;  // of 2^32
    return first + static_cast<int64_t>((uint64_t{fraction} * choice) >> 32);
  }
};

// `every` as it stands in the sampling tensor; `elements` are those in memory, which expanded
// dimensions do not repeat.
HOOKSTATS_HOST_DEVICE inline Sample make_sample(int64_t every, int64_t step, int64_t elements) {
  Sample sample;
  sample.every = every <= 0 ? automatic_every(elements) : every < kMostEvery ? every : kMostEvery;
  sample.blocks = (elements + kSampleBlock - 1) / kSampleBlock;
  const auto bits = static_cast<uint64_t>(step);
  sample.seed = mix(static_cast<uint32_t>(bits) ^ mix(static_cast<uint32_t>(bits >> 32)));
  return sample;
}

}  // namespace hookstats
