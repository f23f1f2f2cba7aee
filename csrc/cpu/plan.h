// How one update is cut into tasks: by shape alone, so that results do not depend on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "cpu/update.h"

namespace hookstats::cpu {

constexpr int kLanes = 16;                  // every instruction set works on 16 elements at a time
constexpr int64_t kRunTask = 32768;         // elements per task of runs: 128 KB of fp32, within L2
constexpr int64_t kRowTask = 512;           // least rows per task: they share a channel's finish
constexpr int64_t kRowElements = 262144;    // elements per task of more rows: 1 MB of fp32
constexpr int64_t kFewTasks = 16;           // tasks stay small if there would be fewer tasks
constexpr int64_t kRowBlock = 768;          // channels per task: 256 of 768 took 1.2 times as long
constexpr int64_t kNarrowBlock = 256;       // channels per task if tasks are few
constexpr int64_t kJoinBelow = 64;          // rows of fewer channels are joined
constexpr int64_t kMostTasks = 4096;        // enough for any machine; partial results stay few
constexpr int64_t kTableBytes = 24 * 1024;  // counters of rows, within L1

// kRuns: a vector holds elements of one channel. kRows: a vector holds neighbouring channels.
enum class Layout : uint8_t { kRuns, kRows };

struct Plan {
  Layout layout;
  // Tasks of the same block are neighbours: one table of counts serves them all.
  bool block_major;
  bool packed;  // elements are gathered, converted and scaled into a buffer first
  // Rows of few channels are joined: `joined` rows make one of joined * channels "lanes" wide.
  int64_t joined;
  int64_t width;       // channels * joined
  int64_t rows;        // outer indices, after joining
  int64_t last_width;  // lanes of the last row; width unless the rows did not join evenly
  int64_t block;       // channels (lanes) per task
  int64_t blocks;
  int64_t row_step;  // outer indices per task
  int64_t row_splits;
  int64_t inner_step;  // elements of a run per task
  int64_t inner_splits;
  // A channel is one task's, which accumulates it into the state itself. What expanded dimensions
  // repeat is left to the merge.
  bool direct;
  Sample tensor_sample, channel_sample;  // of the histograms
  // All of the tensor's elements are counted by the upper bits of floats, which leaves non-finite
  // ones out.
  bool by_key;

