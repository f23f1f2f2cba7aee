// Channels lie side by side: channels last, (N, L, C), biases. A thread owns kOwned neighbouring
// channels, their sums in registers, and walks down the rows; a block is `slots.divisor` threads
// wide.
#pragma once

#include "cuda/columns_piece.cuh"
#include "cuda/counting.cuh"
#include "cuda/fold.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts, bool kHigher>
class Columns : ColumnsPiece<Source> {
  using Piece = ColumnsPiece<Source>;
  using Piece::across_, Piece::width_, Piece::down_, Piece::column_, Piece::row_;
  using Piece::begin_, Piece::rows_, Piece::kept_, Piece::skew_, Piece::exist_;
  using Piece::kRows, Piece::common_, Piece::item_, Piece::scale_;
  using Piece::owned, Piece::exists, Piece::kept_until, Piece::keeps_tile, Piece::read;
  using Piece::read_whole, Piece::read_tile, Piece::widen_all;
  using Piece::whole_from_, Piece::whole_to_;
  using typename Piece::Real;
  using typename Piece::Values;

 public:
  using Seen = ChannelOf<kHigher>;
  using From = Source;

  // Counters of a slot: one per channel of the block.
  static HOOKSTATS_DEVICE int32_t channel_pitch(const Common&, const Item& item) {
    return static_cast<int32_t>(item.slots.divisor) * kOwned;
  }

  HOOKSTATS_DEVICE Columns(const Common& common, const Item& item, const Dim* outer,
                           const Histogram& tensor, const Histogram& channels)
      : Piece(common, item, outer),
        tensor_(tensor),
        channels_(channels),
        counts_(kCounts && (tensor.on() || channels.on())) {}

  // The pieces of this block, the `block`-th of the item's blocks.
  HOOKSTATS_DEVICE void run(int block, Seen* scratch) {
    const int64_t pieces = int64_t{item_.groups} * item_.row_splits;
    for (int64_t piece = block; piece < pieces; piece += item_.blocks) {
      const int group = static_cast<int>(piece % item_.groups);
      const int split = static_cast<int>(piece / item_.groups);
      Piece::begin(group, split, scratch);
      run_piece(group, split, scratch);
    }
  }

 private:
  // Where the channel's counters are in a row of a table: neighbouring threads have neighbouring
  // ones. Of what is no channel of the block, they are in the last column.
  HOOKSTATS_DEVICE int counter(int i) const {
    if constexpr (!Source::kSkewed) return i * across_ + column_;
    const int channel = static_cast<int>(owned(i));
    return (channel & (kOwned - 1)) * across_ + (channel < 0 ? across_ - 1 : channel / kOwned);
  }

  HOOKSTATS_DEVICE void run_piece(int group, int split, Seen* scratch) {
    Sums<Real, kHigher> sums[kOwned];
    Real shift[kOwned];
    Piece::find_shift(shift, reinterpret_cast<Real*>(scratch));
    if (exist_ != 0) sum(sums, shift);
    if (kCounts && channels_.table != nullptr) {
      sync_block();
      add_channel_tables();
    }
    HOOKSTATS_NO_UNROLL
    for (int step = 0; step < kOwned; ++step) {
      // Of one channel in four at a time: which of its own that is differs with a thread's skew.
      if constexpr (Source::kSkewed) sync_block();  // another thread read this one's entry
      const int c = (step + skew_) % kOwned;
      const bool is_read = !Source::kSkewed || exists(c);
      const int column = column_ - (step + skew_ >= kOwned ? 1 : 0);
      Sums<Real, kHigher> channel_sums = pick(sums, c);
      double wide_shift = static_cast<double>(pick(shift, c));
      if (is_read && !channel_sums.trusted()) {
        wide_shift = channel_sums.mean(wide_shift);
        sum_again(c, wide_shift).replace(channel_sums);
      }
      merge_rows(scratch, channel_sums.channel(wide_shift), is_read ? row_ : block_threads(),
                 column, width_ / kOwned, down_);
      const int64_t channel = begin_ + owned(c);
      if (row_ != 0 || !is_read || channel >= item_.channels) continue;
      Seen seen = scratch[column];
      seen.nan = (Source::kMasked ? kept_ : rows_) - seen.count - seen.posinf - seen.neginf;
      if (item_.row_splits == 1) {
        fold(item_, channel, seen);
      } else {
        partials<Seen>(item_)[split * item_.channels + channel] = seen;
      }
    }
    sync_block();  // before scratch is used again
    if (item_.row_splits == 1) return;
    if (last_of(item_.tickets + group, item_.row_splits)) {
      const int64_t left = item_.channels - begin_;
      fold_partials(item_, begin_, left < width_ ? static_cast<int>(left) : width_, scratch);
    }
  }

