// Folds what was seen of a channel into its state.
#pragma once

#include <cstdint>

#include "core/update_params.h"

namespace hookstats::cpu {

inline void fold_channel(const UpdateParams& params, int64_t channel, const Channel& seen) {
  double* moments = params.moments + channel * kMomentColumns;
  int64_t* tallies = params.tallies + channel * kTallyColumns;
  Channel state = load_row(moments, tallies);
  const bool empty = (state.count | state.nan | state.posinf | state.neginf) == 0;
  if (!empty) merge(state, seen);
  store_row(empty ? seen : state, moments, tallies);
}

// Takes a channel's non-finite elements, if there are any, out of its histogram and the tensor's,
// which other threads may count into. Marks stay: each was counted.
inline void discount_channel(const UpdateParams& params, int64_t channel, const Channel& seen) {
  if ((seen.nan | seen.posinf | seen.neginf) == 0) return;
  if (params.channel_bins.kind != BinKind::kNone) {
    int64_t* counts = params.channel_counts + channel * params.channel_bins.slots();
    discount_nonfinite(params.channel_bins, counts, seen.nan, seen.posinf, seen.neginf);
  }
  if (params.tensor_bins.kind != BinKind::kNone) {
    __atomic_fetch_sub(&params.tensor_counts[0], seen.nan + seen.neginf, __ATOMIC_RELAXED);
    int64_t* overflow = &params.tensor_counts[params.tensor_bins.bins + 1];
    __atomic_fetch_sub(overflow, seen.posinf, __ATOMIC_RELAXED);
  }
}

}  // namespace hookstats::cpu
