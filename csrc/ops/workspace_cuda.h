// Memory on a device that the kernels of one stream share, one after the other; memory of graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/streams.h"
#include "cuda/update.h"

namespace hookstats::cuda {

constexpr int32_t kMostDevices = 128;  // torch has fewer

// Whether what is launched on a stream now becomes a part of a graph.
bool is_capturing(Stream stream);

// The streams of a device. Never destroyed: at exit the driver may be gone before this library.
Streams& streams_of(int32_t device);

// Workspaces for launches on `stream`, the current one of `device`, which is the current device. A
// graph that is captured gets one of its own with each launch: it may be replayed on any stream.
class Leased final : public Lender {
 public:
  Leased(int32_t device, Stream stream);
  Workspace lend(size_t bytes) override;
  // Call it after the launch: who closes a step has to know of it.
  void launched();
  ~Leased();
  Leased(const Leased&) = delete;
  Leased& operator=(const Leased&) = delete;

 private:
  const int32_t device_;
  const Stream stream_;
  const bool captured_;
  std::vector<void*> lent_;  // to a graph
};

}  // namespace hookstats::cuda
