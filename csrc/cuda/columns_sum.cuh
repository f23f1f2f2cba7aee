// The sums of columns: a thread's four neighbouring elements of each of its rows, summed in
// registers while it walks down the rows, and counted.
#pragma once

#include "cuda/columns_piece.cuh"
#include "cuda/counting.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts, bool kHigher>
class ColumnsSum : protected ColumnsPiece<Source> {
 public:
  using Seen = ChannelOf<kHigher>;
  using From = Source;

 protected:
  using Piece = ColumnsPiece<Source>;
  using Piece::common_, Piece::item_, Piece::scale_;
  using Piece::down_, Piece::row_, Piece::rows_, Piece::kRows;
  using Piece::exists, Piece::channel, Piece::counter, Piece::kept_until, Piece::keeps_tile;
  using Piece::read, Piece::read_whole, Piece::read_tile, Piece::widen_all;
  using Piece::whole_from_, Piece::whole_to_;
  using typename Piece::Real;
  using typename Piece::Values;

  HOOKSTATS_DEVICE ColumnsSum(const Common& common, const Item& item, const Dim* outer,
                              const Histogram& tensor, const Histogram& channels)
      : Piece(common, item, outer),
        tensor_(tensor),
        channels_(channels),
        counts_(kCounts && (tensor.on() || channels.on())) {}

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

  Histogram tensor_, channels_;

 private:
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
          [&](int c) { return item_.channel_counts + channel(c) * channels_.bins.slots(); });
    }
  }

  bool counts_;
};

}  // namespace hookstats::cuda
