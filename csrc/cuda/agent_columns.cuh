// Channels lie side by side: channels last, (N, L, C), biases. A thread owns kOwned neighbouring
// channels, their sums in registers, and walks down the rows; a block is `slots.divisor` threads
// wide.
#pragma once

#include "cuda/counting.cuh"
#include "cuda/fold.cuh"
#include "cuda/kept.cuh"
#include "cuda/source.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts, bool kHigher>
class Columns {
  using Real = typename Source::Real;
  static constexpr int kRows = Source::kRows;
  using Values = typename Source::template Values<kOwned>;

 public:
  using Seen = ChannelOf<kHigher>;
  using From = Source;

  // Counters of a slot: one per channel of the block.
  static HOOKSTATS_DEVICE int32_t channel_pitch(const Common&, const Item& item) {
    return static_cast<int32_t>(item.slots.divisor) * kOwned;
  }

  HOOKSTATS_DEVICE Columns(const Common& common, const Item& item, const Dim* outer,
                           const Histogram& tensor, const Histogram& channels)
      : common_(common),
        item_(item),
        outer_(outer),
        scale_(common),
        tensor_(tensor),
        channels_(channels),
        across_(static_cast<int>(item.slots.divisor)),
        width_(across_ * kOwned),
        down_(block_threads() / across_),
        column_(thread_index() % across_),
        row_(thread_index() / across_),
        row_stride_(item.outer_dims == 1 ? outer[0].stride : 0),
        counts_(kCounts && (tensor.on() || channels.on())) {}

  // The pieces of this block, the `block`-th of the item's blocks.
  HOOKSTATS_DEVICE void run(int block, Seen* scratch) {
    const int64_t pieces = int64_t{item_.groups} * item_.row_splits;
    for (int64_t piece = block; piece < pieces; piece += item_.blocks) {
      const int group = static_cast<int>(piece % item_.groups);
      const int split = static_cast<int>(piece / item_.groups);
      begin_ = int64_t{group} * width_;
      first_row_ = split * item_.row_step;
      const int64_t left = item_.outer_size - first_row_;
      rows_ = static_cast<uint32_t>(left < item_.row_step ? left : item_.row_step);
      if constexpr (Source::kMasked) find_rows(scratch);
      find_channels();
      run_piece(group, split, scratch);
    }
  }

 private:
  // Channel i of the thread, in the block: side by side in a vector, else across the threads, so
  // that neighbours read neighbours.
  HOOKSTATS_DEVICE int64_t owned(int i) const {
    return Source::kVectors ? column_ * kOwned + i : i * across_ + column_;
  }

  // Cuts the piece to the rows from the first one that a mask keeps to the last.
  HOOKSTATS_DEVICE void find_rows(Seen* scratch) {
    const KeptIndices kept =
        kept_by_block(common_.rows, first_row_, rows_, reinterpret_cast<KeptIndices*>(scratch));
    kept_ = kept.count;
    rows_ = kept.count == 0 ? 0 : kept.end - kept.first;
    if (kept.count > 0) first_row_ += kept.first;
  }

  // Whether a row of the piece is there to be read.
  HOOKSTATS_DEVICE bool has_row(uint32_t row) const {
    if constexpr (!Source::kMasked) return row < rows_;
    return row < rows_ && (kept_ == rows_ || keeps(common_.rows, first_row_ + row));
  }

