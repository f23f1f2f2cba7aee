// Channels lie side by side: channels last, (N, L, C), biases. A thread owns kOwned neighbouring
// channels, their sums in registers, and walks down the rows; a block is `slots.divisor` threads
// wide.
#pragma once

#include "cuda/accumulate.cuh"
#include "cuda/columns_sum.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts>
class Columns : ColumnsSum<Source, kCounts> {
  using Sum = ColumnsSum<Source, kCounts>;
  static constexpr bool kAddsUp = Source::kVectors && !Source::kSkewed;
  using Sum::item_, Sum::channels_, Sum::place_;
  using Sum::owned, Sum::exists, Sum::channel_of, Sum::sum, Sum::sum_again;
  using typename Sum::Real;

 public:
  using typename Sum::From;
  using typename Sum::Place;
  // Counters of a slot: one per channel of the block.
  static HOOKSTATS_DEVICE int32_t channel_pitch(const Common&, const Item& item) {
    return static_cast<int32_t>(item.slots.divisor) * kOwned;
  }

  HOOKSTATS_DEVICE Columns(const Common& common, const Item& item, const Dim* outer,
                           const Histogram& tensor, const Histogram& channels, Place& place)
      : Sum(common, item, outer, tensor, channels, place) {
    Sum::find_thread();
  }

  // The splits of this block, the `block`-th of the item's blocks.
  HOOKSTATS_DEVICE void run(int block, void* scratch) {
    const int64_t tasks = int64_t{item_.channel_blocks} * item_.row_splits;
    for (int64_t task = block; task < tasks; task += item_.blocks) {
      const int channel_block = static_cast<int>(task % item_.channel_blocks);
      const int split = static_cast<int>(task / item_.channel_blocks);
      Sum::begin(channel_block, split, scratch);
      run_split(channel_block, split, scratch);
    }
  }

 private:
  HOOKSTATS_DEVICE void run_split(int channel_block, int split, void* scratch) {
    Totals<Real> sums[kOwned];
    Real shift[kOwned];
    Real factor = Sum::find_shift(shift, scratch);
    typename Sum::Whole totals(scratch);
    // Once more, about the means, if a shift turns out to be bad, as first rows tell little of
    // others.
    HOOKSTATS_NO_UNROLL
    for (int attempt = 0; attempt < (kAddsUp ? 2 : 1); ++attempt) {
      totals.begin();
      sync_block();
      if (place_.exist != 0) sum(sums, shift, factor, totals, attempt == 0);
      sync_block();
      if (attempt == 0 && kCounts && channels_.table != nullptr) add_channel_tables();
      if constexpr (kAddsUp) {
        if (add_up(split, totals, shift, factor, attempt == 0)) {
          return end_split(channel_block, scratch);
        }
      }
    }
    const double least = Totals<Real>::least_square(static_cast<float>(factor));
    // All rows of a channel have one shift, and are summed up as they are, unless sums have to be
    // made again.
    const bool again = any_in_block(!trusts(sums, least));
    if (again && !trusts(sums, least)) make_again(sums, shift, least);
    HOOKSTATS_NO_UNROLL
    for (int step = 0; step < kOwned; ++step) {
      // Of one channel in four at a time: which of its own that is differs with a thread's skew.
      if constexpr (Source::kSkewed) sync_block();  // another thread read this one's entry
      const int c = (step + place_.skew) % kOwned;
      const bool is_read = !Source::kSkewed || exists(c);
      const int row = is_read ? place_.row : block_threads();
      const int column = place_.column - (step + place_.skew >= kOwned ? 1 : 0);
      Totals<Real> mine = pick(sums, c);
      Channel seen;
      bool apart = again;
      if (!apart) {
        merge_rows(scratch, mine, row, column, Sum::width() / kOwned, place_.down);
        Totals<Real> all;
        if (row == 0) all = entry<Totals<Real>>(scratch, column);
        apart = any_in_block(!all.trusted(least));
        if (!apart) seen = all.channel(static_cast<double>(pick(shift, c)));
      }
      if (apart) {
        merge_rows(scratch, mine.channel(static_cast<double>(pick(shift, c))), row, column,
                   Sum::width() / kOwned, place_.down);
        if (row == 0) seen = entry<Channel>(scratch, column);
        sync_block();  // entries of sums, which may come next, begin elsewhere
      }
      const int64_t own = place_.begin + owned(c);
      if (row != 0 || own >= item_.columns()) continue;
      if constexpr (Source::kVectors) totals.put_infinities(Sum::tally_place(c), seen);
      leave(split, own, seen);
    }
    end_split(channel_block, scratch);
  }

