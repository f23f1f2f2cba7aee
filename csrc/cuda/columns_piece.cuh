// The pieces of columns: which rows and channels are a thread's, and how they are read. Rows that
// do not begin where vectors do are read in vectors, too: see `Skewed`. Of `Mapped` rows, in which
// a channel has several elements side by side, each of these is a column.
#pragma once

#include "cuda/kept.cuh"
#include "cuda/source.cuh"

namespace hookstats::cuda {

template <class Source>
class ColumnsPiece {
 protected:
  using Real = typename Source::Real;
  static constexpr int kRows = Source::kRows;
  using Values = typename Source::template Values<kOwned>;

  HOOKSTATS_DEVICE ColumnsPiece(const Common& common, const Item& item, const Dim* outer)
      : common_(common),
        item_(item),
        outer_(outer),
        scale_(common),
        across_(static_cast<int>(item.slots.divisor)),
        width_(Source::kMapped ? static_cast<int>(item.inner_step)
                               : (across_ - (Source::kSkewed ? 1 : 0)) * kOwned),
        down_(block_threads() / across_),
        column_(thread_index() % across_),
        row_(thread_index() / across_),
        row_stride_(item.outer_dims == 1 ? outer[0].stride : 0),
        row_bytes_(row_stride_ * Source::element_size(common)) {
    if constexpr (Source::kSkewed) down_ -= down_ % rows_alike(row_bytes_, kVectorBytes);
  }

  // Begins a piece: a split of the rows of a group of channels. All threads of the block call it.
  HOOKSTATS_DEVICE void begin(int group, int split, void* scratch) {
    if constexpr (Source::kMapped) {
      begin_elements(group, split % item_.inner_splits);
      split /= item_.inner_splits;
    } else {
      begin_ = int64_t{group} * width_;
    }
    first_row_ = split * item_.row_step;
    const int64_t left = item_.outer_size - first_row_;
    rows_ = static_cast<uint32_t>(left < item_.row_step ? left : item_.row_step);
    if constexpr (Source::kMasked) find_rows(static_cast<KeptIndices*>(scratch));
    find_channels();
  }

  // Whether channel i of the thread is one of the block's.
  HOOKSTATS_DEVICE bool exists(int i) const { return (exist_ >> i & 1) != 0; }

  // Channel i of the thread, in the block: side by side in a vector, else across the threads, so
  // that neighbours read neighbours.
  HOOKSTATS_DEVICE int64_t owned(int i) const {
    return Source::kVectors ? column_ * kOwned + i - skew_ : i * across_ + column_;
  }

  // Of maps: which elements are the block's, those of several channels or a part of one.
  HOOKSTATS_DEVICE void begin_elements(int group, int part) {
    const int64_t size = item_.inner_size, together = size < width_ ? width_ : size;
    begin_ = group * together + int64_t{part} * width_;
    const int64_t of_group = together - int64_t{part} * width_;
    const int64_t of_all = item_.channels * size - begin_;
    const int64_t left = of_group < of_all ? of_group : of_all;
    elements_ = left < width_ ? static_cast<int>(left) : width_;
    map_ = size < width_ ? static_cast<int>(size) : width_;
    first_channel_ = int64_t{group} * (width_ / map_);
  }

  // Of maps: the channel, from the block's first one on, of the thread's first element; and which
  // of its elements are of the next one. Those of a thread are of no third: a map has no fewer.
  HOOKSTATS_DEVICE void find_maps() {
    const int first = column_ * kOwned < skew_ ? 0 : static_cast<int>(owned(0));
    channel_ = first / map_;
    const int own = (channel_ + 1) * map_ - static_cast<int>(owned(0));
    next_ = own < kOwned ? 0xfu << own & 0xfu : 0;
    copies_ = common_.shared.channel_copies;
  }

  // The channel of the thread's element i.
  HOOKSTATS_DEVICE int64_t channel(int i) const {
    if constexpr (Source::kMapped) return first_channel_ + channel_ + (next_ >> i & 1);
    return begin_ + owned(i);
  }

  // Where the counters of the channel of element i are in a row of a table: neighbouring threads
  // have neighbouring ones. Of what is no channel of the block, they are in the last column. A map
  // has a table of its own, with some counters of a slot for neighbouring threads.
  HOOKSTATS_DEVICE int counter(int i) const {
    if constexpr (Source::kMapped) {
      const int slots = static_cast<int>(common_.channel_bins.slots());
      const int table = channel_ + static_cast<int>(next_ >> i & 1);
      return table * slots * copies_ + (column_ & (copies_ - 1));
    }
    if constexpr (!Source::kSkewed) return i * across_ + column_;
    const int channel = static_cast<int>(owned(i));
    return (channel & (kOwned - 1)) * across_ + (channel < 0 ? across_ - 1 : channel / kOwned);
  }

