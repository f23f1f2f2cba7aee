// Copies the state of one tensor into an empty state, where the tensor would give the same.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/marks.h"
#include "core/state.h"
#include "core/update_params.h"

namespace hookstats {

namespace detail {

template <class T>
void copy_values(const T* from, T* to, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

inline int64_t moment_columns(const UpdateParams& state) {
  return state.higher ? kHigherColumns : kMomentColumns;
}

}  // namespace detail

// The bytes of a state's rows of channels.
inline int64_t row_bytes(const UpdateParams& state, int64_t channels) {
  const int64_t moments = detail::moment_columns(state);
  const int64_t bins = state.channel_counts == nullptr ? 0 : state.channel_bins.slots();
  return channels * (moments + kTallyColumns + bins) * int64_t{sizeof(int64_t)};
}

// Both states are in the host's memory and have the same number of channels, bins and columns; `to`
// is empty. One tensor was folded into `from`, by a writer that marks if it has marks. The number
// of tensors that marks have is left to the caller.
inline void copy_state(const UpdateParams& from, const UpdateParams& to, int64_t channels) {
  using detail::copy_values;
  copy_values(from.moments, to.moments, channels * detail::moment_columns(from));
  copy_values(from.tallies, to.tallies, channels * kTallyColumns);
  if (from.channel_counts != nullptr) {
    copy_values(from.channel_counts, to.channel_counts, channels * from.channel_bins.slots());
  }
  if (from.tensor_counts == nullptr) return;
  const int64_t slots = from.tensor_bins.slots();
  if (from.tensor_marks == nullptr || to.tensor_marks == nullptr) {
    copy_values(from.tensor_counts, to.tensor_counts, slots);
    return;
  }
  each_marked(from.tensor_marks, slots, [&](int64_t begin, int64_t end) {
    copy_values(from.tensor_counts + begin, to.tensor_counts + begin, end - begin);
  });
  copy_values(from.tensor_marks + 1, to.tensor_marks + 1, mark_columns(slots) - 1);
}

}  // namespace hookstats
