// The kernels: a block finds its tensor, makes its tables, and lets an agent do the work.
#pragma once

#include "cuda/agent_columns.cuh"
#include "cuda/agent_maps.cuh"
#include "cuda/agent_runs.cuh"
#include "cuda/kept.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/sampled.cuh"

namespace hookstats::cuda {

// The item that `block` belongs to: the last one that begins at or before it.
template <int kItems>
HOOKSTATS_DEVICE int find_item(const Table<kItems>& table, int block) {
  if constexpr (kItems == 1) return 0;
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.items[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class T>
HOOKSTATS_DEVICE T* shared_at(int32_t offset) {
  return offset < 0 ? nullptr : reinterpret_cast<T*>(shared_memory() + offset);
}

template <class Agent, bool kCounts, int kItems>
HOOKSTATS_DEVICE void run_agent(const Table<kItems>& table) {
  const Common& common = table.common;
  if (common.recorded != nullptr && load(common.recorded) == 0) return;  // all blocks do
  const Shared& shared = common.shared;
  const int index = find_item(table, block_index());
  const Item& item = table.items[index];
  const Dim* const outer = table.outer + index * Table<kItems>::kDims;
  Histogram tensor, channels;
  Sample tensor_sample, channel_sample;
  [[maybe_unused]] bool has_share = true;
  if constexpr (kCounts) {
    uint32_t* const counters = shared_at<uint32_t>(shared.counters);
    float* const tensor_edges = shared_at<float>(shared.tensor_edges);
    float* const channel_edges = shared_at<float>(shared.channel_edges);
    tensor = {block_bins(common.tensor_bins, tensor_edges), tensor_edges,
              shared_at<uint32_t>(shared.tensor_table), shared.tensor_copies, counters};
    tensor.way = way_of(tensor.bins, tensor.table != nullptr, shared.tensor_patterns != 0);
    channels = {block_bins(common.channel_bins, channel_edges), channel_edges,
                shared_at<uint32_t>(shared.channel_table), Agent::channel_pitch(common, item),
                counters};
    channels.way = way_of(channels.bins, channels.table != nullptr, false);
    tensor_sample = sample_of(common, item, kTensorEvery);
    channel_sample = sample_of(common, item, kChannelEvery);
    // Without a share of the sample, a table of the tensor's histogram, the last one, is not used.
    has_share = Sampled<typename Agent::From>(common, item, outer).has_share(tensor, tensor_sample);
    const int32_t before = (shared.tensor_table - shared.counters) / int32_t{sizeof(uint32_t)};
    clear(counters, has_share || tensor.table == nullptr ? shared.counters_size : before);
    if (thread_index() == 0) {
      Histogram* const of_block = block_histograms(common);
      of_block[0] = tensor;
      of_block[1] = channels;
    }
    sync_block();
  }
  typename Agent::Place place;
  Agent agent(common, item, outer, of_all(tensor, tensor_sample), of_all(channels, channel_sample),
              place);
  agent.run(block_index() - item.first_block, shared_at<void>(shared.scratch));
  if constexpr (kCounts) {
    const Sampled<typename Agent::From> sampled(common, item, outer);
    const Histogram* const of_block = block_histograms(common);
    sampled.count_tensor(of_block[0], tensor_sample);
    sampled.count_channels(of_block[1], channel_sample);
    if (of_block[0].table == nullptr || !has_share) return;
    sync_block();
    add_tensor_table(of_block[0], item);
  }
}

template <class Source, bool kCounts, int kItems>
HOOKSTATS_KERNEL void HOOKSTATS_BOUNDS(kBlock, (kCounts ? kCountingBlocks : kRunsBlocks))
    runs(const HOOKSTATS_GRID_CONSTANT Table<kItems> table) {
  run_agent<Runs<Source, kCounts>, kCounts>(table);
}

template <class Source, bool kCounts, int kItems>
HOOKSTATS_KERNEL void HOOKSTATS_BOUNDS(kBlock, kColumnsBlocks)
    columns(const HOOKSTATS_GRID_CONSTANT Table<kItems> table) {
  run_agent<Columns<Source, kCounts>, kCounts>(table);
}

template <class Source, bool kCounts, int kItems>
HOOKSTATS_KERNEL void HOOKSTATS_BOUNDS(kBlock, kColumnsBlocks)
    maps(const HOOKSTATS_GRID_CONSTANT Table<kItems> table) {
  run_agent<Maps<Mapped<Source>, kCounts>, kCounts>(table);
}

template <class Source>
void launch_maps(const Table<1>& table, bool counts, const LaunchConfig& config) {
  launch(counts ? maps<Source, true, 1> : maps<Source, false, 1>, config, table);
}

template <class Source, bool kCounts, int kItems>
void launch_one(const Table<kItems>& table, AgentKind agent, const LaunchConfig& config) {
  const bool by_runs = agent == AgentKind::kRuns;
  launch(by_runs ? runs<Source, kCounts, kItems> : columns<Source, kCounts, kItems>, config, table);
}

}  // namespace hookstats::cuda
