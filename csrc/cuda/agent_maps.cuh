// Rows in which each channel has a few elements side by side: maps, of 7x7 say. Threads walk down
// the rows as those of columns do, whatever the channels are; in the end what they saw of a channel
// is merged. A block has the maps of several channels, or a part of a larger one.
#pragma once

#include "cuda/accumulate.cuh"
#include "cuda/columns_sum.cuh"

namespace hookstats::cuda {

template <class Source, bool kCounts>
class Maps : ColumnsSum<Source, kCounts> {
  using Sum = ColumnsSum<Source, kCounts>;
  using Sum::item_, Sum::channels_, Sum::place_, Sum::sum_again;
  using typename Sum::Real;

 public:
  using typename Sum::From;
  using typename Sum::Place;

  // Counters of a slot, in the table that each channel of the block has.
  static HOOKSTATS_DEVICE int32_t channel_pitch(const Common& common, const Item&) {
    return common.shared.channel_copies;
  }

  HOOKSTATS_DEVICE Maps(const Common& common, const Item& item, const Dim* outer,
                        const Histogram& tensor, const Histogram& channels, Place& place)
      : Sum(common, item, outer, tensor, channels, place) {
    Sum::find_thread();
  }

  // The splits of this block, the `block`-th of the item's blocks.
  HOOKSTATS_DEVICE void run(int block, void* scratch) {
    const int64_t tasks = int64_t{item_.channel_blocks} * item_.splits();
    for (int64_t task = block; task < tasks; task += item_.blocks) {
      const int channel_block = static_cast<int>(task % item_.channel_blocks);
      const int split = static_cast<int>(task / item_.channel_blocks);
      Sum::begin(channel_block, split, scratch);
      run_split(channel_block, split, scratch);
    }
  }

 private:
  // Sums about a shift, which all of a channel have.
  struct About : Totals<Real> {
    Real shift = 0;

    friend HOOKSTATS_DEVICE void merge(About& into, const About& from) {
      into.add(from);
      if (from.wide_finite != 0) into.shift = from.shift;
    }
  };

  HOOKSTATS_DEVICE void run_split(int channel_block, int split, void* scratch) {
    const int maps = Sum::width() / place_.map;
    const int entries = most_sharing(place_.map, kOwned) * place_.down;
    Totals<Real> sums[kOwned];
    Real shift[kOwned];
    const Real factor = Sum::find_shift(shift, scratch);
    typename Sum::Whole totals(scratch);
    totals.begin();
    sync_block();
    if (place_.exist != 0) Sum::sum(sums, shift, factor, totals, true);
    sync_block();
    const double least = Totals<Real>::least_square(factor);
    if (kCounts && channels_.table != nullptr) add_channel_tables(maps);
    // All elements of a channel have one shift: sums are added up as they are, unless sums have to
    // be made again.
    const int row = thread_index() / maps, column = thread_index() % maps;
    Channel infinities;
    if (row == 0) totals.put_infinities(column, infinities);
    About mine[2];
    bool trusted = true;
    HOOKSTATS_UNROLL
    for (int map = 0; map < 2; ++map) {
      mine[map] = total_of(which(map), sums, shift);
      trusted = mine[map].trusted(least) && trusted;
    }
    bool apart = any_in_block(!trusted);
    Channel seen;
    if (!apart) {
      merge_entries_of(mine, maps, entries, scratch);
      About all;
      if (row == 0) all = entry<About>(scratch, column);
      apart = any_in_block(!all.trusted(least));
      if (!apart) seen = all.channel(static_cast<double>(all.shift));
    }
    if (apart) {
      Channel again[2] = {mine[0].channel(static_cast<double>(mine[0].shift)),
                          mine[1].channel(static_cast<double>(mine[1].shift))};
      if (!trusted) make_again(mine, again, least);
      merge_entries_of(again, maps, entries, scratch);
      if (row == 0) seen = entry<Channel>(scratch, column);
    }
    const int64_t channel = place_.first_channel + column;
    if (row == 0 && channel < item_.channels) {
      const int64_t size = place_.map < place_.elements ? place_.map : place_.elements;
      seen.posinf = infinities.posinf;
      seen.neginf = infinities.neginf;
      seen.nan = place_.rows * size - seen.count - seen.posinf - seen.neginf;
      if (item_.splits() == 1) {
        accumulate(item_, channel, seen);
      } else {
        store_partial(item_, split, channel, seen);
      }
    }
    sync_block();  // before scratch is used again
    if (item_.splits() == 1) return;
    if (is_last_block(item_.block_counters + channel_block, item_.splits())) {
      const int64_t left = item_.channels - place_.first_channel;
      accumulate_partials(item_, place_.first_channel, left < maps ? static_cast<int>(left) : maps,
                          scratch);
    }
  }

