// How a kernel is launched, and what a device offers, for CUDA and for the emulator.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hookstats::cuda {

struct DeviceLimits {
  int multiprocessors, shared_bytes;
};

struct LaunchConfig {
  int64_t grid = 1;
  int block = 1;
  size_t shared_bytes = 0;
  void* stream = nullptr;
  int device = 0;                // the current one
  size_t most_shared_bytes = 0;  // that a block may have there
};

}  // namespace hookstats::cuda