  bool samples() const { return !tensor_sample.all() || !channel_sample.all(); }
  int64_t splits() const { return row_splits * inner_splits; }  // partial results per channel
  int64_t tasks() const { return blocks * splits(); }
};

struct Task {
  int64_t block, split;
  int64_t channel_begin, channel_end;
  int64_t row_begin, row_end;
  int64_t inner_begin, inner_end;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool loads_directly(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

// Whether kernels compute in float, before they have to widen what overflows.
inline bool reads_floats(DType dtype) {
  return dispatch(dtype, [](auto* type) { return sizeof(widen(*type)) == sizeof(float); });
}

// Elements that are less than half as many as the slots are counted in the histogram itself, as to
// empty counters would cost more; so are all if there are more slots than any cache has.
constexpr int64_t kMostSlots = 65535;
inline bool worth_counters(const Bins& bins, int64_t elements) {
  return bins.slots() <= kMostSlots && elements >= bins.slots() / 2;
}

// What a histogram counts of the tensor; the sampling is read here, once per call.
inline Sample sample_of(const UpdateParams& p, SamplingColumn every) {
  if (p.sampling == nullptr) return {};
  return make_sample(p.sampling[every], p.sampling[kStep], p.view.positions());
}

inline Plan make_plan(const UpdateParams& p) {
  const ChannelView& view = p.view;
  Plan plan{};
  const int64_t channel_slots = p.channel_bins.kind == BinKind::kNone ? 1 : p.channel_bins.slots();
  const int64_t most_channels =
      std::max<int64_t>(1, kTableBytes / (channel_slots * int64_t{sizeof(uint16_t)}));
  plan.block_major = p.channel_bins.kind != BinKind::kNone;
  plan.joined = 1;
  plan.width = plan.last_width = view.channels;
  plan.rows = view.outer_size;
  const bool converted = !loads_directly(p.dtype) || p.scale != 1.0f;
  if (view.channels_are_fastest()) {
    plan.layout = Layout::kRows;
    plan.packed = converted || view.channel_stride != 1;
    // Rows that a mask keeps are brought together where they do not touch; samples want positions.
    const bool rows_touch =
        view.outer_dims == 1 && view.outer[0].stride == view.channels &&
        (view.kept == nullptr || (view.row_outer == 1 && p.sampling == nullptr));
    if (view.channel_stride == 1 && rows_touch && view.channels < kJoinBelow &&
        view.channels % kLanes != 0) {
      const int64_t joined = std::lcm(view.channels, int64_t{kLanes}) / view.channels;
      if (plan.rows >= 4 * joined) {
        const int64_t leftover = plan.rows % joined;
        plan.joined = joined;
        plan.width = joined * view.channels;
        plan.last_width = leftover == 0 ? plan.width : leftover * view.channels;
        plan.rows = ceil_div(plan.rows, joined);
      }
    }
    // Wide blocks read best; where they would be few tasks, narrow ones keep more threads busy.
    for (int64_t widest = kRowBlock;; widest -= kNarrowBlock) {
      const int64_t most = std::clamp(most_channels, int64_t{kLanes}, widest) / kLanes * kLanes;
      const int64_t even = ceil_div(plan.width, ceil_div(plan.width, most));  // blocks of one size
      plan.block = std::min(plan.width, ceil_div(even, kLanes) * kLanes);
      const int64_t most_rows = std::max(kRowTask, kRowElements / plan.block);
      plan.row_splits =
          ceil_div(plan.rows, std::clamp(ceil_div(plan.rows, kFewTasks), kRowTask, most_rows));
      const int64_t tasks = ceil_div(plan.width, plan.block) * plan.row_splits;
      if (widest == kNarrowBlock || tasks >= kFewTasks || view.numel() <= 2 * kRunTask) break;
    }
    plan.inner_step = plan.inner_splits = 1;
  } else {
    plan.layout = Layout::kRuns;
    plan.packed = converted || (view.inner.stride != 1 && view.inner.size > 1);
    plan.inner_splits = std::min(ceil_div(view.inner.size, kRunTask), kMostTasks);
    plan.inner_step = ceil_div(view.inner.size, plan.inner_splits);
    // Runs of neighbouring channels are read together, in the order memory holds them: 0.7 of the
    // time of one channel's runs, 12 KB each, of all images.
    const int64_t neighbours = std::clamp<int64_t>(kRunTask / plan.inner_step, 1, kLanes);
    plan.block = std::min({view.channels, neighbours, std::max<int64_t>(1, most_channels / 4)});
    const int64_t rows_a_task = std::max<int64_t>(1, kRunTask / (plan.block * plan.inner_step));
    plan.row_splits = ceil_div(plan.rows, rows_a_task);
  }
  plan.blocks = ceil_div(plan.width, plan.block);
  plan.row_splits = std::clamp<int64_t>(kMostTasks / plan.blocks, 1, plan.row_splits);
  plan.row_step = ceil_div(plan.rows, plan.row_splits);
  plan.row_splits = ceil_div(plan.rows, plan.row_step);
  plan.direct = plan.splits() == 1 && plan.joined == 1 && view.repeat == 1;
  plan.tensor_sample = sample_of(p, kTensorEvery);
  plan.channel_sample = sample_of(p, kChannelEvery);
  plan.by_key = plan.tensor_sample.all() && have_keys(p.tensor_bins) && reads_floats(p.dtype) &&
                worth_counters(p.tensor_bins, view.numel());
  return plan;
}

// Tasks are numbered so that neighbours read neighbouring memory.
inline Task task_at(const Plan& plan, const UpdateParams& p, int64_t index) {
  Task task;
  task.block = plan.block_major ? index / plan.splits() : index % plan.blocks;
  task.split = plan.block_major ? index % plan.splits() : index / plan.blocks;
  const int64_t row = task.split / plan.inner_splits;
  const int64_t inner = task.split % plan.inner_splits;
  task.channel_begin = task.block * plan.block;
  task.channel_end = std::min(plan.width, task.channel_begin + plan.block);
  task.row_begin = row * plan.row_step;
  task.row_end = std::min(plan.rows, task.row_begin + plan.row_step);
  task.inner_begin = inner * plan.inner_step;
  task.inner_end = std::min(p.view.inner.size, task.inner_begin + plan.inner_step);
  return task;
}

}  // namespace hookstats::cpu
