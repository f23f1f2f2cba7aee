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

#include "hooks/bound.h"

namespace hookstats::hooks {

class Mask;

// Where a tensor comes from: of a gradient, the output of an autograd node, all hooks of which run
// one after another; by default, the tensor is no gradient.
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

  // What is compared of a tensor and the call that has it.
  struct Key {
    const at::Tensor& x;
    const std::shared_ptr<const Mask>& mask;
    const Origin& origin;
  };

  // Whether tensors like `x`, which is plain, can be recognised, and to copy their states takes
  // less than to read them.
  static bool takes(const Bound& bound, const at::Tensor& x, const Origin& origin);

  // Folds the tensor into the buffer `front` of `into` by a copy, if it was folded into another
  // state there and, by its version counter and by samples of its values, has not changed since.
  // Returns whether that was so.
  bool repeat(const Key& key, Bound& into, size_t front);
  // Remembers that the tensor was just folded into the buffer `front` of `bound`.
  void add(const Key& key, const std::shared_ptr<const Bound>& bound, size_t front);
  // Forgets all tensors, since states are read out or emptied.
  void clear();

  int64_t repeated = 0;  // tensors whose states were copied

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // not freed, nor taken by another tensor
    const void* data;
    c10::VariableVersion counter;
    uint32_t version;
    uint64_t samples;
    std::shared_ptr<const Mask> mask;
    Origin origin;
    std::shared_ptr<const Bound> bound;
    int64_t seen;
  };

  // As many tensors come between the input of a block of layers and a shortcut that returns it.
  static constexpr size_t kMost = 32;

  std::vector<Entry> entries_;  // a ring
  size_t next_ = 0;
};

}  // namespace hookstats::hooks
