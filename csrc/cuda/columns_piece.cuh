// The pieces of columns: which rows and channels are a thread's, and how they are read. Rows that
// do not begin where vectors do are read in vectors, too: see `Skewed`.
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
        width_((across_ - (Source::kSkewed ? 1 : 0)) * kOwned),
        down_(block_threads() / across_),
        column_(thread_index() % across_),
        row_(thread_index() / across_),
        row_stride_(item.outer_dims == 1 ? outer[0].stride : 0),
        row_bytes_(row_stride_ * Source::element_size(common)) {
    if constexpr (Source::kSkewed) down_ -= down_ % rows_alike(row_bytes_, kVectorBytes);
  }

  // Begins a piece: a split of the rows of a group of channels. All threads of the block call it.
  HOOKSTATS_DEVICE void begin(int group, int split, void* scratch) {
    begin_ = int64_t{group} * width_;
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
      if (row_ < down_ && in_block && begin_ + channel < item_.channels) exist_ |= 1u << i;
    }
    const int64_t stride = Source::kVectors ? 1 : across_;
    offset_ = (begin_ + owned(0)) * item_.channel_stride;
    stride_ = stride * item_.channel_stride;
    // Of the thread's first row, and from one of its rows to the next.
    down_bytes_ = static_cast<uintptr_t>(down_ * row_bytes_);
    address_ = data + static_cast<uintptr_t>(offset_ * size + (first_row_ + row_) * row_bytes_);
    if constexpr (Source::kSkewed) find_whole_rows();
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

  // Of channel i of the thread, in a row of samples.
  HOOKSTATS_DEVICE int sampled_place(int i) const {
    return Source::kSkewed ? static_cast<int>(owned(i)) : i * across_ + column_;
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
        if (!Source::kSkewed || exists(c)) {
          samples[row_ * width_ + sampled_place(c)] = tree_mean(rows[c]);
        }
      }
    }
    sync_block();
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      shift[c] = 0;
      if (Source::kSkewed && !exists(c)) continue;
      const Real* const column = samples + sampled_place(c);
      Real all[kSampled];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kSampled; ++i) all[i] = column[i % sampled * width_];
      const Real mean = tree_mean(all);
      if (is_finite(mean)) shift[c] = mean;
    }
    sync_block();
  }

  static constexpr int kSampled = 8;  // threads: with their rows, 64 elements a channel
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
};

}  // namespace hookstats::cuda
