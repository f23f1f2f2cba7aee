// What one source of elements offers: the launch of each agent, on one tensor or many.
#pragma once

#include "cuda/launch_config.h"
#include "cuda/table.h"

namespace hookstats::cuda {

template <class T>
struct Vectors;
struct Scalars;

// Skewed columns have rows that begin anywhere, maps some elements of each channel side by side:
// both of one tensor alone, without masks.
enum class AgentKind : uint8_t { kRuns, kColumns, kSkewedColumns, kMaps };

template <class Source, int kItems>
void launch_agent(const Table<kItems>& table, AgentKind agent, const LaunchConfig& config);

}  // namespace hookstats::cuda
