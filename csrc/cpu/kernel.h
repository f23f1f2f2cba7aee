// What one instruction set offers: one function that runs a range of an update's tasks.
#pragma once

#include <cstdint>
#include <vector>

#include "core/occupancy.h"
#include "cpu/plan.h"
#include "cpu/update.h"

namespace hookstats::cpu {

// Gathers `count` elements `stride` apart, converted to float or double (see core/dtype.h) and
// divided by `scale`.
using Pack = void (*)(const void* source, int64_t stride, int64_t count, float scale, void* target);

struct Job {
  const UpdateParams& params;
  const Plan& plan;
  Pack pack;  // set if plan.packed
  bool packs_to_double;
  Channel* partials;  // [plan.splits()][plan.width]; unused if plan.direct
};

using RunTasks = void (*)(const Job& job, int64_t begin, int64_t end);

namespace baseline {
void run_tasks(const Job& job, int64_t begin, int64_t end);
}
#if defined(__x86_64__)
namespace avx2 {
void run_tasks(const Job& job, int64_t begin, int64_t end);
}
namespace avx512 {
void run_tasks(const Job& job, int64_t begin, int64_t end);
}
#endif

// Buffers of one thread, grown once and kept: an update allocates nothing after the first.
struct Scratch {
  std::vector<uint16_t> tensor_counters;  // all zero between uses
  std::vector<uint16_t> channel_counters;
  std::vector<double> packed;  // double for its alignment; may hold floats
  std::vector<Channel> partials;
  std::vector<float> tensor_edges;
  std::vector<float> channel_edges;
  std::vector<int64_t> kept_rows;
};
Scratch& thread_scratch();

}  // namespace hookstats::cpu