  // All channels of the block together: their totals, of which each thread adds up some, are in
  // scratch memory. False if those of a channel cannot be trusted: then the thread's shift and
  // factor are what they should have been, if they are to be `mended`.
  HOOKSTATS_DEVICE bool add_up(int split, typename Sum::Whole& totals, Real (&shift)[kOwned],
                               Real& factor, bool mended) {
    using All = Totals<Real>;
    const auto all_of = [&](int c) {
      All all = totals.of(Sum::scale_, place_.column, c);
      all.unscale(factor);
      return all;
    };
    const bool is_read = place_.row < place_.down;
    const int first = is_read ? place_.row : kOwned;
    if (is_read) totals.add_up(place_.row, place_.column, Sum::across(), place_.down);
    sync_block();
    bool trusted = true;
    HOOKSTATS_NO_UNROLL
    for (int c = first; c < kOwned; c += place_.down) {
      trusted = all_of(c).trusted(All::least_square(factor)) && trusted;
    }
    if (!any_in_block(!trusted)) {
      HOOKSTATS_NO_UNROLL
      for (int c = first; c < kOwned; c += place_.down) {
        const int64_t own = place_.begin + owned(c);
        if (own >= item_.columns()) continue;
        Channel seen = all_of(c).channel(static_cast<double>(pick(shift, c)));
        totals.put_infinities(Sum::tally_place(c), seen);
        leave(split, own, seen);
      }
      return true;
    }
    if (!mended) return false;
    uint32_t magnitude = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      const All all = all_of(c);
      if (all.wide_finite == 0) continue;
      shift[c] = static_cast<Real>(all.mean(static_cast<double>(shift[c])));
      const uint32_t below = magnitude_of(all.least - shift[c]);
      const uint32_t above = magnitude_of(all.greatest - shift[c]);
      const uint32_t farther = below > above ? below : above;
      magnitude = farther > magnitude ? farther : magnitude;
    }
    factor = factor_for(magnitude);
    sync_block();  // before the totals begin again
    return false;
  }

  // What the block saw of a column, but for NaNs. The columns of a channel, in joined rows, are
  // merged as its splits are: each row of partial results has one for each channel.
  HOOKSTATS_DEVICE void leave(int split, int64_t column, Channel seen) const {
    seen.nan =
        (Source::kMasked ? place_.kept : place_.rows) - seen.count - seen.posinf - seen.neginf;
    if (item_.splits() == 1) {
      accumulate(item_, column, seen);
    } else {
      store_partial(item_, split * item_.joined, column, seen);
    }
  }

  HOOKSTATS_DEVICE void end_split(int channel_block, void* scratch) const {
    sync_block();  // before scratch is used again
    if (item_.splits() == 1) return;
    if (is_last_block(item_.block_counters + channel_block, item_.row_splits)) {
      const int64_t left = item_.channels - place_.begin;
      accumulate_partials(item_, place_.begin,
                          left < Sum::width() ? static_cast<int>(left) : Sum::width(), scratch);
    }
  }

  // Makes sums that cannot be trusted again, in fp64 about the means.
  HOOKSTATS_DEVICE void make_again(Totals<Real> (&sums)[kOwned], Real (&shift)[kOwned],
                                   double least) const {
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      const double before = static_cast<double>(shift[c]);
      if (!sums[c].trusted(least)) shift[c] = static_cast<Real>(sums[c].mean(before));
    }
    WideSums wide[kOwned];
    sum_again(shift, wide);
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      if (!sums[c].trusted(least)) wide[c].replace(sums[c]);
    }
  }

  static HOOKSTATS_DEVICE bool trusts(const Totals<Real> (&sums)[kOwned], double least) {
    bool all = true;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) all = sums[c].trusted(least) && all;
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
      const int64_t column = place_.begin + of_block;
      if (!Source::kSkewed || (of_block < Sum::width() && column < item_.channels)) {
        add_global(item_.channel_counts + channel_of(column) * slots + slot,
                   int64_t{counter} * item_.repeat);
      }
      counter = 0;
    }
  }
};

}  // namespace hookstats::cuda
