// What an operator library offers to the C++ hooks, which are another library: one address.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include <cstdint>

#include "core/update_params.h"

namespace hookstats {

struct Kernels {
  // Accumulates `count` tensors of one device into states that share no memory; `device` is its
  // index, and `captured` what `is_captured` says.
  void (*update)(const UpdateParams* params, int64_t count, int32_t device, bool captured);
  // Null for devices without graphs.
  bool (*is_capturing)(int32_t device);
};

// Whether work that is submitted to the device now becomes part of a graph: replays of the graph
// run its kernels but no hooks.
inline bool is_captured(const Kernels& kernels, int32_t device) {
  return kernels.is_capturing != nullptr && kernels.is_capturing(device);
}

// The address of `kernels`, for callers that were built with the same UpdateParams.
inline int64_t entry(const Kernels& kernels, int64_t params_size) {
  STD_TORCH_CHECK(params_size == int64_t{sizeof(UpdateParams)}, "params_size is ", params_size,
                  "; expected ", sizeof(UpdateParams), ", that of the same build");
  return reinterpret_cast<int64_t>(&kernels);
}

}  // namespace hookstats
