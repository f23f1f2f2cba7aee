// Channels lie side by side: channels last, (N, L, C), biases. A thread owns kOwned neighbouring
// channels, their sums in registers, and walks down the rows; a block is `slots.divisor` threads
// wide.
#pragma once

#include "cuda/columns_sum.cuh"
#include "cuda/fold.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts, bool kHigher>
class Columns : ColumnsSum<Source, kCounts, kHigher> {
  using Sum = ColumnsSum<Source, kCounts, kHigher>;
  using Sum::item_, Sum::channels_, Sum::place_;
  using Sum::owned, Sum::exists, Sum::sum, Sum::sum_again;
  using typename Sum::Real;

 public:
  using typename Sum::From;
  using typename Sum::Place;
  using typename Sum::Seen;
  // Counters of a slot: one per channel of the block.
  static HOOKSTATS_DEVICE int32_t channel_pitch(const Common&, const Item& item) {
    return static_cast<int32_t>(item.slots.divisor) * kOwned;
  }

  HOOKSTATS_DEVICE Columns(const Common& common, const Item& item, const Dim* outer,
                           const Histogram& tensor, const Histogram& channels, Place& place)
      : Sum(common, item, outer, tensor, channels, place) {
    Sum::find_thread();
  }

  // The pieces of this block, the `block`-th of the item's blocks.
  HOOKSTATS_DEVICE void run(int block, void* scratch) {
    const int64_t pieces = int64_t{item_.groups} * item_.row_splits;
    for (int64_t piece = block; piece < pieces; piece += item_.blocks) {
      const int group = static_cast<int>(piece % item_.groups);
      const int split = static_cast<int>(piece / item_.groups);
      Sum::begin(group, split, scratch);
      run_piece(group, split, scratch);
    }
  }

 private:
  HOOKSTATS_DEVICE void run_piece(int group, int split, void* scratch) {
    Totals<Real, kHigher> sums[kOwned];
    Real shift[kOwned];
    Sum::find_shift(shift, static_cast<Real*>(scratch));
    if (place_.exist != 0) sum(sums, shift);
    if (kCounts && channels_.table != nullptr) {
      sync_block();
      add_channel_tables();
    }
    // All rows of a channel have one shift, and are summed up as they are, unless sums have to be
    // made again.
    const bool again = any_in_block(!trusts(sums));
    HOOKSTATS_NO_UNROLL
    for (int step = 0; step < kOwned; ++step) {
      // Of one channel in four at a time: which of its own that is differs with a thread's skew.
      if constexpr (Source::kSkewed) sync_block();  // another thread read this one's entry
      const int c = (step + place_.skew) % kOwned;
      const bool is_read = !Source::kSkewed || exists(c);
      const int row = is_read ? place_.row : block_threads();
      const int column = place_.column - (step + place_.skew >= kOwned ? 1 : 0);
      Totals<Real, kHigher> mine = pick(sums, c);
      double wide_shift = static_cast<double>(pick(shift, c));
      Seen seen;
      bool apart = again;
      if (!apart) {
        merge_rows(scratch, mine, row, column, Sum::width() / kOwned, place_.down);
        Totals<Real, kHigher> all;
        if (row == 0) all = entry<Totals<Real, kHigher>>(scratch, column);
        apart = any_in_block(!all.trusted());
        if (!apart) seen = all.channel(wide_shift);
      }
      if (apart) {
        if (is_read && !mine.trusted()) {
          wide_shift = mine.mean(wide_shift);
          sum_again(c, wide_shift).replace(mine);
        }
        merge_rows(scratch, mine.channel(wide_shift), row, column, Sum::width() / kOwned,
                   place_.down);
        if (row == 0) seen = entry<Seen>(scratch, column);
        sync_block();  // entries of sums, which may come next, begin elsewhere
      }
      const int64_t channel = place_.begin + owned(c);
      if (row != 0 || channel >= item_.channels) continue;
      seen.nan =
          (Source::kMasked ? place_.kept : place_.rows) - seen.count - seen.posinf - seen.neginf;
      if (item_.row_splits == 1) {
        fold(item_, channel, seen);
      } else {
        store_partial(item_, split, channel, seen);
      }
    }
    sync_block();  // before scratch is used again
    if (item_.row_splits == 1) return;
    if (last_of(item_.tickets + group, item_.row_splits)) {
      const int64_t left = item_.channels - place_.begin;
      fold_partials<Seen>(item_, place_.begin,
                          left < Sum::width() ? static_cast<int>(left) : Sum::width(), scratch);
    }
  }

  static HOOKSTATS_DEVICE bool trusts(const Totals<Real, kHigher> (&sums)[kOwned]) {
    bool all = true;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) all = sums[c].trusted() && all;
    return all;
  }

  // Four slots of a channel at a time: their sector of the state is written once.
  HOOKSTATS_DEVICE void add_channel_tables() const {
    constexpr int kTogether = 4;
    const int slots = static_cast<int>(channels_.bins.slots());
    const int places = Sum::across() * kOwned;
    const int all = (slots + kTogether - 1) / kTogether * kTogether * places;
    for (int i = thread_index(); i < all; i += block_threads()) {
      const int slot = i / (kTogether * places) * kTogether + i % kTogether;
      const int place = i / kTogether % places;
      if (slot >= slots) continue;
      uint32_t& counter = channels_.table[slot * places + place];
      if (counter == 0) continue;
      const int across = place % Sum::across(), down = place / Sum::across();
      const int of_block = Source::kVectors ? across * kOwned + down : place;
      const int64_t channel = place_.begin + of_block;
      if (!Source::kSkewed || (of_block < Sum::width() && channel < item_.channels)) {
        add_global(item_.channel_counts + channel * slots + slot, int64_t{counter} * item_.repeat);
      }
      counter = 0;
    }
  }
};

}  // namespace hookstats::cuda
