// The splits of runs: which elements are a thread's, and how they are read, a tile at a time.
#pragma once

#include "cuda/kept.cuh"
#include "cuda/source.cuh"

namespace hookstats::cuda {

// `rows` rows of `length` elements, each `slots.divisor` slots.
struct RunsPlace {
  uintptr_t address;  // of the first row, but for dimensions beyond one
  uint32_t before;    // bytes of the one row that are before the address, where vectors begin
  int64_t row_bytes, row;
  uint32_t channel, rows, length, slots;
  uint32_t kept;  // rows, of a mask
  int index;      // of the split of its channel
};

template <class Source>
class RunsReader {
 protected:
  using Real = typename Source::Real;
  static constexpr int kElements = Source::kElements;
  using Values = typename Source::template Values<kElements>;
  using Split = RunsPlace;

  HOOKSTATS_DEVICE RunsReader(const Common& common, const Item& item, const Dim* outer)
      : common_(common),
        item_(item),
        outer_(outer),
        scale_(common),
        group_threads_(block_threads() / item.groups),
        group_(thread_index() / group_threads_),
        thread_(thread_index() % group_threads_),
        element_size_(Source::element_size(common)) {}

  HOOKSTATS_DEVICE Split split_at(uint32_t index) const {
    const uint32_t splits = static_cast<uint32_t>(item_.splits());
    Split p;
    p.channel = index / splits;
    p.index = static_cast<int>(index % splits);
    p.row = (p.index / item_.inner_splits) * item_.row_step;
    const int64_t rows_left = item_.outer_size - p.row;
    p.rows = static_cast<uint32_t>(rows_left < item_.row_step ? rows_left : item_.row_step);
    const int64_t inner = (p.index % item_.inner_splits) * item_.inner_step;
    const int64_t left = item_.inner_size - inner;
    p.length = static_cast<uint32_t>(left < item_.inner_step ? left : item_.inner_step);
    p.kept = p.rows;
    const uint32_t most = p.length / kElements + 2;  // the last part of a row may be a short one
    const bool is_short = item_.inner_splits > 1 && most < item_.slots.divisor;
    p.slots = p.rows * (is_short ? most : item_.slots.divisor);
    p.row_bytes = item_.outer_dims == 1 ? outer_[0].stride * element_size_ : 0;
    const int64_t offset = p.channel * item_.channel_stride + inner * item_.inner_stride;
    p.address = reinterpret_cast<uintptr_t>(item_.data) +
                static_cast<uintptr_t>(offset * element_size_ + p.row * p.row_bytes);
    p.before = 0;
    if (Source::kVectors && p.rows == 1) {
      p.before = static_cast<uint32_t>(0 - p.address) % 16;
      p.address += p.before;
    }
    return p;
  }

  // Cuts a split to the rows from the first kept one to the last.
  HOOKSTATS_DEVICE void keep(Split& p, const KeptIndices& kept) const {
    p.kept = kept.count;
    const uint32_t slots = p.rows > 1 ? item_.slots.divisor : p.slots;
    p.rows = kept.count == 0 ? 0 : kept.end - kept.first;
    p.slots = p.rows * slots;
    if (kept.count == 0) return;
    p.row += kept.first;
    p.address += static_cast<uintptr_t>(kept.first * p.row_bytes);
  }

  // Whether the mask keeps the row of a slot of the split.
  HOOKSTATS_DEVICE bool keeps_slot(const Split& p, uint32_t slot) const {
    return slot < p.slots &&
           (p.kept == p.rows || keeps(common_.rows, p.row + item_.slots.quotient(slot)));
  }

