// A strided tensor seen as (outer, channel, inner), so that no layout needs a copy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/kept_rows.h"

namespace hookstats {

constexpr int kMaxDims = 64;  // torch's own limit

struct Dim {
  int64_t size;
  int64_t stride;  // in elements
};

struct ChannelView {
  int64_t channels = 1;
  int64_t channel_stride = 0;
  // The dimension, besides the channels, that is walked fastest; inner.size == 1 if there is none.
  Dim inner{1, 1};
  // All other dimensions, slowest first.
  int outer_dims = 0;
  Dim outer[kMaxDims];
  int64_t outer_size = 1;  // product of their sizes
  int64_t repeat = 1;      // how often expanded dimensions repeat each element
  // Of a masked tensor, the rows that are kept, of `rows` in all: a row is an index of the
  // outermost dimensions of `outer`, and has `row_outer` outer indices. Null: `outer_size` counts
  // every row.
  const int64_t* kept = nullptr;
  const uint8_t* flags = nullptr;  // instead of `kept`: see core/kept_rows.h
  int64_t rows = 1;
  int64_t row_outer = 1;

  int64_t numel() const { return channels * outer_size * inner.size; }

  // The number of positions (core/sample.h): elements of rows that are not kept have some, too.
  int64_t positions() const { return kept == nullptr ? numel() : rows * row_positions(); }
  int64_t row_positions() const { return channels * row_outer * inner.size; }
  int64_t kept_rows() const { return outer_size / row_outer; }

  // Which of all outer indices the kept one `index` is.
  int64_t outer_index(int64_t index) const {
    if (kept == nullptr) return index;
    if (row_outer == 1) return kept[index];
    return kept[index / row_outer] * row_outer + index % row_outer;
  }

  // Whether `count` kept outer indices from `index` on follow each other.
  bool follow_each_other(int64_t index, int64_t count) const {
    return kept == nullptr || outer_index(index + count - 1) - outer_index(index) == count - 1;
  }

  // Offset in elements of outer index `index`.
  int64_t outer_offset(int64_t index) const {
    int64_t sum = 0;
    index = outer_index(index);
    for (int d = outer_dims - 1; d > 0; --d) {
      sum += (index % outer[d].size) * outer[d].stride;
      index /= outer[d].size;
    }
    return outer_dims > 0 ? sum + index * outer[0].stride : 0;
  }

  // Whether channels, not inner elements, are side by side.
  bool channels_are_fastest() const { return channels > 1 && inner.size == 1; }
};

// `channel_dim` is in [0, dims), or -1: the whole tensor is one channel. No statistic of all
// elements depends on their order, so dimensions are sorted by stride and joined where memory
// allows. Of a masked tensor, the first `masked` dimensions are rows, of which `kept` says which to
// read; where such a dimension is expanded, each row has its own elements, as each channel has.
inline ChannelView channel_view(const int64_t* sizes, const int64_t* strides, int dims,
                                int channel_dim, const KeptRows* kept = nullptr, int masked = 0) {
  ChannelView view;
  Dim others[kMaxDims], leading[kMaskDims];
  int count = 0, leads = 0;
  for (int d = 0; d < dims; ++d) {
    const Dim dim{sizes[d], strides[d]};
    if (d == channel_dim) {
      view.channels = dim.size;
      view.channel_stride = dim.stride;
    } else if (dim.size == 1) {
      continue;
    } else if (d < masked) {
      Dim& last = leading[leads > 0 ? leads - 1 : 0];
      if (leads > 0 && last.stride == dim.stride * dim.size) {
        last = {last.size * dim.size, dim.stride};
      } else {
        leading[leads++] = dim;
      }
      view.rows *= dim.size;
    } else if (dim.stride == 0 && dim.size > 0) {
      view.repeat *= dim.size;
    } else {
      others[count++] = dim;
    }
  }
  for (int i = 1; i < count; ++i) {  // insertion sort: slowest first
    for (int j = i; j > 0 && others[j - 1].stride < others[j].stride; --j) {
      std::swap(others[j - 1], others[j]);
    }
  }
  int joined = 0;
  for (int i = 0; i < count; ++i) {
    const Dim dim = others[i];
    if (joined > 0 && others[joined - 1].stride == dim.stride * dim.size) {
      others[joined - 1] = {others[joined - 1].size * dim.size, dim.stride};
    } else {
      others[joined++] = dim;
    }
  }
  const bool channels_are_fastest =
      view.channels > 1 && (joined == 0 || view.channel_stride < others[joined - 1].stride);
  if (joined > 0 && !channels_are_fastest) view.inner = others[--joined];
  for (int i = 0; i < leads; ++i) view.outer[view.outer_dims++] = leading[i];
  for (int i = 0; i < joined; ++i) {
    view.outer[view.outer_dims++] = others[i];
    view.row_outer *= others[i].size;
  }
  view.outer_size = view.row_outer * (masked > 0 ? kept->count : 1);
  view.kept = masked > 0 ? kept->rows : nullptr;
  view.flags = masked > 0 ? kept->flags : nullptr;
  return view;
}

}  // namespace hookstats
