// A strided tensor seen as (outer, channel, inner), so that no layout needs a copy.
#pragma once

#include <cstdint>
#include <utility>

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

  int64_t numel() const { return channels * outer_size * inner.size; }

  // Offset in elements of outer index `index`.
  int64_t outer_offset(int64_t index) const {
    int64_t offset = 0;
    for (int d = outer_dims - 1; d > 0; --d) {
      offset += (index % outer[d].size) * outer[d].stride;
      index /= outer[d].size;
    }
    return outer_dims > 0 ? offset + index * outer[0].stride : 0;
  }
};

// `channel_dim` is in [0, dims), or -1: the whole tensor is one channel. No statistic depends on
// the order of elements, so dimensions may be sorted by stride and joined where memory allows.
inline ChannelView channel_view(const int64_t* sizes, const int64_t* strides, int dims,
                                int channel_dim) {
  ChannelView view;
  Dim others[kMaxDims];
  int count = 0;
  for (int d = 0; d < dims; ++d) {
    if (d == channel_dim) {
      view.channels = sizes[d];
      view.channel_stride = strides[d];
    } else if (sizes[d] == 1) {
      continue;
    } else if (strides[d] == 0 && sizes[d] > 0) {
      view.repeat *= sizes[d];
    } else {
      others[count++] = {sizes[d], strides[d]};
    }
  }
  for (int i = 1; i < count; ++i) {  // insertion sort: slowest first
    for (int j = i; j > 0 && others[j - 1].stride < others[j].stride; --j) {
      std::swap(others[j - 1], others[j]);
    }
  }
  int joined = 0;
  for (int i = 0; i < count; ++i) {
    if (joined > 0 && others[joined - 1].stride == others[i].stride * others[i].size) {
      others[joined - 1] = {others[joined - 1].size * others[i].size, others[i].stride};
    } else {
      others[joined++] = others[i];
    }
  }
  const bool channels_are_fastest =
      view.channels > 1 && (joined == 0 || view.channel_stride < others[joined - 1].stride);
  if (joined > 0 && !channels_are_fastest) view.inner = others[--joined];
  view.outer_dims = joined;
  for (int i = 0; i < joined; ++i) {
    view.outer[i] = others[i];
    view.outer_size *= others[i].size;
  }
  return view;
}

}  // namespace hookstats
