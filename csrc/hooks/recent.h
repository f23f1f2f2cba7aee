// The tensors that were folded in of late: the state of one that comes again is copied, as where a
// module returns its input or where the input of a module is an output that is watched.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/sample.h"
#include "hooks/bound.h"

namespace hookstats::hooks {

class Mask;

// Where a tensor comes from: of a gradient, the output of an autograd node, all hooks of which run
// one after another; by default, of any other tensor.
struct Origin {
  int task = -1;               // which backward
  const void* node = nullptr;  // for comparison alone
  int64_t output = 0;

  bool operator==(const Origin&) const = default;
};

// Every method needs the arena's lock.
class Recent {
 public:
  Recent() { entries_.reserve(kMost); }

  // By what a tensor is known, and how it was read.
  struct Entry {
    // Its own address is given to no other storage while there is a weak reference.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    c10::VariableVersion counter;
    uint32_t version;
    uint64_t hash;  // of some of its elements
    std::shared_ptr<const Mask> mask;
    Origin origin;
    std::array<int64_t, kSamplingColumns> sampling;
    bool first;  // the buffer of `bound` was empty
    std::shared_ptr<const Bound> bound;
    int64_t seen;  // the elements that the buffer had then, by its first channel
  };

  // Whether tensors like `x`, which is plain, can be recognised, and copying their states costs
  // less than reading them.
  static bool takes(const Bound& bound, const at::Tensor& x, const Origin& origin);

  // What to remember of a tensor that is about to be folded into the buffer `front` of `bound`.
  static Entry describe(const at::Tensor& x, const std::shared_ptr<const Mask>& mask,
                        const Origin& origin, const std::shared_ptr<const Bound>& bound,
                        size_t front);
  // Folds a tensor of these strides into the buffer `front` of `into`, its bound, by a copy, if it
  // was folded into another state there and, by its version counter and by a hash of some elements,
  // has not changed since. Returns whether that was so.
  bool repeat(const Entry& tensor, at::IntArrayRef strides, Bound& into, size_t front);
  // Remembers that the tensor was folded in. It may be gone meanwhile.
  void add(Entry tensor, size_t front);
  // Forgets all tensors, since states are read out or emptied.
  void clear();

  int64_t repeated = 0;  // tensors whose states were copied

 private:
  // As many tensors come between the input of a block of layers and a shortcut that returns it.
  static constexpr size_t kMost = 32;

  std::vector<Entry> entries_;  // a ring
  size_t next_ = 0;
};

}  // namespace hookstats::hooks
