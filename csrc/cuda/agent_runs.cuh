// Elements of one channel lie side by side: whole tensors, channels first, rows. A cooperative
// group, a few lanes, a warp or a block, takes a split of a channel, one vector per thread at a
// time.
#pragma once

#include "cuda/accumulate.cuh"
#include "cuda/counting.cuh"
#include "cuda/runs_reader.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts>
class Runs : RunsReader<Source> {
  using Base = RunsReader<Source>;
  using Base::common_, Base::item_, Base::outer_, Base::scale_;
  using Base::group_threads_, Base::group_, Base::thread_;
  using Base::kElements, Base::keep, Base::split_at, Base::whole_slots, Base::widen_all;
  using typename Base::Real;
  using typename Base::Split;
  using typename Base::Values;
  using Tile = Real[kItemsPerThread * kElements];
  using Extremes = typename Source::template Extremes<1>;
  using Tallies = typename Source::template Tallies<1>;
  // Whether a group may be kLanes lanes: those of a warp read as many elements each.
  static constexpr bool kHasLanes = Source::kVectors && !Source::kMasked;

 public:
  using From = Source;
  struct Place {};  // columns have one

  // Counters of a slot of a channel's table: one if every warp has a table, which leaves no room.
  static HOOKSTATS_DEVICE int32_t channel_pitch(const Common& common, const Item& item) {
    return item.groups > 1 ? 1 : common.shared.channel_copies;
  }

  HOOKSTATS_DEVICE Runs(const Common& common, const Item& item, const Dim* outer,
                        const Histogram& tensor, const Histogram& channels, Place&)
      : Base(common, item, outer),
        tensor_(tensor),
        channels_(channels),
        counts_(kCounts && (tensor.on() || channels.on())),
        quickly_(Source::kVectors && tensor.way != Way::kAny && channels.way != Way::kAny) {
    group_counter_ = kCounts && channels_.on() ? first_counter(channels_, group_) : 0;
  }

  // The splits of this block, the `block`-th of the item's; there are fewer than 2^31 blocks.
  HOOKSTATS_DEVICE void run(int block, void* scratch) {
    const uint32_t groups = static_cast<uint32_t>(item_.groups);
    const uint32_t tasks = static_cast<uint32_t>(item_.channel_blocks * item_.splits());
    for (uint32_t first = static_cast<uint32_t>(block) * groups; first < tasks;
         first += static_cast<uint32_t>(item_.blocks) * groups) {
      const uint32_t task = first + static_cast<uint32_t>(group_);
      if (groups == 1) {
        Split p = split_at(task);
        if constexpr (Source::kMasked) {
          keep(p, kept_by_block(common_.rows, p.row, p.rows, static_cast<KeptIndices*>(scratch)));
        }
        run_block(p, scratch);
      } else if (groups == kWarps) {
        if (task >= tasks) continue;
        Split p = split_at(task);
        if constexpr (Source::kMasked) keep(p, kept_by_warp(common_.rows, p.row, 0, p.rows));
        run_lanes<kWarp>(p, true);
      } else if constexpr (kHasLanes) {
        // A warp's lanes go through this together, also those of a group without a split.
        if (task - static_cast<uint32_t>(group_ % (kWarp / kLanes)) >= tasks) continue;
        Split p = split_at(task < tasks ? task : tasks - 1);
        if (task >= tasks) p.length = 0;
        run_lanes<kLanes>(p, task < tasks);
      }
    }
  }

 private:
  // The least of the warp's numbers, each of which a group of kGroup lanes has.
  template <int kGroup>
  static HOOKSTATS_DEVICE uint32_t least_of_warp(uint32_t n) {
    HOOKSTATS_UNROLL
    for (int mask = kGroup; mask < kWarp; mask *= 2) {
      const uint32_t other = shuffle_xor(n, mask);
      n = other < n ? other : n;
    }
    return n;
  }

  // Widens a tile of vectors, and adds it to what is found in memory's own words.
  HOOKSTATS_DEVICE void widen_tile(const Values (&values)[kItemsPerThread], Tile& x,
                                   Extremes& extremes, Tallies& tallies) const {
    HOOKSTATS_UNROLL
    for (int i = 0; i < kItemsPerThread; ++i) {
      HOOKSTATS_UNROLL
      for (const uint32_t word : values[i].words) extremes.add(0, word);
    }
    Source::widen_tile(scale_, values, x, tallies);
  }

