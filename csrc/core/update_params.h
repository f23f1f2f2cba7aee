// The arguments of one update: a tensor, and the state into which it is accumulated.
#pragma once

#include <cstdint>

#include "core/bins.h"
#include "core/channel_view.h"
#include "core/dtype.h"
#include "core/sample.h"
#include "core/state.h"

namespace hookstats {

// All memory is that of the device that computes.
struct UpdateParams {
  const void* data;
  DType dtype;
  ChannelView view;
  double* moments;          // [channels, kMomentColumns]
  int64_t* tallies;         // [channels, kTallyColumns]
  Bins tensor_bins;         // one histogram of the tensor, into
  int64_t* tensor_counts;   // [tensor_bins.slots()]
  Bins channel_bins;        // one histogram per channel, into
  int64_t* channel_counts;  // [channels, channel_bins.slots()]
  float scale = 1.0f;       // what values are divided by, as wide as core/dtype.h widens them
  const float* device_scale = nullptr;  // the scale if the host cannot read it, else null
  // A row of occupancy of tensor_counts (core/occupancy.h), or null. Only CPU kernels mark.
  int64_t* tensor_occupancy = nullptr;
  // [kSamplingColumns] if histograms may be sampled (core/sample.h), else null; the view is ordered
  // then.
  const int64_t* sampling = nullptr;
  // Where the update finds, as it runs, whether it does anything: 0 if not. Null: it does.
  const int64_t* recorded = nullptr;
};

}  // namespace hookstats
