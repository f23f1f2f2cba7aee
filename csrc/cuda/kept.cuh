// Masks: a source that leaves rows out, and where in a split the rows are that it keeps.
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

// Of `n` flags: how many are set, the first one, kNoIndex if there is none, and the end of the
// last. All lanes of a warp call it, and get the same. Vectors that are all flags are read whole.
HOOKSTATS_OUT_OF_LINE KeptIndices kept_flags(const uint8_t* flags, uint32_t n) {
  constexpr uint32_t kVector = 16, kTogether = 4;  // vectors that a lane reads without waiting
  const uint32_t off = static_cast<uint32_t>(0 - reinterpret_cast<uintptr_t>(flags)) % kVector;
  const uint32_t begin = off < n ? off : n, vectors = (n - begin) / kVector;
  const uint32_t end = begin + vectors * kVector;
  KeptIndices kept{0, kNoIndex, 0};
  const auto own = static_cast<uint32_t>(lane());
  const uint32_t beside = own < kVector ? own : end + own - kVector;  // before or behind vectors
  if (beside < (own < kVector ? begin : n) && load(flags + beside) != 0) {
    kept.add({1, beside, beside + 1});
  }
  HOOKSTATS_NO_UNROLL
  for (uint32_t first = own; first < vectors; first += kTogether * kWarp) {
    Bytes16 bytes[kTogether];
    HOOKSTATS_UNROLL
    for (uint32_t i = 0; i < kTogether; ++i) {
      const uint32_t vector = first + i * kWarp;
      bytes[i] = {};
      if (vector < vectors) bytes[i] = load16(flags + begin + vector * kVector);
    }
    HOOKSTATS_UNROLL
    for (uint32_t i = 0; i < kTogether * 4; ++i) {
      const uint32_t word = bytes[i / 4].word[i % 4];
      const uint32_t set = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
      if (set == 0) continue;
      const uint32_t at = begin + (first + i / 4 * kWarp) * kVector + i % 4 * 4;
      kept.add({count_ones(set), at + lowest_one(set) / 8, at + highest_one(set) / 8 + 1});
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

// The kept ones of the outer indices [from, to) beyond `begin`, counted from there; first is
// kNoIndex if there is none. All lanes of a warp call it, and get the same.
HOOKSTATS_DEVICE KeptIndices kept_by_warp(const RowFlags& rows, int64_t begin, uint32_t from,
                                          uint32_t to) {
  if (from >= to) return {0, kNoIndex, 0};
  const int64_t outer = rows.row_outer, first_row = (begin + from) / outer;
  const int64_t end_row = (begin + to - 1) / outer + 1;
  const auto n = static_cast<uint32_t>(end_row - first_row);
  const KeptIndices kept = kept_flags(rows.flags + first_row, n);
  if (kept.count == 0) return kept;
  // Of the first and the last row a part may be asked for.
  const int64_t before = begin + from - first_row * outer, behind = end_row * outer - begin - to;
  const int64_t count =
      kept.count * outer - (kept.first == 0 ? before : 0) - (kept.end == n ? behind : 0);
  const int64_t first = kept.first * outer - before, end = kept.end * outer - before;
  return {static_cast<uint32_t>(count), from + static_cast<uint32_t>(first < 0 ? 0 : first),
          end < to - from ? from + static_cast<uint32_t>(end) : to};
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
