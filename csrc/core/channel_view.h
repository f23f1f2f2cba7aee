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
  // What a step along a dimension adds to an element's place in logical order, in which the last
  // dimension is the fastest; expanded dimensions have no part in the order.
  int64_t channel_place = 1;
  // The dimension, besides the channels, that is walked fastest; inner.size == 1 if there is none.
  Dim inner{1, 1};
  int64_t inner_place = 1;
  // All other dimensions, slowest first.
  int outer_dims = 0;
  Dim outer[kMaxDims];
  int64_t outer_place[kMaxDims];
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

  // The number of places in logical order: those of the rows that are not kept are places, too.
  int64_t places() const { return kept == nullptr ? numel() : rows * row_places(); }
  int64_t row_places() const { return channels * row_outer * inner.size; }
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
    return outer_sum(index, [this](int d) { return outer[d].stride; });
  }

  // The place in logical order of the first element of outer index `index`.
  int64_t place_of_outer(int64_t index) const {
    return outer_sum(index, [this](int d) { return outer_place[d]; });
  }

  // Whether channels, not inner elements, are side by side.
  bool channels_are_fastest() const { return channels > 1 && inner.size == 1; }

  // Whether rows of channels, which are not side by side in logical order, follow each other there,
  // as those of channels last do.
  bool rows_are_in_order() const {
    return kept == nullptr && channels_are_fastest() && outer_dims > 0 &&
           outer_place[outer_dims - 1] == 1;
  }

  // Whether what is side by side is also consecutive in logical order.
  bool is_in_order() const {
    return channels_are_fastest() ? channel_place == 1 : inner.size == 1 || inner_place == 1;
  }

 private:
  template <class StepOf>
  int64_t outer_sum(int64_t index, StepOf step_of) const {
    int64_t sum = 0;
    index = outer_index(index);
    for (int d = outer_dims - 1; d > 0; --d) {
      sum += (index % outer[d].size) * step_of(d);
      index /= outer[d].size;
    }
    return outer_dims > 0 ? sum + index * step_of(0) : 0;
  }
};

// `channel_dim` is in [0, dims), or -1: the whole tensor is one channel. No statistic of all
// elements depends on their order, so dimensions may be sorted by stride and joined where memory
// allows; if `ordered`, where logical order allows it, too. Of a masked tensor, the first `masked`
// dimensions are rows, of which `kept` says which to read; where such a dimension is expanded, each
// row has its own elements, as each channel has.
inline ChannelView channel_view(const int64_t* sizes, const int64_t* strides, int dims,
                                int channel_dim, bool ordered = false,
                                const KeptRows* kept = nullptr, int masked = 0) {
  struct Placed {
    Dim dim;
    int64_t place;
  };
  ChannelView view;
  Placed others[kMaxDims], leading[kMaskDims];
  int count = 0, leads = 0;
  int64_t place = 1;
  for (int d = dims - 1; d >= 0; --d) {
    if (d == channel_dim) {
      view.channels = sizes[d];
      view.channel_stride = strides[d];
      view.channel_place = place;
      place *= sizes[d];
    } else if (sizes[d] == 1) {
      continue;
    } else if (d < masked) {
      Placed& last = leading[leads > 0 ? leads - 1 : 0];
      if (leads > 0 && strides[d] == last.dim.stride * last.dim.size) {
        last.dim.size *= sizes[d];
      } else {
        leading[leads++] = {{sizes[d], strides[d]}, place};
      }
      place *= sizes[d];
      view.rows *= sizes[d];
    } else if (strides[d] == 0 && sizes[d] > 0) {
      view.repeat *= sizes[d];
    } else {
      others[count++] = {{sizes[d], strides[d]}, place};
      place *= sizes[d];
    }
  }
  std::reverse(others, others + count);
  for (int i = 1; i < count; ++i) {  // insertion sort: slowest first
    for (int j = i; j > 0 && others[j - 1].dim.stride < others[j].dim.stride; --j) {
      std::swap(others[j - 1], others[j]);
    }
  }
  int joined = 0;
  for (int i = 0; i < count; ++i) {
    const auto [dim, at] = others[i];
    const bool joins = joined > 0 && others[joined - 1].dim.stride == dim.stride * dim.size &&
                       (!ordered || others[joined - 1].place == at * dim.size);
    if (joins) {
      others[joined - 1] = {{others[joined - 1].dim.size * dim.size, dim.stride}, at};
    } else {
      others[joined++] = others[i];
    }
  }
  const bool channels_are_fastest =
      view.channels > 1 && (joined == 0 || view.channel_stride < others[joined - 1].dim.stride);
  if (joined > 0 && !channels_are_fastest) {
    view.inner = others[--joined].dim;
    view.inner_place = others[joined].place;
  }
  const auto add_outer = [&view](const Placed& each) {
    view.outer[view.outer_dims] = each.dim;
    view.outer_place[view.outer_dims++] = each.place;
  };
  while (leads > 0) add_outer(leading[--leads]);
  for (int i = 0; i < joined; ++i) {
    add_outer(others[i]);
    view.row_outer *= others[i].dim.size;
  }
  view.outer_size = view.row_outer * (masked > 0 ? kept->count : 1);
  view.kept = masked > 0 ? kept->rows : nullptr;
  view.flags = masked > 0 ? kept->flags : nullptr;
  return view;
}

}  // namespace hookstats
