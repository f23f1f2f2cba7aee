// Entry points of the CPU kernels: accumulate tensors' statistics into the state of their channels.
#pragma once

#include <cstdint>

#include "core/update_params.h"

namespace hookstats::cpu {

// Calls body(begin, end, context) on disjoint ranges that cover [0, tasks), on any threads.
using ParallelFor = void (*)(int64_t tasks, void (*body)(int64_t begin, int64_t end, void* context),
                             void* context);

// The result has the same bits for every ParallelFor: work is cut by shape alone.
void update(const UpdateParams& params, ParallelFor parallel_for);

// The same as `update` one by one; the states share no memory, so threads share out the tensors.
void update_many(const UpdateParams* params, int64_t count, ParallelFor parallel_for);

// Name of the instruction set in use: "AVX512", "AVX2" or "DEFAULT" (torch's names). Follows
// the environment variable ATEN_CPU_CAPABILITY, as torch does.
const char* capability();

}  // namespace hookstats::cpu
