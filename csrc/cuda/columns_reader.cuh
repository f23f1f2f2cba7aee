// The splits of columns: which rows and channels are a thread's, and how they are read. Rows that
// do not begin where vectors do are read in vectors, too: see `Skewed`. Of `Mapped` rows, in which
// a channel has several elements side by side, each of these is a column.
#pragma once

#include "cuda/kept.cuh"
#include "cuda/source.cuh"

namespace hookstats::cuda {

// Where a thread and its split are. Whoever reads tiles has this in memory, as the registers are
// needed for sums, and copies what it uses.
template <class Source>
struct ColumnsPlace {
  int down, column, row;
  // The split at hand.
  int64_t begin = 0, first_row = 0, offset = 0;
  uintptr_t address = 0, down_bytes = 0;
  uint32_t rows = 0, exist = 0;
  uint32_t kept = 0;  // rows, of a mask
  // Of rows that begin anywhere: how many elements its vectors begin before the thread's channels
  // do, and which rows are read whole.
  int skew = 0;
  uint32_t whole_from = 0, whole_to = 0;
  // Of maps: the block's elements of a row, and of one map; see begin_elements and find_maps.
  int elements = 0, map = 0, channel = 0;
  int64_t first_channel = 0;
  uint32_t next = 0;
};

template <class Source>
class ColumnsReader {
 public:
  using Place = ColumnsPlace<Source>;

 protected:
  using Real = typename Source::Real;
  static constexpr int kRows = Source::kRows;
  using Values = typename Source::template Values<kOwned>;

  // `place` is that of a split at hand, or is to be found.
  HOOKSTATS_DEVICE ColumnsReader(const Common& common, const Item& item, const Dim* outer,
                                 Place& place)
      : common_(common), item_(item), outer_(outer), scale_(common), place_(place) {}

  // Where the thread is in any of the splits.
  HOOKSTATS_DEVICE void find_thread() {
    place_.down = block_threads() / across();
    place_.column = thread_index() % across();
    place_.row = thread_index() / across();
    if constexpr (Source::kSkewed) {
      place_.down -= place_.down % rows_alike(row_bytes(), kVectorBytes);
    }
  }

  // Threads side by side, and elements of a row that are the block's.
  HOOKSTATS_DEVICE int across() const { return static_cast<int>(item_.slots.divisor); }
  HOOKSTATS_DEVICE int width() const {
    return Source::kMapped ? static_cast<int>(item_.inner_step)
                           : (across() - (Source::kSkewed ? 1 : 0)) * kOwned;
  }
  // From one row, or one channel, to the next.
  HOOKSTATS_DEVICE int64_t row_stride() const {
    return item_.outer_dims == 1 ? outer_[0].stride * item_.joined : 0;
  }
  HOOKSTATS_DEVICE int64_t row_bytes() const {
    return row_stride() * Source::element_size(common_);
  }
  HOOKSTATS_DEVICE int64_t channel_step() const {
    return Source::kMapped ? 1 : item_.channel_stride;
  }

  // Begins a split of the rows of a block of channels. All threads of the block call it.
  HOOKSTATS_DEVICE void begin(int channel_block, int split, void* scratch) {
    if constexpr (Source::kMapped) {
      begin_elements(channel_block, split % item_.inner_splits);
      split /= item_.inner_splits;
    } else {
      place_.begin = int64_t{channel_block} * width();
    }
    place_.first_row = split * item_.row_step;
    const int64_t left = item_.outer_size - place_.first_row;
    place_.rows = static_cast<uint32_t>(left < item_.row_step ? left : item_.row_step);
    if constexpr (Source::kMasked) find_rows(static_cast<KeptIndices*>(scratch));
    find_channels();
  }

  // Whether channel i of the thread is one of the block's.
  HOOKSTATS_DEVICE bool exists(int i) const { return (place_.exist >> i & 1) != 0; }

  // Channel i of the thread, in the block: side by side in a vector, else across the threads, so
  // that neighbours read neighbours.
  HOOKSTATS_DEVICE int64_t owned(int i) const {
    return Source::kVectors ? place_.column * kOwned + i - place_.skew
                            : i * across() + place_.column;
  }

