// Which kernel a launch takes: by agent, what is counted, and masks.
#pragma once

#include "cuda/kernels.cuh"

namespace hookstats::cuda {

template <class Source, int kItems>
void launch_agent(const Table<kItems>& table, AgentKind agent, const LaunchConfig& config) {
  // Rare cases are compiled once, with counting, which is skipped if there is nothing to count.
  if constexpr (kItems == 1) {
    if (table.common.rows.flags != nullptr) {
      return launch_one<Masked<Source>, true>(table, agent, config);
    }
  }
  const bool counts = !Source::kVectors || table.common.tensor_bins.kind != BinKind::kNone ||
                      table.common.channel_bins.kind != BinKind::kNone;
  if constexpr (Source::kVectors && kItems == 1) {
    if (agent == AgentKind::kSkewedColumns) {
      return launch(counts ? columns<Skewed<Source>, true, 1> : columns<Skewed<Source>, false, 1>,
                    config, table);
    }
    if (agent == AgentKind::kMaps) return launch_maps<Source>(table, counts, config);
  }
  if (counts) {
    launch_one<Source, true>(table, agent, config);
  } else if constexpr (Source::kVectors) {
    launch_one<Source, false>(table, agent, config);
  }
}

}  // namespace hookstats::cuda

// Each source has a file of its own, so that they compile side by side.
#define HOOKSTATS_INSTANTIATE(Source)                                                     \
  template void launch_agent<Source, 1>(const Table<1>&, AgentKind, const LaunchConfig&); \
  template void launch_agent<Source, kMany>(const Table<kMany>&, AgentKind, const LaunchConfig&)
