// Where the positions of a view are (core/sample.h), and views with as few dimensions as possible:
// what a launch with sampled histograms has to know of both.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/channel_view.h"

namespace hookstats::cuda {

// The dimensions of more than one element, fastest first; none if an element's position is its
// offset.
struct LogicalOrder {
  Dim dims[kMaxDims];
  int32_t count = 0;
  int64_t channel_place;

  explicit LogicalOrder(const ChannelView& view) : channel_place(view.inner.size) {
    int64_t places[kMaxDims] = {};
    bool by_offset = true;
    const auto add = [&](const Dim& dim, int64_t place) {
      if (dim.size == 1) return;
      by_offset = by_offset && dim.stride == place;
      int32_t at = count++;
      for (; at > 0 && places[at - 1] > place; --at) {
        dims[at] = dims[at - 1];
        places[at] = places[at - 1];
      }
      dims[at] = dim;
      places[at] = place;
    };
    add(view.inner, 1);
    add({view.channels, view.channel_stride}, view.inner.size);
    int64_t place = view.inner.size * view.channels;
    for (int d = view.outer_dims - 1; d >= 0; --d) {
      add(view.outer[d], place);
      place *= view.outer[d].size;
    }
    if (by_offset) count = 0;
  }
};

// The view of the same elements with as few dimensions as there are without a logical order.
inline ChannelView without_order(const ChannelView& view) {
  int64_t sizes[kMaxDims], strides[kMaxDims];
  int dims = 0, channel_dim = -1;
  const auto add = [&](const Dim& dim) {
    if (dim.size == 1) return;
    sizes[dims] = dim.size;
    strides[dims++] = dim.stride;
  };
  for (int d = 0; d < view.outer_dims; ++d) add(view.outer[d]);
  add(view.inner);
  if (view.channels > 1) channel_dim = dims;
  add({view.channels, view.channel_stride});
  ChannelView joined = channel_view(sizes, strides, dims, channel_dim);
  joined.repeat = view.repeat;
  return joined;
}

// The view of a masked tensor with outer dimensions joined where memory allows. Outer indices keep
// their order, and so the rows that they are of.
inline ChannelView with_joined_rows(const ChannelView& view) {
  ChannelView joined = view;
  joined.outer_dims = 0;
  for (int d = 0; d < view.outer_dims; ++d) {
    const Dim& dim = view.outer[d];
    Dim& last = joined.outer[joined.outer_dims > 0 ? joined.outer_dims - 1 : 0];
    if (joined.outer_dims > 0 && last.stride == dim.stride * dim.size) {
      last = {last.size * dim.size, dim.stride};
    } else {
      joined.outer[joined.outer_dims++] = dim;
    }
  }
  return joined;
}

}  // namespace hookstats::cuda
