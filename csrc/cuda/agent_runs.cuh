// Elements of one channel lie side by side: whole tensors, channels first, rows. A team, which is a
// few lanes, a warp or a block, takes a piece of a channel, one vector per thread at a time.
#pragma once

#include "cuda/counting.cuh"
#include "cuda/fold.cuh"
#include "cuda/kept.cuh"
#include "cuda/source.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts, bool kHigher>
class Runs {
  using Real = typename Source::Real;
  static constexpr int kElements = Source::kElements;
  using Values = typename Source::template Values<kElements>;
  using Tile = Real[kInFlight * kElements];
  // Whether a team may be kLanes lanes: those of a warp read as many elements each.
  static constexpr bool kHasLanes = Source::kVectors && !Source::kMasked;

 public:
  using Seen = ChannelOf<kHigher>;
  using From = Source;
  struct Place {};  // columns have one

  // Counters of a slot of a channel's table: one if every warp has a table, which leaves no room.
  static HOOKSTATS_DEVICE int32_t channel_pitch(const Common& common, const Item& item) {
    return item.teams > 1 ? 1 : common.shared.channel_copies;
  }

  HOOKSTATS_DEVICE Runs(const Common& common, const Item& item, const Dim* outer,
                        const Histogram& tensor, const Histogram& channels, Place&)
      : common_(common),
        item_(item),
        outer_(outer),
        scale_(common),
        tensor_(tensor),
        channels_(channels),
        team_threads_(block_threads() / item.teams),
        team_(thread_index() / team_threads_),
        thread_(thread_index() % team_threads_),
        element_size_(Source::element_size(common)),
        counts_(kCounts && (tensor.on() || channels.on())),
        quickly_(Source::kVectors && tensor.way != Way::kAny && channels.way != Way::kAny) {
    team_counter_ = kCounts && channels_.on() ? first_counter(channels_, team_) : 0;
  }

  // The pieces of this block, the `block`-th of the item's; there are fewer than 2^31 blocks.
  HOOKSTATS_DEVICE void run(int block, void* scratch) {
    const uint32_t teams = static_cast<uint32_t>(item_.teams);
    const uint32_t pieces = static_cast<uint32_t>(item_.groups * item_.splits());
    for (uint32_t first = static_cast<uint32_t>(block) * teams; first < pieces;
         first += static_cast<uint32_t>(item_.blocks) * teams) {
      const uint32_t piece = first + static_cast<uint32_t>(team_);
      if (teams == 1) {
        Piece p = piece_at(piece);
        if constexpr (Source::kMasked) {
          keep(p, kept_by_block(common_.rows, p.row, p.rows, static_cast<KeptIndices*>(scratch)));
        }
        run_block(p, scratch);
      } else if (teams == kWarps) {
        if (piece >= pieces) continue;
        Piece p = piece_at(piece);
        if constexpr (Source::kMasked) keep(p, kept_by_warp(common_.rows, p.row, 0, p.rows));
        run_lanes<kWarp>(p, true);
      } else if constexpr (kHasLanes) {
        // A warp's lanes go through this together, also those of a team without a piece.
        if (piece - static_cast<uint32_t>(team_ % (kWarp / kLanes)) >= pieces) continue;
        Piece p = piece_at(piece < pieces ? piece : pieces - 1);
        if (piece >= pieces) p.length = 0;
        run_lanes<kLanes>(p, piece < pieces);
      }
    }
  }

 private:
  // `rows` rows of `length` elements, each `slots.divisor` slots.
  struct Piece {
    uintptr_t address;  // of the first row, but for dimensions beyond one
    uint32_t before;    // bytes of the one row that are before the address, where vectors begin
    int64_t row_bytes, row;
    uint32_t channel, rows, length, slots;
    uint32_t kept;  // rows, of a mask
    int split;
  };