  // Cuts the piece to the rows from the first one that a mask keeps to the last.
  HOOKSTATS_DEVICE void find_rows(KeptIndices* scratch) {
    const KeptIndices kept = kept_by_block(common_.rows, first_row_, rows_, scratch);
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
    const int64_t size = Source::element_size(common_);
    const uintptr_t data = reinterpret_cast<uintptr_t>(item_.data);
    if constexpr (Source::kSkewed) {
      const uintptr_t row =
          data + static_cast<uintptr_t>(begin_ * size + (first_row_ + row_) * row_bytes_);
      skew_ = static_cast<int>(row % kVectorBytes) / static_cast<int>(size);
    }
    exist_ = 0;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) {
      const int64_t channel = owned(i);
      const bool in_block = !Source::kSkewed || (channel >= 0 && channel < width_);
      const bool in_tensor =
          Source::kMapped ? channel < elements_ : begin_ + channel < item_.channels;
      if (row_ < down_ && in_block && in_tensor) exist_ |= 1u << i;
    }
    const int64_t step = Source::kMapped ? 1 : item_.channel_stride;
    offset_ = (begin_ + owned(0)) * step;
    stride_ = (Source::kVectors ? 1 : across_) * step;
    // Of the thread's first row, and from one of its rows to the next.
    down_bytes_ = static_cast<uintptr_t>(down_ * row_bytes_);
    address_ = data + static_cast<uintptr_t>(offset_ * size + (first_row_ + row_) * row_bytes_);
    if constexpr (Source::kSkewed) find_whole_rows();
    if constexpr (Source::kMapped) find_maps();
  }

  // Which of this thread's rows have their vectors within the tensor: all but the tensor's first or
  // last one.
  HOOKSTATS_DEVICE void find_whole_rows() {
    Source::keep_elements(exist_, keeps_);
    whole_from_ = is_inside(address_) ? 0 : 1;
    whole_to_ = rows_;
    const uint32_t row = static_cast<uint32_t>(row_), down = static_cast<uint32_t>(down_);
    if (exist_ == 0 || row >= rows_) return;
    const uint32_t last = (rows_ - 1 - row) / down;
    if (!is_inside(address_ + last * down_bytes_)) whole_to_ = last * down;
  }

  HOOKSTATS_DEVICE bool is_inside(uintptr_t vector) const {
    return vector >= reinterpret_cast<uintptr_t>(item_.data) &&
           vector + kVectorBytes <= reinterpret_cast<uintptr_t>(item_.end);
  }

  HOOKSTATS_DEVICE Values read(uint32_t row) const {
    if constexpr (Source::kSkewed) {
      const int64_t ahead = (int64_t{row} - row_) * row_bytes_;
      const uintptr_t at = address_ + static_cast<uintptr_t>(ahead);
      return Source::read_some_channels(at, row < rows_ ? exist_ : 0, is_inside(at));
    }
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
    for (int i = 0; i < kRows; ++i, at += down_bytes_) {
      values[i] = Source::read_whole_channels(at);
      if constexpr (Source::kSkewed) Source::keep(keeps_, values[i]);
    }
  }

  HOOKSTATS_DEVICE void read_tile(uint32_t first, Values (&values)[kRows]) const {
    if constexpr (Source::kVectors && !Source::kMasked) {
      const uint32_t to = Source::kSkewed ? whole_to_ : rows_;
      if (first >= whole_from_ && first + static_cast<uint32_t>(kRows * down_) <= to) {
        return read_whole(first, values);
      }
    }
    HOOKSTATS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      values[i] = read(first + static_cast<uint32_t>(i * down_ + row_));
    }
  }

  HOOKSTATS_DEVICE void widen_all(const Values& values, Real (&x)[kOwned]) const {
    Source::widen_all(common_, scale_, values, x);
  }

  // Of element i of the thread, in a row of samples.
  HOOKSTATS_DEVICE int sampled_place(int i) const {
    return kApart ? static_cast<int>(owned(i)) : i * across_ + column_;
  }

  // In a row of samples, the `sample`-th that the shift of the thread's element i is made of: that
  // element's column, or of maps columns from all over the map, the same for all of its elements.
  HOOKSTATS_DEVICE int place_for(int i, int sample) const {
    if constexpr (!Source::kMapped) return sampled_place(i);
    const int map = channel_ + static_cast<int>(next_ >> i & 1);
    const int size = map_ < elements_ ? map_ : elements_;
    return map * map_ + sample * size / kSampled;
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
        if (!kApart || exists(c)) {
          samples[row_ * width_ + sampled_place(c)] = tree_mean(rows[c]);
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
      for (int i = 0; i < kSampled; ++i) all[i] = samples[place_for(c, i) + i % sampled * width_];
      const Real mean = tree_mean(all);
      if (is_finite(mean)) shift[c] = mean;
    }
    sync_block();
  }

  static constexpr int kSampled = 8;  // threads: with their rows, 64 elements a channel
  // Whether a thread's elements may be of several channels or of none.
  static constexpr bool kApart = Source::kSkewed || Source::kMapped;
  static constexpr int kVectorBytes = sizeof(Values);  // where the source reads vectors

  const Common& common_;
  const Item& item_;
  const Dim* outer_;
  Scale scale_;
  int across_, width_, down_, column_, row_;
  int64_t row_stride_, row_bytes_;
  // The piece at hand.
  int64_t begin_ = 0, first_row_ = 0, offset_ = 0, stride_ = 0;
  uintptr_t address_ = 0, down_bytes_ = 0;
  uint32_t rows_ = 0, exist_ = 0;
  uint32_t kept_ = 0;  // rows, of a mask
  // Of rows that begin anywhere: how many elements its vectors begin before the thread's channels
  // do, what of a vector is the thread's, and which rows are read whole.
  int skew_ = 0;
  Values keeps_{};
  uint32_t whole_from_ = 0, whole_to_ = 0;
  // Of maps: the block's elements of a row, and of one map; see begin_elements and find_maps.
  int elements_ = 0, map_ = 0, channel_ = 0, copies_ = 1;
  int64_t first_channel_ = 0;
  uint32_t next_ = 0;
};

}  // namespace hookstats::cuda