  // Of maps: which elements are the block's, those of several channels or a part of one.
  HOOKSTATS_DEVICE void begin_elements(int channel_block, int part) {
    const int64_t size = item_.inner_size, together = size < width() ? width() : size;
    place_.begin = channel_block * together + int64_t{part} * width();
    const int64_t of_group = together - int64_t{part} * width();
    const int64_t of_all = item_.channels * size - place_.begin;
    const int64_t left = of_group < of_all ? of_group : of_all;
    place_.elements = left < width() ? static_cast<int>(left) : width();
    place_.map = size < width() ? static_cast<int>(size) : width();
    place_.first_channel = int64_t{channel_block} * (width() / place_.map);
  }

  // Of maps: the channel, from the block's first one on, of the thread's first element; and which
  // of its elements are of the next one. Those of a thread are of no third: a map has no fewer.
  HOOKSTATS_DEVICE void find_maps() {
    const int first = place_.column * kOwned < place_.skew ? 0 : static_cast<int>(owned(0));
    place_.channel = first / place_.map;
    const int own = (place_.channel + 1) * place_.map - static_cast<int>(owned(0));
    place_.next = own < kOwned ? 0xfu << own & 0xfu : 0;
  }

  // The channel of the thread's element i.
  HOOKSTATS_DEVICE int64_t channel(int i) const {
    if constexpr (Source::kMapped)
      return place_.first_channel + place_.channel + (place_.next >> i & 1);
    return channel_of(place_.begin + owned(i));
  }

  // That of a column, of which joined rows have several of each channel, in one block.
  HOOKSTATS_DEVICE int64_t channel_of(int64_t column) const {
    return item_.joined == 1 ? column : column % item_.channels;
  }

  // Where the counters of the channel of element i are in a row of a table: neighbouring threads
  // have neighbouring ones. Of what is no channel of the block, they are in the last column. A map
  // has a table of its own, with some counters of a slot for neighbouring threads.
  HOOKSTATS_DEVICE int counter(int i) const {
    if constexpr (Source::kMapped) {
      const int slots = static_cast<int>(common_.channel_bins.slots());
      const int copies = common_.shared.channel_copies;
      const int table = place_.channel + static_cast<int>(place_.next >> i & 1);
      return table * slots * copies + (place_.column & (copies - 1));
    }
    if constexpr (!Source::kSkewed) return i * across() + place_.column;
    const int channel = static_cast<int>(owned(i));
    return (channel & (kOwned - 1)) * across() + (channel < 0 ? across() - 1 : channel / kOwned);
  }

  // Where a block counts the infinities of the channel of element i; fewer than kMostTallied.
  HOOKSTATS_DEVICE int tally_place(int i) const {
    if constexpr (Source::kMapped) return static_cast<int>(channel(i) - place_.first_channel);
    return counter(i);
  }

  // Cuts the split to the rows from the first one that a mask keeps to the last.
  HOOKSTATS_DEVICE void find_rows(KeptIndices* scratch) {
    const KeptIndices kept = kept_by_block(common_.rows, place_.first_row, place_.rows, scratch);
    place_.kept = kept.count;
    place_.rows = kept.count == 0 ? 0 : kept.end - kept.first;
    if (kept.count > 0) place_.first_row += kept.first;
  }

  // Whether a row of the split is there to be read.
  HOOKSTATS_DEVICE bool has_row(uint32_t row) const {
    if constexpr (!Source::kMasked) return row < place_.rows;
    return row < place_.rows &&
           (place_.kept == place_.rows || keeps(common_.rows, place_.first_row + row));
  }

  // Whether the mask keeps one of this thread's rows in the tile from row `first` on.
  HOOKSTATS_DEVICE bool keeps_tile(uint32_t first) const {
    bool some = false;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      some |= has_row(first + static_cast<uint32_t>(i * place_.down + place_.row));
    }
    return some;
  }