  HOOKSTATS_DEVICE Piece piece_at(uint32_t index) const {
    const uint32_t splits = static_cast<uint32_t>(item_.splits());
    Piece p;
    p.channel = index / splits;
    p.split = static_cast<int>(index % splits);
    p.row = (p.split / item_.inner_splits) * item_.row_step;
    const int64_t rows_left = item_.outer_size - p.row;
    p.rows = static_cast<uint32_t>(rows_left < item_.row_step ? rows_left : item_.row_step);
    const int64_t inner = (p.split % item_.inner_splits) * item_.inner_step;
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

  // Cuts a piece to the rows from the first kept one to the last.
  HOOKSTATS_DEVICE void keep(Piece& p, const KeptIndices& kept) const {
    p.kept = kept.count;
    const uint32_t slots = p.rows > 1 ? item_.slots.divisor : p.slots;
    p.rows = kept.count == 0 ? 0 : kept.end - kept.first;
    p.slots = p.rows * slots;
    if (kept.count == 0) return;
    p.row += kept.first;
    p.address += static_cast<uintptr_t>(kept.first * p.row_bytes);
  }

  // Whether the mask keeps the row of a slot of the piece.
  HOOKSTATS_DEVICE bool keeps_slot(const Piece& p, uint32_t slot) const {
    return slot < p.slots &&
           (p.kept == p.rows || keeps(common_.rows, p.row + item_.slots.quotient(slot)));
  }

  // The vector of a slot, perhaps with what is beside the run: `exist` says which elements are its
  // own, one bit each. What leaves the others out waits for the vector.
  HOOKSTATS_DEVICE Values begin_to_read(const Piece& p, uint32_t slot, uint32_t& exist) const {
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
      // In bytes from where vectors begin; a piece's part of a row has fewer than 2^31.
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

  // How many of the piece's slots, from the first on, are whole vectors side by side.
  HOOKSTATS_DEVICE uint32_t whole_slots(const Piece& p) const {
    if (!Source::kVectors || p.rows > 1 || p.address % 16 != 0) return 0;
    const uint32_t before = p.before / static_cast<uint32_t>(element_size_);
    return p.length < before ? 0 : (p.length - before) / kElements;
  }

  // The vectors of this thread from slot `first` on.
  template <int kTeam>
  HOOKSTATS_DEVICE void read_tile(const Piece& p, uint32_t first, uint32_t whole,
                                  Values (&values)[kInFlight]) const {
    if constexpr (Source::kVectors) {
      if (first + kTeam * kInFlight <= whole) {
        const uintptr_t at = p.address + uint64_t{first + static_cast<uint32_t>(thread_)} * 16;
        HOOKSTATS_UNROLL
        for (int i = 0; i < kInFlight; ++i) values[i] = Source::read_whole(at, i * kTeam * 16);
        return;
      }
    }
    uint32_t exist[kInFlight];
    HOOKSTATS_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      values[i] = begin_to_read(p, first + static_cast<uint32_t>(i * kTeam + thread_), exist[i]);
    }
    HOOKSTATS_UNROLL
    for (int i = 0; i < kInFlight; ++i) Source::leave_out(exist[i], values[i]);
  }

  // Whether the mask keeps something that the warp has in a tile.
  template <int kTeam>
  HOOKSTATS_DEVICE bool keeps_tile(const Piece& p, uint32_t first) const {
    bool some = false;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      some |= keeps_slot(p, first + static_cast<uint32_t>(i * kTeam + thread_));
    }
    return any_in_warp(some);
  }

  // Sums the tile as if all its values were finite, and counts nothing; false, with nothing summed,
  // if some value of the warp is not.
  HOOKSTATS_DEVICE bool add_finite(const Tile& x, uint32_t zeros, float factor, float offset,
                                   Totals<Real, kHigher>& sums) const {
    TileSums tile;
    HOOKSTATS_UNROLL
    for (const Real each : x) tile.add(each, factor, offset);
    if (any_in_warp(!tile.finite())) return false;
    sums.add(tile, zeros, kInFlight * kElements);
    return true;
  }

  // Sums the tile's finite values, and tallies the others. Whether all were finite.
  HOOKSTATS_DEVICE bool add_any(const Tile& x, Real factor, Real offset,
                                Totals<Real, kHigher>& sums, Others<Real>& rare) const {
    Sums<Real, kHigher> tile;
    HOOKSTATS_UNROLL
    for (const Real each : x) tile.add(each, factor, offset);
    const bool all_finite = tile.finite == kInFlight * kElements;
    if (!all_finite) {
      HOOKSTATS_UNROLL
      for (const Real each : x) tile.add_infinity(each);
    }
    sums.add_sums(tile);
    rare.add_others(tile);
    return all_finite;
  }

