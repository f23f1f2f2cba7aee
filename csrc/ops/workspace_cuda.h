// Memory on a device that the kernels of one stream share, one after the other; memory of graphs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/streams.h"
#include "cuda/update.h"

namespace hookstats::cuda {

// Whether what is launched on a stream now becomes a part of a graph.
bool is_capturing(Stream stream);

// The streams of a device. Never destroyed: at exit the driver may be gone before this library.
Streams& streams_of(int32_t device);

// A workspace of `bytes` or more, for one launch on `stream`, the current one of `device`, which is
// the current device. A graph that is captured gets one of its own with each launch: it may be
// replayed on any stream.
class Leased {
 public:
  Leased(int32_t device, Stream stream, size_t bytes);
  // Call it after the launch: who closes a step has to know of it.
  void launched();
  ~Leased();
  Leased(const Leased&) = delete;
  Leased& operator=(const Leased&) = delete;

  Workspace workspace() const { return workspace_; }

 private:
  const int32_t device_;
  const Stream stream_;
  const bool captured_;
  Workspace workspace_{nullptr, 0};
};

}  // namespace hookstats::cuda
