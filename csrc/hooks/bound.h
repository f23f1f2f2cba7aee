// Where a site accumulates tensors of one shape, dtype and device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/update_params.h"
#include "ops/kernels.h"

namespace hookstats::hooks {

// The arguments of `update_` after x and channel_dim: Python's `State`, with the same names.
struct State {
  at::Tensor moments, tallies;
  std::optional<at::Tensor> counts, bins, channel_counts, channel_bins, sampling;
};

struct Bound {
  const Kernels* kernels;
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes, strides;
  int channel_dim;  // or -1
  // By buffer, as all arrays.
  std::array<UpdateParams, 2> params{};
  // Owns the memory that `params` points into.
  std::array<State, 2> states;
  std::array<at::Tensor, 2> calls;
  std::optional<std::array<at::Tensor, 2>> occupancy;
  std::array<int64_t*, 2> call_counts{};  // into `calls`
  std::vector<float> tensor_edges{}, channel_edges{};
  bool masked = false;  // whether the views in `params` are of a mask

  // `clock`: of the double buffer, which tells in what order sites first ran in a step.
  void count_accumulated(size_t front, int64_t& clock) {
    int64_t* const counts = call_counts[front];
    if (counts[0]++ == 0) counts[1] = ++clock;
    if (int64_t* const occupancy_of = params[front].tensor_occupancy) ++occupancy_of[0];
  }
};

}  // namespace hookstats::hooks
