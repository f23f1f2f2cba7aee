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
  using Reader::exists, Reader::channel, Reader::counter, Reader::keeps_tile;
  using Reader::kRows;
  using Reader::outer_, Reader::read_rows, Reader::read_tile, Reader::read_whole, Reader::widen_all;
  using typename Reader::Real;
  using typename Reader::Values;
  using Tile = Real[kRows * kOwned];
  // Where the table of the channels has the thread's: those of columns follow from the first.
  static constexpr int kCounters = Source::kSkewed || Source::kMapped ? kOwned : 1;
  using Counters = int32_t[kCounters];
  // Rows that begin anywhere lose by it: they have no registers left.
  static constexpr bool kReadsAhead = !Source::kSkewed && !Source::kMasked;
  struct Nothing {
    HOOKSTATS_DEVICE explicit Nothing(void*) {}
    HOOKSTATS_DEVICE void begin() {}
  };
  using Whole = std::conditional_t<Source::kVectors, WholeTotals<Source>, Nothing>;

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

  // Sums this thread's rows, kAdditions at a time, and counts them if asked to.
  HOOKSTATS_DEVICE void sum(Totals<Real> (&sums)[kOwned], const Real (&shift)[kOwned], Real factor,
                            [[maybe_unused]] Whole& totals, bool counts) {
    counts_ = kCounts && counts && (tensor_.on() || channels_.on());
    if constexpr (!Source::kVectors) {
      sum_scalars(sums, shift);
    } else {
      keep_in_memory(place_);
      sum_vectors(shift, factor, totals);
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) {
        sums[c] = totals.of(scale_, thread_index(), c);
        sums[c].unscale(factor);
      }
      if constexpr (kCounts && Source::kSkewed) take_back_zeros();
      if (!kCounts || !counts_ || !tensor_.patterns()) return;
      // Which the table of patterns has among the tiniest positive values.
      uint32_t zeros = 0;
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) {
        if (!Source::kSkewed || exists(c)) zeros += sums[c].zeros();
      }
      add_shared(tensor_.unread + 1, zeros);
    }
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

  HOOKSTATS_DEVICE void sum_scalars(Totals<Real> (&sums)[kOwned],
                                    const Real (&shift)[kOwned]) const {
    const uint32_t step = static_cast<uint32_t>(place_.down * kRows);
    HOOKSTATS_NO_UNROLL
    for (uint32_t first = 0; first < place_.rows; first += step) {
      if constexpr (Source::kMasked) {
        if (!keeps_tile(first)) continue;
      }
      Values values[kRows];
      Tile x;
      read_tile(first, values);
      Source::widen_tile(common_, scale_, values, x);
      Sums<Real> tiles[kOwned];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows * kOwned; ++i) {
        tiles[i % kOwned].add(x[i], 1, -shift[i % kOwned]);
        tiles[i % kOwned].add_infinity(x[i]);
      }
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) {
        sums[c].add_sums(tiles[c]);
        sums[c].add_others(tiles[c]);
      }
      if (!kCounts || !counts_) continue;
      if (tensor_.on()) count_of_tensor(tensor_, x);
      if (channels_.on()) count_of_channels(channels_, x);
    }
  }

  // All lanes of a warp stay together, whatever their values are: no tile is read or summed twice.
  HOOKSTATS_DEVICE void sum_vectors(const Real (&shift)[kOwned], float factor,
                                    Whole& totals) const {
    constexpr int kWords = sizeof(Values) / sizeof(uint32_t);
    const uint32_t step = static_cast<uint32_t>(place_.down * kRows);
    const uint32_t rows = place_.rows;
    const uint32_t whole = Source::kSkewed || Source::kMasked ? Reader::whole_until() : rows;
    const uint32_t whole_from = place_.whole_from;
    const uintptr_t down_bytes = place_.down_bytes;
    const Values keeps = Reader::own_elements();
    Counters counters;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kCounters; ++c) counters[c] = kCounts && channels_.on() ? counter(c) : 0;
    float offset[kOwned];
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) offset[c] = -shift[c] * factor;
    uintptr_t at = Reader::row_address(0);  // of the tile that is read next
    const auto read_next = [&](uint32_t first, Values(&values)[kRows]) {
      if ((!Source::kSkewed || first >= whole_from) && first + step <= whole) {
        read_whole(at, down_bytes, keeps, values);
      } else {
        read_rows(first, values);
      }
      at += kRows * down_bytes;
    };
    [[maybe_unused]] Values ahead[kRows];  // under way while the tile before it is summed
    if constexpr (kReadsAhead) read_next(0, ahead);
    for (uint32_t first = 0; first < rows;) {
      TileSums tiles[kOwned];
      typename Source::template Extremes<kWords> extremes;
      typename Source::template Tallies<kWords> tallies;
      uint32_t tile = 0, skipped = 0;
      HOOKSTATS_NO_UNROLL
      for (; tile < kAdditions / kRows && first < rows; ++tile, first += step) {
        Values values[kRows];
        Tile x;
        if constexpr (kReadsAhead) {
          HOOKSTATS_UNROLL
          for (int r = 0; r < kRows; ++r) values[r] = ahead[r];
        } else {
          if (Source::kMasked && !keeps_tile(first)) {
            at += kRows * down_bytes;
            ++skipped;
            continue;
          }
          read_next(first, values);
        }
        Source::scale_in_place(scale_, values);
        Source::widen_tile(scale_, values, x, tallies);
        float l1[kOwned], all = 0;
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) {
          l1[c] = std::fabs(x[c]);
          HOOKSTATS_UNROLL
          for (int r = 1; r < kRows; ++r) l1[c] += std::fabs(x[r * kOwned + c]);
          all += l1[c];
        }
        if (!(all < kInfinity<float>)) leave_out(values, x, l1, offset, factor, counters, totals);
        HOOKSTATS_UNROLL
        for (int w = 0; w < kRows * kWords; ++w) {
          extremes.add(w % kWords, values[w / kWords].words[w % kWords]);
        }
        if constexpr (kReadsAhead) {
          if (first + step < rows) read_next(first + step, ahead);
        }
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) tiles[c].l1 += l1[c];
        HOOKSTATS_UNROLL
        for (int e = 0; e < kRows * kOwned; ++e) {
          tiles[e % kOwned].add_deviation(x[e], factor, offset[e % kOwned]);
        }
        if (kCounts && counts_) count_tile(x, counters, first);
      }
      totals.add(tiles, tallies, extremes, (tile - skipped) * kRows);
    }
  }

  // Tallies the values of a tile that are not finite, or missing, and makes NaNs of them in
  // `values`. In `x`, shifts take their places, which add nothing but to what is counted: from
  // there they are taken away. `l1` becomes the sums of the others' magnitudes.
  HOOKSTATS_DEVICE void leave_out(Values (&values)[kRows], Tile& x, float (&l1)[kOwned],
                                  const float (&offset)[kOwned], float factor,
                                  const Counters& counters, Whole& totals) const {
    const float back = -1.0f / factor;
    uint32_t lost = 0;  // of each channel eight bits
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      float greatest = 0;
      HOOKSTATS_UNROLL
      for (int r = 0; r < kRows; ++r) {  // fmax takes no notice of NaNs
        greatest = std::fmax(greatest, std::fabs(x[r * kOwned + c]));
      }
      if (greatest == kInfinity<float>) add_infinities(x, c, totals);
      l1[c] = 0;
      uint32_t own = 0;
      HOOKSTATS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const bool finite = replace_nonfinite(x[r * kOwned + c], offset[c] * back, l1[c], own);
        Source::make_nan_unless(finite, c, values[r]);
      }
      totals.leave_out(c, own);
      lost |= own << 8 * c;
    }
    if constexpr (kCounts) {
      float shift[kOwned];
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) shift[c] = offset[c] * back;
      const auto fewer = [&](int c) { return 0 - (lost >> 8 * c & 0xffu); };
      if (counts_ && quickly_ && tensor_.table != nullptr) {
        const int32_t copy[] = {lane() & (tensor_.pitch - 1)};
        count_quickly<true, true>(tensor_, shift, copy, fewer);
      }
      if (counts_ && quickly_ && channels_.table != nullptr) {
        int32_t all[kOwned];
        counters_of_all(counters, all);
        count_quickly<true, false>(channels_, shift, all, fewer);
      }
    }
  }

  HOOKSTATS_DEVICE void add_infinities(const Tile& x, int c, Whole& totals) const {
    uint32_t positive = 0, negative = 0;
    HOOKSTATS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      positive += x[r * kOwned + c] == kInfinity<float> ? 1 : 0;
      negative += x[r * kOwned + c] == -kInfinity<float> ? 1 : 0;
    }
    totals.add_infinities(Reader::tally_place(c), positive, negative);
  }

  // Counts a tile from row `first` on, all of whose values are finite by now.
  HOOKSTATS_DEVICE void count_tile(const Tile& tile, const Counters& counters,
                                   uint32_t first) const {
    if (!quickly_) {
      count_again(common_, item_, outer_, place_, first, tensor_.on(), channels_.on());
      return;
    }
    if (tensor_.table != nullptr) {
      const int32_t copy[] = {lane() & (tensor_.pitch - 1)};
      count_quickly<true, true>(tensor_, tile, copy);
    }
    if (channels_.table == nullptr) return;
    int32_t all[kOwned];
    counters_of_all(counters, all);
    count_quickly<true, false>(channels_, tile, all);
  }

  HOOKSTATS_DEVICE void counters_of_all(const Counters& counters, int32_t (&all)[kOwned]) const {
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      all[c] = kCounters == 1 ? counters[0] + c * Reader::across() : counters[c % kCounters];
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

  // Counts the finite values of a tile, where a histogram takes a search, from what it reads once
  // more. Out of line, as it is rare, and takes registers that the loops have no room for.
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
