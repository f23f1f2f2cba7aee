// The arguments of a launch: one tensor or many, how each is cut into splits, and what all share.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/update_params.h"

namespace hookstats::cuda {

// n / divisor for n < 2^31 without a division: Granlund and Montgomery (1994), as in PyTorch's
// IntegerDivider.
struct Divisor {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  HOOKSTATS_HOST_DEVICE uint32_t quotient(uint32_t n) const {
    const uint32_t high = static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32);
    return (high + n) >> shift;
  }
};

inline Divisor make_divisor(uint32_t divisor) {
  Divisor d;
  d.divisor = divisor;
  while ((uint64_t{1} << d.shift) < divisor) ++d.shift;
  const uint64_t one = 1;
  d.multiplier = static_cast<uint32_t>((one << 32) * ((one << d.shift) - divisor) / divisor + 1);
  return d;
}

// After how many rows, at most 16, the place is the same again where a row begins in a vector of
// `bytes`, a power of two.
HOOKSTATS_HOST_DEVICE inline int rows_alike(int64_t row_bytes, int bytes) {
  const int64_t within = row_bytes & (bytes - 1);
  return within == 0 ? 1 : bytes / static_cast<int>(within & -within);
}

// The most threads, of `owned` neighbouring elements each, that have some of `size` neighbouring
// ones.
HOOKSTATS_HOST_DEVICE inline int most_sharing(int size, int owned) {
  return (size + owned - 2) / owned + 1;
}

// What a thread leaves in shared memory for others to merge: entries side by side begin in banks of
// their own, as an entry has an odd number of words of 8 bytes.
template <class T>
struct Padded : T {
  uint64_t padding;
};
template <class T>
using Entry = std::conditional_t<sizeof(T) % 16 == 0, Padded<T>, T>;

// One tensor, cut: each of its channels (or blocks of neighbouring channels) is cut into
// `splits()` splits, each the work of one cooperative group. Shape, alignment and Device alone
// decide.
struct Item {
  const void* data;
  const void* end;  // of the tensor's memory, where it is read in vectors
  double* moments;
  int64_t* tallies;
  int64_t* tensor_counts;
  int64_t* channel_counts;
  uint64_t* partials;        // [fields of Channel][splits][channels], if splits > 1
  uint32_t* block_counters;  // one per channel (or block of channels), if splits > 1
  int64_t channels, channel_stride;
  int64_t inner_size, inner_stride;
  int64_t outer_size;
  int64_t repeat;
  int64_t row_step;    // outer indices per split
  int64_t inner_step;  // elements of a row per split; of maps, those of all channels of a block
  Divisor slots;  // runs: slots of a split's part of a row. Columns, maps: threads side by side
  int32_t row_splits, inner_splits;
  int32_t channel_blocks;  // channels, or blocks of channels
  int32_t groups;          // runs: cooperative groups per block: some lanes, a warp or the block
  int32_t first_block, blocks;
  int32_t outer_dims;
  bool dense;  // whether positions in core/sample.h are offsets in memory
  // Columns: how many rows of few channels are read as one, which has as many columns of each
  // channel; `outer_size` has such rows, and `inner_splits` is the same.
  uint8_t joined;

  HOOKSTATS_HOST_DEVICE int64_t columns() const { return channels * joined; }
  HOOKSTATS_HOST_DEVICE int64_t elements() const { return columns() * outer_size * inner_size; }
  HOOKSTATS_HOST_DEVICE int32_t splits() const { return row_splits * inner_splits; }
};

// The layout of a block's shared memory: offsets in bytes, -1 for parts that it does not have.
struct Shared {
  int32_t tensor_edges = -1, channel_edges = -1;
  int32_t tensor_table = -1, channel_table = -1;
  int32_t counters = 0, counters_size = 0;  // both tables, after four that nobody reads
  int32_t tensor_patterns = 0;  // the tensor's table is of patterns (see counting.cuh): how many
  int32_t histograms = 0;       // two, as a block sees them; see counting.cuh
  int32_t scratch = 0;          // of merges
  int32_t tensor_copies = 1, channel_copies = 1;  // counters of a slot of a run, a power of two
};

// The mask of a tensor, for kernels that leave rows out; see kept.cuh.
struct RowFlags {
  const uint8_t* flags = nullptr;  // of each row, not zero where it is kept
  int64_t row_positions = 1;       // elements of a row
  int64_t row_outer = 1;           // outer indices of a row
  Divisor by_row_outer;            // for indices below `kMostDivided`
};
constexpr int64_t kMostDivided = (int64_t{1} << 31) - 1;

struct Common {
  DType dtype;
  int32_t element_size;
  Bins tensor_bins, channel_bins;
  float scale;
  const float* device_scale;
  const int64_t *sampling, *recorded;  // as in UpdateParams
  Shared shared;
  RowFlags rows;
};

// Arguments of a kernel are at most 32,764 bytes on sm_70 and later (CUDA >= 12.1).
template <int kItems>
struct Table {
  static constexpr int kDims = kItems == 1 ? kMaxDims : 2;  // outer dimensions of an item
  Common common;
  int32_t count;
  Item items[kItems];
  Dim outer[kItems * kDims];
};

constexpr int kMany = 150;
static_assert(sizeof(Table<kMany>) <= 32764);

}  // namespace hookstats::cuda