  // Sums the tile as if all its values were finite, and counts nothing; false, with nothing summed,
  // if some value of the warp is not.
  HOOKSTATS_DEVICE bool add_finite(const Tile& x, const Tallies& tallies, float factor,
                                   float offset, Totals<Real>& sums) const {
    TileSums tile;
    HOOKSTATS_UNROLL
    for (const Real each : x) tile.add(each, factor, offset);
    if (any_in_warp(!tile.finite())) return false;
    sums.add(tile, tallies, kItemsPerThread * kElements);
    return true;
  }

  // Sums the tile's finite values, and tallies the others. Whether all were finite.
  HOOKSTATS_DEVICE bool add_any(const Tile& x, Real factor, Real offset, Totals<Real>& sums,
                                Others<Real>& rare) const {
    Sums<Real> tile;
    HOOKSTATS_UNROLL
    for (const Real each : x) tile.add(each, factor, offset);
    const bool all_finite = tile.finite == kItemsPerThread * kElements;
    if (!all_finite) {
      HOOKSTATS_UNROLL
      for (const Real each : x) tile.add_infinity(each);
    }
    sums.add_sums(tile);
    rare.add_others(tile);
    return all_finite;
  }

  // Sums whole tiles from slot `first` on, which is read already, as if all their values were
  // finite, and counts them, up to the first tile with one that is not, or to slot `whole`. The
  // next tile is under way meanwhile. Returns where it ended.
  template <int kGroup>
  HOOKSTATS_DEVICE uint32_t add_whole(const Split& p, uint32_t first, uint32_t whole,
                                      Values (&ahead)[kItemsPerThread], float factor, float offset,
                                      Totals<Real>& sums, Extremes& extremes) const {
    constexpr uint32_t kTile = kGroup * kItemsPerThread;
    HOOKSTATS_NO_UNROLL
    for (; first + kTile <= whole; first += kTile) {
      Values values[kItemsPerThread];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kItemsPerThread; ++i) values[i] = ahead[i];
      Source::scale_in_place(scale_, values);
      auto with = extremes;
      Tallies tallies;
      Tile x;
      widen_tile(values, x, with, tallies);
      if (first + 2 * kTile <= whole) Base::template read_whole<kGroup>(p, first + kTile, ahead);
      if (!add_finite(x, tallies, factor, offset, sums)) break;
      extremes = with;
      if constexpr (kCounts) {
        if (counts_) count_quick(x);
      }
    }
    return first;
  }

  // The sums of this warp's part of the split, or of a group of fewer lanes, for every lane. The
  // caller counts NaNs. A tile with values that are not finite is summed twice, the tiles after it
  // once, until one is finite; which is asked of all lanes of a warp together.
  template <int kGroup>
  HOOKSTATS_DEVICE Channel sum(const Split& p) {
    Totals<Real> sums;
    Others<Real> rare;  // of tiles that are not summed as finite ones
    if constexpr (Source::kVectors) keep_in_memory(rare);
    if constexpr (Source::kVectors && Source::kMasked) keep_in_memory(p);
    [[maybe_unused]] Extremes extremes;
    Real shift = 0, factor = 1, offset = 0;
    bool finite = true;
    bool begun = false;
    // Finds the shift by the group's first vectors.
    const auto begin_at = [&](const Values& first) {
      Values values[1] = {first};
      Real x[kElements];
      Source::scale_in_place(scale_, values);
      widen_all(values[0], x);
      shift = lanes_mean<kLanesOf<kGroup>>(tree_mean(x));
      if constexpr (Source::kVectors) factor = factor_for(warp_magnitude(x));
      offset = -shift * factor;
      begun = true;
    };
    constexpr uint32_t kTile = kGroup * kItemsPerThread;
    const uint32_t whole = whole_slots(p), whole_of_all = least_of_warp<kGroup>(whole);
    for (uint32_t first = 0; first < p.slots; first += kTile) {
      if constexpr (Source::kVectors) {
        if (finite && (!counts_ || quickly_) && first + kTile <= whole_of_all) {
          Values ahead[kItemsPerThread];
          Base::template read_whole<kGroup>(p, first, ahead);
          if (first == 0) begin_at(ahead[0]);
          first = add_whole<kGroup>(p, first, whole_of_all, ahead, factor, offset, sums, extremes);
          if (first >= p.slots) break;
          finite = first + kTile > whole_of_all;
        }
      }
      if constexpr (Source::kMasked) {
        if (p.kept != p.rows && !Base::template keeps_tile<kGroup>(p, first)) continue;
      }
      Values values[kItemsPerThread];
      Base::template read_tile<kGroup>(p, first, whole, values);
      if (!begun) begin_at(values[0]);
      Source::scale_in_place(scale_, values);
      Tile x;
      bool added = false;
      if constexpr (Source::kVectors) {
        auto with = extremes;
        Tallies tallies;
        widen_tile(values, x, with, tallies);
        if (finite) added = add_finite(x, tallies, factor, offset, sums);
        if (added) extremes = with;
      } else {
        Source::widen_tile(common_, scale_, values, x);
      }
      if (!added) finite = !any_in_warp(!add_any(x, factor, offset, sums, rare));
      if constexpr (kCounts) {
        if (counts_) count_tile<kGroup>(p, first, x, finite);
      }
    }
    sums.add_others(rare);
    if constexpr (Source::kVectors) {
      HOOKSTATS_UNROLL
      for (int e = 0; e < Source::kElementsAWord; ++e) {
        extremes.put(scale_, e, sums.least, sums.greatest);
      }
    }
    sums.reduce(kLanesOf<kGroup>);
    // Which the table of patterns has among the tiniest positive values.
    if (kCounts && tensor_.patterns() && lane() % kGroup == 0) {
      add_shared(tensor_.unread + 1, sums.zeros());
    }
    double wide_shift = static_cast<double>(shift);
    if constexpr (Source::kVectors) sums.unscale(factor);
    const bool again = !sums.trusted(sums.least_square(static_cast<float>(factor)));
    if (any_in_warp(again)) {
      if (again) wide_shift = sums.mean(wide_shift);
      const WideSums wide = sum_again<kGroup>(p, wide_shift);
      if (again) wide.replace(sums);
    }
    return sums.channel(wide_shift);
  }

  template <int kGroup>
  HOOKSTATS_DEVICE WideSums sum_again(const Split& p, double shift) const {
    WideSums sums;
    HOOKSTATS_NO_UNROLL
    for (uint32_t first = 0; first < p.slots; first += kGroup * kItemsPerThread) {
      Values values[kItemsPerThread], some[1];
      Base::template read_tile<kGroup>(p, first, whole_slots(p), values);
      Source::scale_in_place(scale_, values);
      HOOKSTATS_NO_UNROLL
      for (int i = 0; i < kItemsPerThread; ++i) {
        Real x[kElements];
        move_up(values, some);
        widen_all(some[0], x);
        HOOKSTATS_UNROLL
        for (int e = 0; e < kElements; ++e) sums.add(static_cast<double>(x[e]), shift);
      }
    }
    sync_warp();
    sums.reduce(kLanesOf<kGroup>);
    return sums;
  }

  // Counts a tile from slot `first` on, of which all values may be known to be `finite`.
  template <int kGroup>
  HOOKSTATS_DEVICE void count_tile(const Split& p, uint32_t first, const Tile& tile,
                                   bool finite) const {
    if constexpr (Source::kVectors) {
      if (!finite || !quickly_) {
        count_again<kGroup>(common_, item_, outer_, p, first, tensor_.on(), channels_.on());
        return;
      }
      count_quick(tile);
    } else {
      if (tensor_.on()) count_in(tensor_, item_.tensor_counts, 0, tile);
      if (channels_.on()) count_in(channels_, state(p, channels_), group_, tile);
    }
  }

  // Counts a tile of finite values, where no histogram takes a search.
  HOOKSTATS_DEVICE void count_quick(const Tile& tile) const {
    if (tensor_.table != nullptr) {
      const int32_t copy[] = {lane() & (tensor_.pitch - 1)};
      count_quickly<true, true>(tensor_, tile, copy);
    }
    if (channels_.table != nullptr) {
      const int32_t copy[] = {group_counter_ + (lane() & (channels_.pitch - 1))};
      count_quickly<true, false>(channels_, tile, copy);
    }
  }

  // In the `table`-th of a histogram's tables, or without one in its state.
  template <int N>
  HOOKSTATS_DEVICE void count_in(const Histogram& h, int64_t* state, int table,
                                 const Real (&x)[N]) const {
    const int32_t copy[] = {first_counter(h, table) + (lane() & (h.pitch - 1))};
    count_any(h, x, item_.repeat, copy, [=](int) { return state; });
  }

  // Counts the finite values of a tile, by any histograms, from what it reads once more. Out of
  // line, as it is rare, and takes registers that the loops have no room for.
  template <int kGroup>
  static HOOKSTATS_OUT_OF_LINE void count_again(const Common& common, const Item& item,
                                                const Dim* outer, const Split& p, uint32_t first,
                                                bool of_tensor, bool of_channels) {
    const Histogram* const h = block_histograms(common);
    Place place;
    const Runs runs(common, item, outer, {}, {}, place);
    Values values[kItemsPerThread], some[1];
    runs.template read_tile<kGroup>(p, first, runs.whole_slots(p), values);
    Source::scale_in_place(runs.scale_, values);
    HOOKSTATS_NO_UNROLL
    for (int i = 0; i < kItemsPerThread; ++i) {
      Real x[kElements];
      move_up(values, some);
      runs.widen_all(some[0], x);
      if (of_tensor) runs.count_in(h[0], item.tensor_counts, 0, x);
      if (of_channels) runs.count_in(h[1], runs.state(p, h[1]), runs.group_, x);
    }
  }

  // The counter with which the `table`-th of a histogram's tables begins.
  static HOOKSTATS_DEVICE int32_t first_counter(const Histogram& h, int table) {
    return table * static_cast<int32_t>(h.bins.slots()) * h.pitch;
  }

  HOOKSTATS_DEVICE int64_t* state(const Split& p, const Histogram& channels) const {
    return item_.channel_counts + p.channel * channels.bins.slots();
  }

  HOOKSTATS_DEVICE void add_channel_table(const Split& p) const {
    if (!kCounts || channels_.table == nullptr) return;
    add_table(channels_.table + group_counter_, channels_.bins.slots(), channels_.pitch,
              state(p, channels_), item_.repeat, thread_, group_threads_);
  }

  HOOKSTATS_DEVICE void count_nan(const Split& p, Channel& seen) const {
    seen.nan = int64_t{p.kept} * p.length - seen.count - seen.posinf - seen.neginf;
  }

  // A split of a warp, or of kGroup of its lanes, which may be there to keep the others company.
  template <int kGroup>
  HOOKSTATS_DEVICE void run_lanes(const Split& p, bool exists) {
    Channel seen = sum<kGroup>(p);
    sync_warp();
    add_channel_table(p);
    sync_warp();
    count_nan(p, seen);
    if (exists && lane() % kGroup == 0) accumulate(item_, p.channel, seen);
  }

  HOOKSTATS_DEVICE void run_block(const Split& p, void* scratch) {
    const Channel mine = sum<kBlock>(p);
    sync_block();  // before the table is read
    add_channel_table(p);
    merge_rows(scratch, mine, lane() == 0 ? warp() : kWarps, 0, 1, kWarps);
    if (thread_index() == 0) {
      Channel seen = entry<Channel>(scratch, 0);
      count_nan(p, seen);
      if (item_.splits() == 1) {
        accumulate(item_, p.channel, seen);
      } else {
        store_partial(item_, p.index, p.channel, seen);
      }
    }
    if (item_.splits() > 1) {
      if (is_last_block(item_.block_counters + p.channel, item_.splits())) {
        accumulate_partials(item_, p.channel, 1, scratch);
      }
    }
    sync_block();
  }

  Histogram tensor_, channels_;
  int32_t group_counter_;  // where the group's table begins
  bool counts_, quickly_;
};

}  // namespace hookstats::cuda
