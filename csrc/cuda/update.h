// Entry points of the CUDA kernels: accumulate tensors' statistics into the state of their
// channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/update_params.h"
#include "cuda/policy.h"

namespace hookstats::cuda {

using Stream = void*;  // cudaStream_t

// The properties of a device that a plan depends on; read once per device.
struct Device {
  int index;
  int multiprocessors;
  size_t shared_bytes;  // a block's, at most
};
Device device(int index);

// Memory of the device that one stream's updates share, one after another. The memory is zero at
// first, and every update leaves it as the next update needs it.
struct Workspace {
  void* data;
  size_t bytes;
};

// Who has workspaces, of `bytes` or more, for the stream of an update.
class Lender {
 public:
  virtual Workspace lend(size_t bytes) = 0;

 protected:
  ~Lender() = default;
};

// Launches on the stream and returns: no synchronisation, no copy, and for one tensor no allocation
// of the host's. Each launch borrows a workspace if it needs one. The same input, equally aligned,
// gives the same bits on devices of one kind. Throws std::runtime_error, which names CUDA's error,
// and std::invalid_argument if a workspace is too small.
void update(const Device& device, const UpdateParams& params, Lender& lender, Stream stream);

// The same as `update` one by one, in few launches; the states share no memory.
void update_many(const Device& device, const UpdateParams* params, int64_t count, Lender& lender,
                 Stream stream);

}  // namespace hookstats::cuda
