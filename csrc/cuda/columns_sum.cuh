// The sums of columns: a thread's four neighbouring elements of each of its rows, summed in
// registers while it walks down the rows, and counted.
#pragma once

#include "cuda/columns_reader.cuh"
#include "cuda/columns_totals.cuh"
#include "cuda/counting.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts>
class ColumnsSum : protected ColumnsReader<Source> {
 public:
  using From = Source;
  using Place = ColumnsPlace<Source>;

 protected:
  using Reader = ColumnsReader<Source>;
  using Reader::common_, Reader::item_, Reader::place_, Reader::scale_;
  using Reader::exists, Reader::channel, Reader::counter, Reader::kept_until, Reader::keeps_tile;
  using Reader::kRows;
  using Reader::outer_, Reader::read, Reader::read_whole, Reader::read_tile, Reader::widen_all;
  using typename Reader::Real;
  using typename Reader::Values;
  using Tile = Real[kRows * kOwned];
  // Rows that begin anywhere lose by it: they have no registers left.
  static constexpr bool kReadsAhead = !Source::kSkewed;
  struct Nothing {
    HOOKSTATS_DEVICE explicit Nothing(void* = nullptr) {}
    HOOKSTATS_DEVICE void begin() {}
  };
  using Whole = std::conditional_t<Source::kVectors, WholeTotals<Source>, Nothing>;

  // The tile that a thread reads next, which is under way while the one before it is summed.
  struct Ahead {
    static constexpr uint32_t kNone = 0xffffffffu;
    Values values[kRows];
    uint32_t first = kNone;  // its first row
  };

  HOOKSTATS_DEVICE ColumnsSum(const Common& common, const Item& item, const Dim* outer,
                              const Histogram& tensor, const Histogram& channels, Place& place)
      : Reader(common, item, outer, place),
        tensor_(tensor),
        channels_(channels),
        quickly_(Source::kVectors && tensor.way != Way::kAny && channels.way != Way::kAny) {}

  // As ColumnsReader does, with a factor of 1 for sums that have none.
  HOOKSTATS_DEVICE Real find_shift(Real (&shift)[kOwned], void* scratch) const {
    const Real factor = Reader::find_shift(shift, static_cast<Real*>(scratch));
    return Source::kVectors ? factor : Real{1};
  }