  // Of this thread's rows from row `first` on, the end of as many tiles as the mask keeps whole, at
  // most `kAdditions` rows; `first` if it does not keep the first tile.
  HOOKSTATS_DEVICE uint32_t kept_until(uint32_t first) const {
    const uint32_t step = static_cast<uint32_t>(down_ * kRows);
    uint32_t end = first;
    bool whole = true;
    HOOKSTATS_NO_UNROLL
    for (int tile = 0; tile < kAdditions / kRows && whole; ++tile) {
      whole = end + step <= rows_;
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i) {
        whole = has_row(end + static_cast<uint32_t>(i * down_ + row_)) && whole;
      }
      if (whole) end += step;
    }
    return end;
  }

  // Whether the mask keeps one of this thread's rows in the tile from row `first` on.
  HOOKSTATS_DEVICE bool keeps_tile(uint32_t first) const {
    bool some = false;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      some |= has_row(first + static_cast<uint32_t>(i * down_ + row_));
    }
    return some;
  }

  HOOKSTATS_DEVICE void find_channels() {
    exist_ = 0;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) {
      if (row_ < down_ && begin_ + owned(i) < item_.channels) exist_ |= 1u << i;
    }
    const int64_t stride = Source::kVectors ? 1 : across_;
    offset_ = (begin_ + owned(0)) * item_.channel_stride;
    stride_ = stride * item_.channel_stride;
    // Of the thread's first row, and from one of its rows to the next.
    const int64_t size = Source::element_size(common_);
    row_bytes_ = row_stride_ * size;
    down_bytes_ = static_cast<uintptr_t>(down_ * row_bytes_);
    address_ = reinterpret_cast<uintptr_t>(item_.data) +
               static_cast<uintptr_t>(offset_ * size + (first_row_ + row_) * row_bytes_);
  }

  HOOKSTATS_DEVICE Values read(uint32_t row) const {
    const int64_t index = first_row_ + row;
    int64_t offset = offset_ + index * row_stride_;
    if constexpr (!Source::kVectors) {
      if (item_.outer_dims > 1) offset += offset_of_many(outer_, item_.outer_dims, index);
    }
    return Source::read_channels(common_, item_.data, offset, stride_, has_row(row) ? exist_ : 0);
  }

  // The rows of this thread from row `first` on; whole vectors of rows that exist.
  HOOKSTATS_DEVICE void read_whole(uint32_t first, Values (&values)[kRows]) const {
    uintptr_t at = address_ + uint64_t{first} * static_cast<uint64_t>(row_bytes_);
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i, at += down_bytes_) values[i] = Source::read_whole_channels(at);
  }

  HOOKSTATS_DEVICE void read_tile(uint32_t first, Values (&values)[kRows]) const {
    if constexpr (Source::kVectors && !Source::kMasked) {
      if (first + static_cast<uint32_t>(kRows * down_) <= rows_) return read_whole(first, values);
    }
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      values[i] = read(first + static_cast<uint32_t>(i * down_ + row_));
    }
  }

  HOOKSTATS_DEVICE void widen_all(const Values& values, Real (&x)[kOwned]) const {
    Source::widen_all(common_, scale_, values, x);
  }

  // The mean of each channel over the first rows of some of the block's threads; all call it.
  HOOKSTATS_DEVICE void find_shift(Real (&shift)[kOwned], Real* samples) const {
    int sampled = 1;
    while (2 * sampled <= down_ && sampled < kSampled) sampled *= 2;
    if (row_ < sampled) {
      Real rows[kOwned][kRows], x[kOwned];
      Values values[kRows];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i) values[i] = read(static_cast<uint32_t>(i * down_ + row_));
      Source::scale_in_place(scale_, values);
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i) {
        widen_all(values[i], x);
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) rows[c][i] = x[c];
      }
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) {
        samples[row_ * width_ + c * across_ + column_] = tree_mean(rows[c]);
      }
    }
    sync_block();
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      const Real* const column = samples + c * across_ + column_;
      Real all[kSampled];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kSampled; ++i) all[i] = column[i % sampled * width_];
      const Real mean = tree_mean(all);
      shift[c] = is_finite(mean) ? mean : Real{0};
    }
    sync_block();
  }

  HOOKSTATS_DEVICE void run_piece(int group, int split, Seen* scratch) {
    Sums<Real, kHigher> sums[kOwned];
    Real shift[kOwned];
    find_shift(shift, reinterpret_cast<Real*>(scratch));
    if (exist_ != 0) sum(sums, shift);
    if (kCounts && channels_.table != nullptr) {
      sync_block();
      add_channel_tables();
    }
    HOOKSTATS_NO_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      Sums<Real, kHigher> channel_sums = pick(sums, c);
      double wide_shift = static_cast<double>(pick(shift, c));
      if (!channel_sums.trusted()) {
        wide_shift = channel_sums.mean(wide_shift);
        sum_again(c, wide_shift).replace(channel_sums);
      }
      merge_rows(scratch, channel_sums.channel(wide_shift), row_, column_, across_, down_);
      const int64_t channel = begin_ + owned(c);
      if (row_ != 0 || channel >= item_.channels) continue;
      Seen seen = scratch[column_];
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
        const uint32_t whole = Source::kMasked ? kept_until(first) : rows_;
        if (finite && first + step <= whole && add_finite(sums, shift, counted, whole)) {
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
    if (!kCounts || !tensor_.patterns) return;
    // Which the table of patterns has among the tiniest positive values.
    uint32_t zeros = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) zeros += sums[c].wide_zero;
    add_shared(tensor_.unread + 1, zeros);
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
          channels_, x, item_.repeat, [&](int c) { return c * across_ + column_; },
          [&](int c) {
            return item_.channel_counts + (begin_ + owned(c)) * channels_.bins.slots();
          });
    }
  }

  // Four slots of a channel at a time: their sector of the state is written once.
  HOOKSTATS_DEVICE void add_channel_tables() const {
    constexpr int kTogether = 4;
    const int slots = static_cast<int>(channels_.bins.slots());
    const int all = (slots + kTogether - 1) / kTogether * kTogether * width_;
    for (int i = thread_index(); i < all; i += block_threads()) {
      const int slot = i / (kTogether * width_) * kTogether + i % kTogether;
      const int place = i / kTogether % width_;
      if (slot >= slots) continue;
      uint32_t& counter = channels_.table[slot * width_ + place];
      if (counter == 0) continue;
      const int across = place % across_, down = place / across_;
      const int64_t channel = begin_ + (Source::kVectors ? across * kOwned + down : place);
      add_global(item_.channel_counts + channel * slots + slot, int64_t{counter} * item_.repeat);
      counter = 0;
    }
  }

  static constexpr int kSampled = 8;  // threads: with their rows, 64 elements a channel

  const Common& common_;
  const Item& item_;
  const Dim* outer_;
  Scale scale_;
  Histogram tensor_, channels_;
  int across_, width_, down_, column_, row_;
  int64_t row_stride_;
  bool counts_;
  // The piece at hand.
  int64_t begin_ = 0, first_row_ = 0, offset_ = 0, stride_ = 0;
  int64_t row_bytes_ = 0;
  uintptr_t address_ = 0, down_bytes_ = 0;
  uint32_t rows_ = 0, exist_ = 0;
  uint32_t kept_ = 0;  // rows, of a mask
};

}  // namespace hookstats::cuda
