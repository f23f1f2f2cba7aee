// Masks: a source that leaves rows out, and where in a piece the rows are that it keeps.
#pragma once

#include "cuda/policy.h"
#include "cuda/primitives.cuh"
#include "cuda/table.h"

namespace hookstats::cuda {

// Reads what `Source` reads. The agents leave out the rows that the mask does not keep, whose
// elements are as missing ones; kernels of whole tensors are compiled without any of that.
template <class Source>
struct Masked : Source {
  static constexpr bool kMasked = true;
};

// Whether the mask keeps the row of an outer index.
HOOKSTATS_DEVICE bool keeps(const RowFlags& rows, int64_t outer) {
  if (rows.row_outer > 1) {
    outer = outer < kMostDivided ? rows.by_row_outer.quotient(static_cast<uint32_t>(outer))
                                 : outer / rows.row_outer;
  }
  return load(rows.flags + outer) != 0;
}

// Of outer indices: how many are kept, the first of these, and the end of the last.
struct KeptIndices {
  uint32_t count, first, end;

  HOOKSTATS_DEVICE void add(const KeptIndices& other) {
    count += other.count;
    first = other.first < first ? other.first : first;
    end = other.end > end ? other.end : end;
  }
};
constexpr uint32_t kNoIndex = 0xffffffffu;

// The kept ones of the outer indices [from, to) beyond `begin`, counted from there; first is
// kNoIndex if there is none. All lanes of a warp call it, and get the same.
HOOKSTATS_OUT_OF_LINE KeptIndices kept_by_warp(const RowFlags& rows, int64_t begin, uint32_t from,
                                               uint32_t to) {
  constexpr uint32_t kTogether = 8;  // flags that a lane reads without waiting
  KeptIndices kept{0, kNoIndex, 0};
  HOOKSTATS_NO_UNROLL
  for (uint32_t at = from + static_cast<uint32_t>(lane()); at < to; at += kTogether * kWarp) {
    HOOKSTATS_UNROLL
    for (uint32_t i = 0; i < kTogether; ++i) {
      const uint32_t index = at + i * kWarp;
      if (index < to && keeps(rows, begin + index)) kept.add({1, index, index + 1});
    }
  }
  sync_warp();
  HOOKSTATS_NO_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    kept.add({shuffle_xor(kept.count, mask), shuffle_xor(kept.first, mask),
              shuffle_xor(kept.end, mask)});
  }
  return kept;
}

// The same of `size` indices, whose flags the warps share out; all threads of a block call it.
// `scratch` has room for an entry of each warp.
HOOKSTATS_DEVICE KeptIndices kept_by_block(const RowFlags& rows, int64_t begin, uint32_t size,
                                           KeptIndices* scratch) {
  const uint32_t share = (size + kWarps - 1) / kWarps;
  const uint32_t from = share * static_cast<uint32_t>(warp());
  const uint32_t to = from + share < size ? from + share : size;
  const KeptIndices mine = kept_by_warp(rows, begin, from, to);
  if (lane() == 0) scratch[warp()] = mine;
  sync_block();
  KeptIndices all = scratch[0];
  HOOKSTATS_NO_UNROLL
  for (int w = 1; w < kWarps; ++w) all.add(scratch[w]);
  sync_block();
  return all;
}

}  // namespace hookstats::cuda