  // Of the entries of a channel, this thread's: it is of the first channel that the thread has
  // elements of, or (`map` is 1) of the next one, of which it has the first elements.
  HOOKSTATS_DEVICE int entry_of(int map) const {
    const int across =
        map == 0 ? place_.column - (place_.channel * place_.map + place_.skew) / kOwned : 0;
    return across * place_.down + place_.row;
  }

  // Which of the thread's elements are of its first channel, or (`map` is 1) of the next one.
  HOOKSTATS_DEVICE uint32_t which(int map) const {
    return place_.exist & (map == 0 ? ~place_.next : place_.next);
  }

  // What the thread summed of the elements that `which` has a bit for, all of one channel.
  static HOOKSTATS_DEVICE About total_of(uint32_t which, const Totals<Real> (&sums)[kOwned],
                                         const Real (&shift)[kOwned]) {
    About total;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      if ((which >> c & 1) == 0) continue;
      total.add(sums[c]);
      total.shift = shift[c];
    }
    return total;
  }

  // Makes what cannot be trusted of the thread's channels again, in fp64 about the means.
  HOOKSTATS_DEVICE void make_again(const About (&mine)[2], Channel (&seen)[2], double least) const {
    Real mean[2], shift[kOwned];
    HOOKSTATS_UNROLL
    for (int map = 0; map < 2; ++map) {
      mean[map] = static_cast<Real>(mine[map].mean(static_cast<double>(mine[map].shift)));
    }
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) shift[c] = (place_.next >> c & 1) != 0 ? mean[1] : mean[0];
    WideSums sums[kOwned];
    sum_again(shift, sums);
    HOOKSTATS_UNROLL
    for (int map = 0; map < 2; ++map) {
      if (mine[map].trusted(least)) continue;
      WideSums all;
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) {
        if ((which(map) >> c & 1) != 0) all.add(sums[c]);
      }
      About again = mine[map];
      all.replace(again);
      seen[map] = again.channel(static_cast<double>(mean[map]));
    }
  }

  // Merges what the threads have of their first channels and of the next ones; all threads call it.
  template <class T>
  HOOKSTATS_DEVICE void merge_entries_of(const T (&mine)[2], int maps, int entries,
                                         void* scratch) const {
    sync_block();  // what was in scratch memory has been read
    for (int i = thread_index(); i < entries * maps; i += block_threads()) {
      entry<T>(scratch, i) = T{};
    }
    sync_block();
    HOOKSTATS_UNROLL
    for (int map = 0; map < 2; ++map) {
      if (which(map) == 0) continue;
      entry<T>(scratch, entry_of(map) * maps + place_.channel + map) = mine[map];
    }
    merge_entries<T>(scratch, thread_index() / maps, thread_index() % maps, maps, entries);
  }

  // A warp takes a channel.
  HOOKSTATS_DEVICE void add_channel_tables(int maps) const {
    const int64_t slots = channels_.bins.slots(), pitch = channels_.pitch;
    for (int map = warp(); map < maps && place_.first_channel + map < item_.channels;
         map += kWarps) {
      add_table(channels_.table + map * slots * pitch, slots, channels_.pitch,
                item_.channel_counts + (place_.first_channel + map) * slots, item_.repeat, lane(),
                kWarp);
    }
  }
};

}  // namespace hookstats::cuda