  // The vector of a slot, perhaps with what is beside the run: `exist` says which elements are its
  // own, one bit each. What leaves the others out waits for the vector.
  HOOKSTATS_DEVICE Values begin_to_read(const Split& p, uint32_t slot, uint32_t& exist) const {
    bool exists = slot < p.slots;
    if constexpr (Source::kMasked) exists = keeps_slot(p, slot);
    uint32_t row = 0, column = slot;
    if (p.rows > 1) {
      row = item_.slots.quotient(slot);
      column = slot - row * item_.slots.divisor;
    } else if (p.before != 0) {  // what is before the first whole vector comes last
      column = slot + 1 == p.slots ? 0 : slot + 1;
    }
    uintptr_t begin = p.address - p.before + static_cast<uintptr_t>(row * p.row_bytes);
    if constexpr (Source::kVectors) {
      // In bytes from where vectors begin; a split's part of a row has fewer than 2^31.
      const uint32_t skew = static_cast<uint32_t>(begin & 15), at = column * 16;
      const uint32_t bytes = p.length * static_cast<uint32_t>(element_size_);
      const uint32_t end = exists ? skew + bytes : 0;
      const uintptr_t vector = begin - skew + at;
      exist = Source::first_bytes(static_cast<int32_t>(end - at)) &
              ~Source::first_bytes(static_cast<int32_t>(skew - at));
      const bool inside = vector >= reinterpret_cast<uintptr_t>(item_.data) &&
                          vector + 16 <= reinterpret_cast<uintptr_t>(item_.end);
      return Source::read_part(vector, exist, inside);
    } else {
      if (item_.outer_dims > 1 && exists) {
        const int64_t offset = offset_of_many(outer_, item_.outer_dims, p.row + row);
        begin += static_cast<uintptr_t>(offset * element_size_);
      }
      const uintptr_t ahead = static_cast<uintptr_t>(column * item_.inner_stride * element_size_);
      return Source::read_run(common_, begin + ahead, exists && column < p.length);
    }
  }

  HOOKSTATS_DEVICE void widen_all(const Values& values, Real (&x)[kElements]) const {
    Source::widen_all(common_, scale_, values, x);
  }

  // How many of the split's slots, from the first on, are whole vectors side by side.
  HOOKSTATS_DEVICE uint32_t whole_slots(const Split& p) const {
    if (!Source::kVectors || p.rows > 1 || p.address % 16 != 0) return 0;
    const uint32_t before = p.before / static_cast<uint32_t>(element_size_);
    return p.length < before ? 0 : (p.length - before) / kElements;
  }

  // The vectors of this thread from slot `first` on, all of which are whole.
  template <int kGroup>
  HOOKSTATS_DEVICE void read_whole(const Split& p, uint32_t first,
                                   Values (&values)[kItemsPerThread]) const {
    const uintptr_t at = p.address + uint64_t{first + static_cast<uint32_t>(thread_)} * 16;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kItemsPerThread; ++i) values[i] = Source::read_whole(at, i * kGroup * 16);
  }

  // The same, of which those from slot `whole` on may be no whole ones.
  template <int kGroup>
  HOOKSTATS_DEVICE void read_tile(const Split& p, uint32_t first, uint32_t whole,
                                  Values (&values)[kItemsPerThread]) const {
    if constexpr (Source::kVectors) {
      if (first + kGroup * kItemsPerThread <= whole) return read_whole<kGroup>(p, first, values);
    }
    uint32_t exist[kItemsPerThread];
    HOOKSTATS_UNROLL
    for (int i = 0; i < kItemsPerThread; ++i) {
      values[i] = begin_to_read(p, first + static_cast<uint32_t>(i * kGroup + thread_), exist[i]);
    }
    HOOKSTATS_UNROLL
    for (int i = 0; i < kItemsPerThread; ++i) Source::leave_out(exist[i], values[i]);
  }

  // Whether the mask keeps something that the warp has in a tile.
  template <int kGroup>
  HOOKSTATS_DEVICE bool keeps_tile(const Split& p, uint32_t first) const {
    bool some = false;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kItemsPerThread; ++i) {
      some |= keeps_slot(p, first + static_cast<uint32_t>(i * kGroup + thread_));
    }
    return any_in_warp(some);
  }

  const Common& common_;
  const Item& item_;
  const Dim* outer_;
  Scale scale_;
  int group_threads_, group_, thread_;
  int64_t element_size_;
};

}  // namespace hookstats::cuda