  // The sums of this warp's part of the piece, or of a team of fewer lanes, for every lane. The
  // caller counts NaNs. A tile with values that are not finite is summed twice, the tiles after it
  // once, until one is finite; which is asked of all lanes of a warp together.
  template <int kTeam>
  HOOKSTATS_DEVICE Seen sum(const Piece& p) {
    constexpr bool kTiles = Source::kVectors && !kHigher;
    Totals<Real, kHigher> sums;
    Others<Real> rare;  // of tiles that are not summed as finite ones
    if constexpr (kTiles) keep_in_memory(rare);
    if constexpr (kTiles && Source::kMasked) keep_in_memory(p);
    [[maybe_unused]] typename Source::template Extremes<1> extremes;
    Real shift = 0, factor = 1, offset = 0;
    bool finite = true;
    [[maybe_unused]] bool begun = false;
    const uint32_t whole = whole_slots(p);
    for (uint32_t first = 0; first < p.slots; first += kTeam * kInFlight) {
      bool begins = first == 0;
      if constexpr (Source::kMasked) {
        if (!keeps_tile<kTeam>(p, first)) continue;
        begins = !begun;
        begun = true;
      }
      Values values[kInFlight];
      read_tile<kTeam>(p, first, whole, values);
      Source::scale_in_place(scale_, values);
      if (begins) {
        Real x[kElements];
        widen_all(values[0], x);
        shift = lanes_mean<kLanesOf<kTeam>>(tree_mean(x));
        if constexpr (kTiles) factor = factor_for(warp_magnitude(x));
        offset = -shift * factor;
      }
      Tile x;
      bool added = false;
      if constexpr (kTiles) {
        auto with = extremes;
        typename Source::template Zeros<1> zeros;
        HOOKSTATS_UNROLL
        for (int i = 0; i < kInFlight; ++i) {
          HOOKSTATS_UNROLL
          for (const uint32_t word : values[i].words) with.add(0, word);
        }
        Source::widen_tile(scale_, values, x, zeros);
        if (finite) added = add_finite(x, zeros.all(), factor, offset, sums);
        if (added) extremes = with;
      } else {
        Source::widen_tile(common_, scale_, values, x);
      }
      if (!added) finite = !any_in_warp(!add_any(x, factor, offset, sums, rare));
      if constexpr (kCounts) {
        if (counts_) count_tile<kTeam>(p, first, x, finite);
      }
    }
    sums.add_others(rare);
    if constexpr (kTiles) {
      HOOKSTATS_UNROLL
      for (int e = 0; e < Source::kElementsAWord; ++e) {
        extremes.put(scale_, e, sums.least, sums.greatest);
      }
    }
    sums.reduce(kLanesOf<kTeam>);
    // Which the table of patterns has among the tiniest positive values.
    if (kCounts && tensor_.patterns() && lane() % kTeam == 0) {
      add_shared(tensor_.unread + 1, sums.wide_zero);
    }
    double wide_shift = static_cast<double>(shift);
    if constexpr (kTiles) sums.unscale(factor);
    const bool again = !sums.trusted(sums.least_square(static_cast<float>(factor)));
    if (any_in_warp(again)) {
      if (again) wide_shift = sums.mean(wide_shift);
      const WideSums<kHigher> wide = sum_again<kTeam>(p, wide_shift);
      if (again) wide.replace(sums);
    }
    return sums.channel(wide_shift);
  }