  HOOKSTATS_DEVICE void find_channels() {
    const int64_t size = Source::element_size(common_);
    const uintptr_t data = reinterpret_cast<uintptr_t>(item_.data);
    if constexpr (Source::kSkewed) {
      const uintptr_t row =
          data + static_cast<uintptr_t>(place_.begin * size +
                                        (place_.first_row + place_.row) * row_bytes());
      place_.skew = static_cast<int>(row % kVectorBytes) / static_cast<int>(size);
    }
    place_.exist = 0;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) {
      const int64_t channel = owned(i);
      const bool in_block = !Source::kSkewed || (channel >= 0 && channel < width());
      const bool in_tensor =
          Source::kMapped ? channel < place_.elements : place_.begin + channel < item_.columns();
      if (place_.row < place_.down && in_block && in_tensor) place_.exist |= 1u << i;
    }
    place_.offset = (place_.begin + owned(0)) * channel_step();
    // Of the thread's first row, and from one of its rows to the next.
    place_.down_bytes = static_cast<uintptr_t>(place_.down * row_bytes());
    place_.address = data + static_cast<uintptr_t>(place_.offset * size +
                                                   (place_.first_row + place_.row) * row_bytes());
    if constexpr (Source::kSkewed) find_whole_rows();
    if constexpr (Source::kMapped) find_maps();
  }

  // Which of this thread's rows have their vectors within the tensor: all but the tensor's first or
  // last one.
  HOOKSTATS_DEVICE void find_whole_rows() {
    place_.whole_from = is_inside(place_.address) ? 0 : 1;
    place_.whole_to = place_.rows;
    const uint32_t row = static_cast<uint32_t>(place_.row);
    const uint32_t down = static_cast<uint32_t>(place_.down);
    if (place_.exist == 0 || row >= place_.rows) return;
    const uint32_t last = (place_.rows - 1 - row) / down;
    if (!is_inside(place_.address + last * place_.down_bytes)) place_.whole_to = last * down;
  }

  HOOKSTATS_DEVICE bool is_inside(uintptr_t vector) const {
    return vector >= reinterpret_cast<uintptr_t>(item_.data) &&
           vector + kVectorBytes <= reinterpret_cast<uintptr_t>(item_.end);
  }

  HOOKSTATS_DEVICE Values read(uint32_t row) const {
    if constexpr (Source::kSkewed) {
      const int64_t ahead = (int64_t{row} - place_.row) * row_bytes();
      const uintptr_t at = place_.address + static_cast<uintptr_t>(ahead);
      return Source::read_some_channels(at, row < place_.rows ? place_.exist : 0, is_inside(at));
    }
    const int64_t index = place_.first_row + row;
    int64_t offset = place_.offset + index * row_stride();
    if constexpr (!Source::kVectors) {
      if (item_.outer_dims > 1) offset += offset_of_many(outer_, item_.outer_dims, index);
    }
    return Source::read_channels(common_, item_.data, offset,
                                 channel_step() * (Source::kVectors ? 1 : across()),
                                 has_row(row) ? place_.exist : 0);
  }

  // Of rows that begin anywhere, the bits of a vector that are the thread's.
  HOOKSTATS_DEVICE Values own_elements() const {
    Values keeps{};
    if constexpr (Source::kSkewed) Source::keep_elements(place_.exist, keeps);
    return keeps;
  }

  // Of the first of this thread's rows in the tile from row `first` on.
  HOOKSTATS_DEVICE uintptr_t row_address(uint32_t first) const {
    return place_.address + uint64_t{first} * static_cast<uint64_t>(row_bytes());
  }

  // Up to which row tiles that begin at or behind `whole_from` are read in whole vectors.
  HOOKSTATS_DEVICE uint32_t whole_until() const {
    if (!Source::kVectors || (Source::kMasked && place_.kept != place_.rows)) return 0;
    return Source::kSkewed ? place_.whole_to : place_.rows;
  }

  // The rows of this thread in a tile, from an address on; whole vectors of rows that exist.
  static HOOKSTATS_DEVICE void read_whole(uintptr_t at, uintptr_t down_bytes, const Values& keeps,
                                          Values (&values)[kRows]) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i, at += down_bytes) {
      values[i] = Source::read_whole_channels(at);
      if constexpr (Source::kSkewed) Source::keep(keeps, values[i]);
    }
  }

  // The same, one by one: of rows that may not exist.
  HOOKSTATS_DEVICE void read_rows(uint32_t first, Values (&values)[kRows]) const {
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      values[i] = read(first + static_cast<uint32_t>(i * place_.down + place_.row));
    }
  }

  HOOKSTATS_DEVICE void read_tile(uint32_t first, Values (&values)[kRows]) const {
    if constexpr (Source::kVectors) {
      const uint32_t end = first + static_cast<uint32_t>(kRows * place_.down);
      if (first >= place_.whole_from && end <= whole_until()) {
        return read_whole(row_address(first), place_.down_bytes, own_elements(), values);
      }
    }
    read_rows(first, values);
  }

  HOOKSTATS_DEVICE void widen_all(const Values& values, Real (&x)[kOwned]) const {
    Source::widen_all(common_, scale_, values, x);
  }

  // Of element i of the thread, in a row of samples.
  HOOKSTATS_DEVICE int sampled_place(int i) const {
    return kApart ? static_cast<int>(owned(i)) : i * across() + place_.column;
  }

  // In a row of samples, the `sample`-th that the shift of the thread's element i is made of: that
  // element's column, or of maps columns from all over the map, the same for all of its elements.
  HOOKSTATS_DEVICE int place_for(int i, int sample) const {
    if constexpr (!Source::kMapped) return sampled_place(i);
    const int map = place_.channel + static_cast<int>(place_.next >> i & 1);
    const int size = place_.map < place_.elements ? place_.map : place_.elements;
    return map * place_.map + sample * size / kSampled;
  }

  // Near the mean of each channel: the median of the means that some of the block's threads make of
  // their first rows, which a few outliers do not move; all call it.
  // Returns the thread's factor, by the greatest magnitude of the means that these are made of.
  HOOKSTATS_DEVICE Real find_shift(Real (&shift)[kOwned], Real* samples) const {
    uint32_t magnitude = 0;
    int sampled = 1;
    while (2 * sampled <= place_.down && sampled < kSampled) sampled *= 2;
    if (place_.row < sampled) {
      Real rows[kOwned][kRows], x[kOwned];
      Values values[kRows];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i)
        values[i] = read(static_cast<uint32_t>(i * place_.down + place_.row));
      Source::scale_in_place(scale_, values);
      HOOKSTATS_UNROLL
      for (int i = 0; i < kRows; ++i) {
        widen_all(values[i], x);
        HOOKSTATS_UNROLL
        for (int c = 0; c < kOwned; ++c) rows[c][i] = x[c];
      }
      HOOKSTATS_UNROLL
      for (int c = 0; c < kOwned; ++c) {
        if (!kApart || exists(c)) {
          samples[place_.row * width() + sampled_place(c)] = tree_mean(rows[c]);
        }
      }
    }
    sync_block();
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      shift[c] = 0;
      if (kApart && !exists(c)) continue;
      Real all[kSampled];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kSampled; ++i) {
        all[i] = samples[place_for(c, i) + i % sampled * width()];
        if constexpr (Source::kVectors) {
          const uint32_t each = magnitude_of(all[i]);
          magnitude = each > magnitude ? each : magnitude;
        }
      }
      const Real middle = median(all);
      if (is_finite(middle)) shift[c] = middle;
    }
    sync_block();
    return factor_for(magnitude);
  }

  static constexpr int kSampled = 8;  // threads: with their rows, 64 elements a channel
  // Whether a thread's elements may be of several channels or of none.
  static constexpr bool kApart = Source::kSkewed || Source::kMapped;
  static constexpr int kVectorBytes = sizeof(Values);  // where the source reads vectors

  const Common& common_;
  const Item& item_;
  const Dim* outer_;
  Scale scale_;
  Place& place_;
};

}  // namespace hookstats::cuda