  // Sums this thread's rows, kAdditions at a time: as if all their values were finite, and if some
  // were not, once more, and the rows after them once, until all are finite.
  HOOKSTATS_DEVICE void sum(Sums<Real, kHigher> (&sums)[kOwned], const Real (&shift)[kOwned]) {
    constexpr bool kTiles = Source::kVectors && !kHigher;
    const uint32_t step = static_cast<uint32_t>(down_ * kRows);
    bool finite = true;
    for (uint32_t first = 0; first < rows_;) {
      uint32_t counted = first;  // the rows before it are
      if constexpr (kTiles) {
        const uint32_t whole = Source::kMasked   ? kept_until(first)
                               : Source::kSkewed ? whole_to_
                                                 : rows_;
        if (finite && first >= whole_from_ && first + step <= whole &&
            add_finite(sums, shift, counted, whole)) {
          first = counted;
          continue;
        }
      }
      finite = true;
      HOOKSTATS_NO_UNROLL
      for (int tile = 0; tile < kAdditions / kRows && first < rows_; ++tile, first += step) {
        if constexpr (Source::kMasked) {
          if (!keeps_tile(first)) continue;
        }
        const bool all_finite = add_any(sums, shift, first, counts_ && first >= counted);
        finite = finite && all_finite;
      }
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) sums[c].spill();
    }
    if constexpr (kCounts && Source::kSkewed) take_back_zeros();
    if (!kCounts || !tensor_.patterns) return;
    // Which the table of patterns has among the tiniest positive values.
    uint32_t zeros = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      if (!Source::kSkewed || exists(c)) zeros += sums[c].wide_zero;
    }
    add_shared(tensor_.unread + 1, zeros);
  }

  // Of the tensor's histogram, the zeros that were counted instead of the neighbours' elements.
  HOOKSTATS_DEVICE void take_back_zeros() const {
    const Real zero = scale_(Real{0});
    const uint32_t row = static_cast<uint32_t>(row_), down = static_cast<uint32_t>(down_);
    if (!tensor_.on() || row >= rows_ || !is_finite(zero)) return;
    uint32_t others = 0;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) others += exists(i) ? 0 : 1;
    const uint32_t rows = (rows_ - row + down - 1) / down;
    take_back(tensor_, zero, rows * others, item_);
  }

  // Sums whole tiles from row `first` on, to which it adds them, up to row `end`, as if all values
  // were finite, and counts them; false, with nothing summed, if some value is not.
  HOOKSTATS_DEVICE bool add_finite(Sums<Real, kHigher> (&sums)[kOwned], const Real (&shift)[kOwned],
                                   uint32_t& first, uint32_t end) const {
    constexpr int kWords = sizeof(Values) / sizeof(uint32_t);
    const uint32_t step = static_cast<uint32_t>(down_ * kRows);
    TileSums tiles[kOwned];
    typename Source::template Extremes<kWords> extremes;
    int rows = 0;
    bool finite = true;
    HOOKSTATS_NO_UNROLL
    for (; rows < kAdditions && finite && first + step <= end; rows += kRows, first += step) {
      Values values[kRows];
      Real x[kOwned];
      read_whole(first, values);
      Source::scale_in_place(scale_, values);
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i) {
        widen_all(values[i], x);
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) tiles[c].add(x[c], shift[c]);
        HOOKSTATS_UNROLL
        for (int w = 0; w < kWords; ++w) extremes.add(w, values[i].words[w]);
      }
      if (kCounts && counts_) {
        finite = are_finite(tiles);
        count_tile(values, finite);
      }
    }
    if (!are_finite(tiles)) return false;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      Real least, greatest;
      extremes.scaled(scale_, c, least, greatest);
      sums[c].add(tiles[c], least, greatest, rows);
    }
    return true;
  }

  static HOOKSTATS_DEVICE bool are_finite(const TileSums (&tiles)[kOwned]) {
    Real s2 = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) s2 += tiles[c].s2;
    return s2 < kInfinity<Real>;
  }

  // Sums the finite values of a tile, and tallies the others. Whether all are finite.
  HOOKSTATS_DEVICE bool add_any(Sums<Real, kHigher> (&sums)[kOwned], const Real (&shift)[kOwned],
                                uint32_t first, bool counts) const {
    Values values[kRows];
    Real x[kOwned];
    read_tile(first, values);
    Source::scale_in_place(scale_, values);
    const Real finite_before = finite(sums);
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      widen_all(values[i], x);
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) sums[c].add(x[c], shift[c]);
    }
    const bool all_finite = finite(sums) - finite_before == kRows * kOwned;
    if (!all_finite) {
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i) {
        Source::forget_widened(values[i]);
        widen_all(values[i], x);
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) sums[c].add_infinity(x[c]);
      }
    }
    if (kCounts && counts) count_tile(values, kHigher && all_finite);
    return all_finite;
  }

  static HOOKSTATS_DEVICE Real finite(const Sums<Real, kHigher> (&sums)[kOwned]) {
    Real finite = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) finite += sums[c].finite;
    return finite;
  }

  HOOKSTATS_DEVICE WideSums<kHigher> sum_again(int c, double shift) const {
    WideSums<kHigher> sums;
    HOOKSTATS_NO_UNROLL
    for (uint32_t row = static_cast<uint32_t>(row_); row < rows_;
         row += static_cast<uint32_t>(down_)) {
      Real x[kOwned];
      Values values[] = {read(row)};
      Source::scale_in_place(scale_, values);
      widen_all(values[0], x);
      sums.add(static_cast<double>(pick(x, c)), shift);
    }
    return sums;
  }

  // Tiles that are not finite take a loop: they are rarer, and their code is as long. The rows move
  // up in it: what an index chooses would be in memory.
  HOOKSTATS_DEVICE void count_tile(Values (&values)[kRows], bool finite) const {
    if (Source::kVectors && finite) {
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i) {
        Real x[kOwned];
        Source::forget_widened(values[i]);
        widen_all(values[i], x);
        count_all<true>(x);
      }
    } else {
      HOOKSTATS_NO_UNROLL
      for (int i = 0; i < kRows; ++i) {
        Real x[kOwned];
        widen_all(values[0], x);
        count_all<false>(x);
        HOOKSTATS_UNROLL
        for (int j = 1; j < kRows; ++j) values[j - 1] = values[j];
      }
    }
  }

  template <bool kFinite>
  HOOKSTATS_DEVICE void count_all(const Real (&x)[kOwned]) const {
    if (tensor_.on()) {
      const int32_t copy = lane() & (tensor_.pitch - 1);
      int64_t* const state = item_.tensor_counts;
      count<kFinite>(
          tensor_, x, item_.repeat, [=](int) { return copy; }, [=](int) { return state; });
    }
    if (channels_.on()) {
      count<kFinite>(
          channels_, x, item_.repeat, [&](int c) { return counter(c); },
          [&](int c) {
            return item_.channel_counts + (begin_ + owned(c)) * channels_.bins.slots();
          });
    }
  }

  // Four slots of a channel at a time: their sector of the state is written once.
  HOOKSTATS_DEVICE void add_channel_tables() const {
    constexpr int kTogether = 4;
    const int slots = static_cast<int>(channels_.bins.slots());
    const int places = across_ * kOwned;
    const int all = (slots + kTogether - 1) / kTogether * kTogether * places;
    for (int i = thread_index(); i < all; i += block_threads()) {
      const int slot = i / (kTogether * places) * kTogether + i % kTogether;
      const int place = i / kTogether % places;
      if (slot >= slots) continue;
      uint32_t& counter = channels_.table[slot * places + place];
      if (counter == 0) continue;
      const int across = place % across_, down = place / across_;
      const int of_block = Source::kVectors ? across * kOwned + down : place;
      const int64_t channel = begin_ + of_block;
      if (!Source::kSkewed || (of_block < width_ && channel < item_.channels)) {
        add_global(item_.channel_counts + channel * slots + slot, int64_t{counter} * item_.repeat);
      }
      counter = 0;
    }
  }

  Histogram tensor_, channels_;
  bool counts_;
};

}  // namespace hookstats::cuda
