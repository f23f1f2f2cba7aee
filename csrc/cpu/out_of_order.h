// Sampled histograms of tensors whose memory is not in logical order, by a pass of their own.
#pragma once

#include "core/sample.h"
#include "core/update_params.h"
#include "cpu/update.h"

namespace hookstats::cpu {

// Counts what `sample` chooses into the tensor's histogram, and marks it; nothing without bins.
void count_tensor(const UpdateParams& params, const Sample& sample, ParallelFor parallel_for);

// The same into the histograms of the channels.
void count_channels(const UpdateParams& params, const Sample& sample, ParallelFor parallel_for);

}  // namespace hookstats::cpu
