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
  if (params.channel_bins.kind != BinKind::kNone) {
    int64_t* counts = params.channel_counts + channel * params.channel_bins.slots();
    discount_nonfinite(params.channel_bins, counts, seen.nan, seen.posinf, seen.neginf);
  }
}

// Takes non-finite elements of some channels out of the tensor's histogram, which other threads may
// count into. As a rule there are none, and their slots are left alone. Marks stay: each was
// counted.
inline void discount_tensor(const UpdateParams& params, int64_t nan, int64_t posinf,
                            int64_t neginf) {
  if (params.tensor_bins.kind == BinKind::kNone || (nan | posinf | neginf) == 0) return;
  __atomic_fetch_sub(&params.tensor_counts[0], nan + neginf, __ATOMIC_RELAXED);
  int64_t* overflow = &params.tensor_counts[params.tensor_bins.bins + 1];
  __atomic_fetch_sub(overflow, posinf, __ATOMIC_RELAXED);
}

}  // namespace hookstats::cpu
