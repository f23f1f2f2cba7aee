// Memory on a device that the kernels of one stream share, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda/update.h"

namespace hookstats::cuda {

// Whether what is launched on a stream now becomes a part of a graph.
bool is_capturing(Stream stream);

// Calls `launch` with a workspace of `bytes` or more for kernels on `stream`, the current one of
// `device`, which is the current device. It is allocated once a stream, is kept, and grows where
// more is needed. A graph that is captured gets one of its own with each call: it may be replayed
// on any stream.
//
// No two threads are in `launch` at a time, so that none finds its workspace gone.
void with_workspace(int32_t device, Stream stream, size_t bytes,
                    const std::function<void(Workspace)>& launch);

}  // namespace hookstats::cuda
