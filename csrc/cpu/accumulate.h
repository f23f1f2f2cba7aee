// Accumulates the statistics of a channel in one tensor into the channel's state.
#pragma once

#include <cstdint>

#include "core/update_params.h"
#include "cpu/plan.h"

namespace hookstats::cpu {

inline void accumulate_channel(const UpdateParams& params, int64_t channel, const Channel& seen) {
  double* moments = params.moments + channel * kMomentColumns;
  int64_t* tallies = params.tallies + channel * kTallyColumns;
  Channel state;
  load_row(state, moments, tallies);
  // As a rule this is the first tensor of a step, and there is nothing to merge.
  const bool empty = (state.count | state.nan | state.posinf | state.neginf) == 0;
  if (!empty) merge(state, seen);
  store_row(empty ? seen : state, moments, tallies);
}

// Subtract non-finite elements, of which as a rule there are none, from a channel's histogram and
// from the tensor's, which other threads may count into. The bitmap stays: each slot was counted
// in. What is sampled, or counted by keys, has only finite elements.
inline void discount_channel(const UpdateParams& params, const Plan& plan, int64_t channel,
                             const Channel& seen) {
  if (params.channel_bins.kind == BinKind::kNone || !plan.channel_sample.all()) return;
  if ((seen.nan | seen.posinf | seen.neginf) == 0) return;
  int64_t* counts = params.channel_counts + channel * params.channel_bins.slots();
  discount_nonfinite(params.channel_bins, counts, seen.nan, seen.posinf, seen.neginf);
}
inline void discount_tensor(const UpdateParams& params, const Plan& plan, int64_t nan,
                            int64_t posinf, int64_t neginf) {
  if (params.tensor_bins.kind == BinKind::kNone || !plan.tensor_sample.all() || plan.by_key) {
    return;
  }
  int64_t* underflow = &params.tensor_counts[0];
  int64_t* overflow = &params.tensor_counts[params.tensor_bins.bins + 1];
  if (nan + neginf != 0) __atomic_fetch_sub(underflow, nan + neginf, __ATOMIC_RELAXED);
  if (posinf != 0) __atomic_fetch_sub(overflow, posinf, __ATOMIC_RELAXED);
}

}  // namespace hookstats::cpu
