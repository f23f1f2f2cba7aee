// Entry points of the CPU kernels: fold tensors' statistics into the state of their channels.
#pragma once

#include <cstdint>

#include "core/bins.h"
#include "core/channel_view.h"
#include "core/dtype.h"
#include "core/state.h"

namespace hookstats::cpu {

struct UpdateParams {
  const void* data;
  DType dtype;
  ChannelView view;
  double* moments;          // [channels, kMomentColumns]
  int64_t* tallies;         // [channels, kTallyColumns]
  Bins tensor_bins;         // one histogram of the tensor, into
  int64_t* tensor_counts;   // [tensor_bins.slots()]
  Bins channel_bins;        // one histogram a channel, into
  int64_t* channel_counts;  // [channels, channel_bins.slots()]
  float scale = 1.0f;       // what values are divided by, as wide as core/dtype.h widens them
};

// Calls body(begin, end, context) on disjoint ranges that cover [0, tasks), on any threads.
using ParallelFor = void (*)(int64_t tasks, void (*body)(int64_t begin, int64_t end, void* context),
                             void* context);

// The result has the same bits for every ParallelFor: work is cut by shape alone.
void update(const UpdateParams& params, ParallelFor parallel_for);

// The same as `update` one by one, whose states share no memory: threads share out the tensors.
void update_many(const UpdateParams* params, int64_t count, ParallelFor parallel_for);

// Name of the instruction set in use: "AVX512", "AVX2" or "DEFAULT" (torch's names). Follows
// the environment variable ATEN_CPU_CAPABILITY, as torch does.
const char* capability();

}  // namespace hookstats::cpu