  // Sums this thread's rows, kAdditions at a time: as if all their values were finite, and if some
  // were not, once more, and the rows after them once, until all are finite. Counts them if asked
  // to. Returns whether all that was summed is in `totals`, too.
  HOOKSTATS_DEVICE bool sum(Totals<Real> (&sums)[kOwned], const Real (&shift)[kOwned], Real factor,
                            [[maybe_unused]] Whole& totals, bool counts) {
    counts_ = kCounts && counts && (tensor_.on() || channels_.on());
    [[maybe_unused]] std::conditional_t<Source::kVectors, OtherTotals, Nothing> others;
    if constexpr (Source::kVectors) keep_in_memory(place_);
    int32_t counters[kOwned];
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) counters[c] = kCounts && channels_.on() ? counter(c) : 0;
    const uint32_t step = static_cast<uint32_t>(place_.down * kRows);
    bool finite = true;
    [[maybe_unused]] Ahead ahead;
    for (uint32_t first = 0; first < place_.rows;) {
      uint32_t counted = first;  // the rows before it are
      if constexpr (Source::kVectors) {
        const bool keeps_all = !Source::kMasked || place_.kept == place_.rows;
        const uint32_t whole = !keeps_all        ? kept_until(first)
                               : Source::kSkewed ? place_.whole_to
                                                 : place_.rows;
        if (finite && first >= place_.whole_from && first + step <= whole &&
            add_finite(totals, shift, factor, counters, counted, whole, ahead)) {
          first = counted;
          continue;
        }
      }
      finite = true;
      Sums<Real> tiles[kOwned];
      HOOKSTATS_NO_UNROLL
      for (int tile = 0; tile < kAdditions / kRows && first < place_.rows; ++tile, first += step) {
        if constexpr (Source::kMasked) {
          if (!keeps_tile(first)) continue;
        }
        const bool all_finite =
            add_any(tiles, shift, factor, counters, first, counts_ && first >= counted);
        finite = finite && all_finite;
      }
      if constexpr (Source::kVectors) {
        others.add(tiles);
      } else {
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) {
          sums[c].add_sums(tiles[c]);
          sums[c].add_others(tiles[c]);
        }
      }
    }
    bool all_whole = false;
    if constexpr (Source::kVectors) {
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) {
        sums[c] = totals.of(scale_, thread_index(), c);
      }
      others.add_to(sums);
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) sums[c].unscale(factor);
      all_whole = !others.any();
    }
    if constexpr (kCounts && Source::kSkewed) take_back_zeros();
    if (!kCounts || !counts_ || !tensor_.patterns()) return all_whole;
    // Which the table of patterns has among the tiniest positive values.
    uint32_t zeros = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      if (!Source::kSkewed || exists(c)) zeros += sums[c].wide_zero;
    }
    add_shared(tensor_.unread + 1, zeros);
    return all_whole;
  }

  // Sums the thread's rows again, of each channel about its shift: what fp32 could not hold.
  HOOKSTATS_DEVICE void sum_again(const Real (&shift)[kOwned], WideSums (&sums)[kOwned]) const {
    const uint32_t step = static_cast<uint32_t>(place_.down * kRows);
    HOOKSTATS_NO_UNROLL
    for (uint32_t first = 0; first < place_.rows; first += step) {
      Values values[kRows], some[1];
      read_tile(first, values);
      Source::scale_in_place(scale_, values);
      HOOKSTATS_NO_UNROLL
      for (int i = 0; i < kRows; ++i) {
        Real x[kOwned];
        move_up(values, some);
        widen_all(some[0], x);
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) {
          sums[c].add(static_cast<double>(x[c]), static_cast<double>(shift[c]));
        }
      }
    }
  }

  Histogram tensor_, channels_;

 private:
  // Of the tensor's histogram, the zeros that were counted instead of the neighbours' elements.
  HOOKSTATS_DEVICE void take_back_zeros() const {
    const Real zero = scale_(Real{0});
    const uint32_t row = static_cast<uint32_t>(place_.row);
    const uint32_t down = static_cast<uint32_t>(place_.down);
    if (!tensor_.on() || row >= place_.rows || !is_finite(zero)) return;
    uint32_t others = 0;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) others += exists(i) ? 0 : 1;
    const uint32_t rows = (place_.rows - row + down - 1) / down;
    take_back(tensor_, zero, rows * others, item_);
  }

  // Sums whole tiles from row `first` on, to which it adds them, up to row `end`, as if all values
  // were finite, and counts them; false, with nothing summed, if some value is not.
  HOOKSTATS_DEVICE bool add_finite(WholeTotals<Source>& totals, const Real (&shift)[kOwned],
                                   float factor, const int32_t (&counters)[kOwned], uint32_t& first,
                                   uint32_t end, Ahead& ahead) const {
    constexpr int kWords = sizeof(Values) / sizeof(uint32_t);
    const uint32_t step = static_cast<uint32_t>(place_.down * kRows);
    TileSums tiles[kOwned];
    float offset[kOwned];
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) offset[c] = -shift[c] * factor;
    typename Source::template Extremes<kWords> extremes;
    typename Source::template Zeros<kWords> zeros;
    const uintptr_t down_bytes = place_.down_bytes;
    const Values keeps = Reader::own_elements();
    uintptr_t at = Reader::row_address(first);
    if constexpr (kReadsAhead) {
      if (ahead.first == first) {
        at += kRows * down_bytes;
      } else {
        at = read_whole(at, down_bytes, keeps, ahead.values);
      }
    }
    int all = 0;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kAdditions / kRows; ++i) all += first + step * (i + 1u) <= end ? 1 : 0;
    HOOKSTATS_NO_UNROLL
    for (int i = 0; i < all; ++i) {
      Values values[kRows];
      Tile x;
      if constexpr (kReadsAhead) {
        HOOKSTATS_UNROLL
        for (int r = 0; r < kRows; ++r) values[r] = ahead.values[r];
      } else {
        at = read_whole(at, down_bytes, keeps, values);
      }
      Source::scale_in_place(scale_, values);
      Source::widen_tile(scale_, values, x, zeros);
      HOOKSTATS_UNROLL
      for (int w = 0; w < kRows * kWords; ++w) {
        extremes.add(w % kWords, values[w / kWords].words[w % kWords]);
      }
      if constexpr (kReadsAhead) {
        const uint32_t next = first + step * (i + 1u);
        const bool exists = next + step <= end;
        if (exists) at = read_whole(at, down_bytes, keeps, ahead.values);
        ahead.first = exists ? next : Ahead::kNone;
      }
      HOOKSTATS_UNROLL
      for (int e = 0; e < kRows * kOwned; ++e) {
        tiles[e % kOwned].add(x[e], factor, offset[e % kOwned]);
      }
      if (kCounts && counts_) {
        count_tile(x, are_finite(tiles), counters, first + step * static_cast<uint32_t>(i));
      }
    }
    first += step * static_cast<uint32_t>(all);
    if (!are_finite(tiles)) return false;
    totals.add(tiles, zeros, extremes, static_cast<uint32_t>(all * kRows));
    return true;
  }

  static HOOKSTATS_DEVICE bool are_finite(const TileSums (&tiles)[kOwned]) {
    Real s2 = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) s2 += tiles[c].s2;
    return s2 < kInfinity<Real>;
  }

  // Sums the finite values of a tile, and tallies the others. Whether all are finite.
  HOOKSTATS_DEVICE bool add_any(Sums<Real> (&sums)[kOwned], const Real (&shift)[kOwned],
                                Real factor, const int32_t (&counters)[kOwned], uint32_t first,
                                bool counts) const {
    Values values[kRows];
    Tile x;
    read_tile(first, values);
    Source::scale_in_place(scale_, values);
    Source::widen_tile(common_, scale_, values, x);
    const Real finite_before = finite(sums);
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows * kOwned; ++i) {
      sums[i % kOwned].add(x[i], factor, -shift[i % kOwned] * factor);
    }
    const bool all_finite = finite(sums) - finite_before == kRows * kOwned;
    if (!all_finite) {
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows * kOwned; ++i) sums[i % kOwned].add_infinity(x[i]);
    }
    if (kCounts && counts) count_tile(x, false, counters, first);
    return all_finite;
  }

  static HOOKSTATS_DEVICE Real finite(const Sums<Real> (&sums)[kOwned]) {
    Real finite = 0;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) finite += sums[c].finite;
    return finite;
  }

  // Counts a tile from row `first` on, of which all values may be known to be `finite`.
  HOOKSTATS_DEVICE void count_tile(const Tile& tile, bool finite, const int32_t (&counters)[kOwned],
                                   uint32_t first) const {
    if constexpr (Source::kVectors) {
      if (!finite || !quickly_) {
        count_again(common_, item_, outer_, place_, first, tensor_.on(), channels_.on());
        return;
      }
      if (tensor_.table != nullptr) {
        const int32_t copy[] = {lane() & (tensor_.pitch - 1)};
        count_quickly<true, true>(tensor_, tile, copy);
      }
      if (channels_.table != nullptr) count_quickly<true, false>(channels_, tile, counters);
    } else {
      if (tensor_.on()) count_of_tensor(tensor_, tile);
      if (channels_.on()) count_of_channels(channels_, tile);
    }
  }

  // Any number of rows of the thread, in the tensor's histogram or in those of its channels.
  template <int N>
  HOOKSTATS_DEVICE void count_of_tensor(const Histogram& h, const Real (&x)[N]) const {
    const int32_t copy[] = {lane() & (h.pitch - 1)};
    count_any(h, x, item_.repeat, copy, [&](int) { return item_.tensor_counts; });
  }
  template <int N>
  HOOKSTATS_DEVICE void count_of_channels(const Histogram& h, const Real (&x)[N]) const {
    int32_t counters[kOwned];
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) counters[c] = counter(c);
    count_any(h, x, item_.repeat, counters,
              [&](int c) { return item_.channel_counts + channel(c) * h.bins.slots(); });
  }

  // Counts the finite values of a tile, by any histograms, from what it reads once more. Out of
  // line, as it is rare, and takes registers that the loops have no room for.
  static HOOKSTATS_OUT_OF_LINE void count_again(const Common& common, const Item& item,
                                                const Dim* outer, Place& place, uint32_t first,
                                                bool of_tensor, bool of_channels) {
    const ColumnsSum sum(common, item, outer, {}, {}, place);
    const Histogram* const h = block_histograms(common);
    Values values[kRows], row[1];
    sum.read_tile(first, values);
    Source::scale_in_place(sum.scale_, values);
    HOOKSTATS_NO_UNROLL
    for (int i = 0; i < kRows; ++i) {
      Real x[kOwned];
      move_up(values, row);
      sum.widen_all(row[0], x);
      if (of_tensor) sum.count_of_tensor(h[0], x);
      if (of_channels) sum.count_of_channels(h[1], x);
    }
  }

  bool counts_ = false, quickly_;
};

}  // namespace hookstats::cuda