  template <int kTeam>
  HOOKSTATS_DEVICE WideSums<kHigher> sum_again(const Piece& p, double shift) const {
    WideSums<kHigher> sums;
    HOOKSTATS_NO_UNROLL
    for (uint32_t first = 0; first < p.slots; first += kTeam * kInFlight) {
      Values values[kInFlight], some[1];
      read_tile<kTeam>(p, first, whole_slots(p), values);
      Source::scale_in_place(scale_, values);
      HOOKSTATS_NO_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        Real x[kElements];
        move_up(values, some);
        widen_all(some[0], x);
        HOOKSTATS_UNROLL
        for (int e = 0; e < kElements; ++e) sums.add(static_cast<double>(x[e]), shift);
      }
    }
    sync_warp();
    sums.reduce(kLanesOf<kTeam>);
    return sums;
  }

  // Counts a tile from slot `first` on, of which all values may be known to be `finite`.
  template <int kTeam>
  HOOKSTATS_DEVICE void count_tile(const Piece& p, uint32_t first, const Tile& tile,
                                   bool finite) const {
    if constexpr (Source::kVectors) {
      if (!finite || !quickly_) {
        count_again<kTeam>(common_, item_, outer_, p, first, tensor_.on(), channels_.on());
        return;
      }
      if (tensor_.table != nullptr) {
        const int32_t copy[] = {lane() & (tensor_.pitch - 1)};
        count_quickly<true, true>(tensor_, tile, copy);
      }
      if (channels_.table != nullptr) {
        const int32_t copy[] = {team_counter_ + (lane() & (channels_.pitch - 1))};
        count_quickly<true, false>(channels_, tile, copy);
      }
    } else {
      if (tensor_.on()) count_in(tensor_, item_.tensor_counts, 0, tile);
      if (channels_.on()) count_in(channels_, state(p, channels_), team_, tile);
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
  template <int kTeam>
  static HOOKSTATS_OUT_OF_LINE void count_again(const Common& common, const Item& item,
                                                const Dim* outer, const Piece& p, uint32_t first,
                                                bool of_tensor, bool of_channels) {
    const Histogram* const h = block_histograms(common);
    Place place;
    const Runs runs(common, item, outer, {}, {}, place);
    Values values[kInFlight], some[1];
    runs.template read_tile<kTeam>(p, first, runs.whole_slots(p), values);
    Source::scale_in_place(runs.scale_, values);
    HOOKSTATS_NO_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      Real x[kElements];
      move_up(values, some);
      runs.widen_all(some[0], x);
      if (of_tensor) runs.count_in(h[0], item.tensor_counts, 0, x);
      if (of_channels) runs.count_in(h[1], runs.state(p, h[1]), runs.team_, x);
    }
  }

  // The counter with which the `table`-th of a histogram's tables begins.
  static HOOKSTATS_DEVICE int32_t first_counter(const Histogram& h, int table) {
    return table * static_cast<int32_t>(h.bins.slots()) * h.pitch;
  }

  HOOKSTATS_DEVICE int64_t* state(const Piece& p, const Histogram& channels) const {
    return item_.channel_counts + p.channel * channels.bins.slots();
  }

  HOOKSTATS_DEVICE void add_channel_table(const Piece& p) const {
    if (!kCounts || channels_.table == nullptr) return;
    add_table(channels_.table + team_counter_, channels_.bins.slots(), channels_.pitch,
              state(p, channels_), item_.repeat, thread_, team_threads_);
  }

  HOOKSTATS_DEVICE void count_nan(const Piece& p, Channel& seen) const {
    seen.nan = int64_t{p.kept} * p.length - seen.count - seen.posinf - seen.neginf;
  }

  // A piece of a warp, or of kTeam of its lanes, which may be there to keep the others company.
  template <int kTeam>
  HOOKSTATS_DEVICE void run_lanes(const Piece& p, bool exists) {
    Seen seen = sum<kTeam>(p);
    sync_warp();
    add_channel_table(p);
    sync_warp();
    count_nan(p, seen);
    if (exists && lane() % kTeam == 0) fold(item_, p.channel, seen);
  }

  HOOKSTATS_DEVICE void run_block(const Piece& p, void* scratch) {
    const Seen mine = sum<kBlock>(p);
    sync_block();  // before the table is read
    add_channel_table(p);
    merge_rows(scratch, mine, lane() == 0 ? warp() : kWarps, 0, 1, kWarps);
    if (thread_index() == 0) {
      Seen seen = entry<Seen>(scratch, 0);
      count_nan(p, seen);
      if (item_.splits() == 1) {
        fold(item_, p.channel, seen);
      } else {
        store_partial(item_, p.split, p.channel, seen);
      }
    }
    if (item_.splits() > 1) {
      if (last_of(item_.tickets + p.channel, item_.splits())) {
        fold_partials<Seen>(item_, p.channel, 1, scratch);
      }
    }
    sync_block();
  }

  const Common& common_;
  const Item& item_;
  const Dim* outer_;
  Scale scale_;
  Histogram tensor_, channels_;
  int team_threads_, team_, thread_;
  int64_t element_size_;
  int32_t team_counter_;  // where the team's table begins
  bool counts_, quickly_;
};

}  // namespace hookstats::cuda
