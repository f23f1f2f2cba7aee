// Recent: recognises tensors that come again, and copies their states.
#include "hooks/recent.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/copy_state.h"

namespace hookstats::hooks {

namespace {

// Tensors below this many elements are read in less time than it takes to be sure of them.
constexpr int64_t kLeastElements = 1 << 14;

constexpr int64_t kMostElements = INT32_MAX;  // by how `samples_of` finds them

// Up to so many bytes an element, a state is copied faster than the tensor is read.
constexpr int64_t kMostRowBytes = 2;

// A hash of 64 elements all over a dense tensor: a change that version counters do not tell, as by
// `x.data`, shows in it unless only few elements changed.
uint64_t samples_of(const at::Tensor& x) {
  constexpr int kSamples = 64;
  const auto* const bytes = static_cast<const char*>(x.const_data_ptr());
  const size_t size = x.element_size();
  const auto elements = static_cast<uint64_t>(x.numel());
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio: spread evenly
  uint64_t at = 0, hash = 0;
  for (int i = 0; i < kSamples; ++i, at += kGolden) {
    const uint64_t index = ((at >> 32) * elements) >> 32;
    uint64_t value = 0;
    std::memcpy(&value, bytes + index * size, size);
    hash = (hash ^ value) * kGolden;
    hash ^= hash >> 29;
  }
  return hash;
}

uint32_t version_of(const at::Tensor& x) {
  return x.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

bool Recent::takes(const Bound& bound, const at::Tensor& x, const Origin& origin) {
  if (x.numel() < kLeastElements || x.numel() > kMostElements) return false;
  // Without a gradient to compute, nobody needs to count a change in place.
  const bool versioned = !x.is_inference() && (origin.node != nullptr || x.requires_grad());
  return versioned && bound.device.is_cpu() && x.is_non_overlapping_and_dense() &&
         row_bytes(bound.params[0], bound.channels()) <= kMostRowBytes * x.numel();
}

bool Recent::repeat(const Key& key, Bound& into, size_t front) {
  const at::Tensor& x = key.x;
  const uint32_t version = version_of(x);
  for (const Entry& entry : entries_) {
    if (entry.memory._unsafe_get_target() != x.storage().unsafeGetStorageImpl()) continue;
    const Bound& from = *entry.bound;
    const bool same = entry.data == x.const_data_ptr() && entry.version == version &&
                      entry.counter.current_version() == version && entry.mask == key.mask &&
                      entry.origin == key.origin && from.dtype == into.dtype &&
                      from.channel_dim == into.channel_dim && from.sizes == into.sizes &&
                      x.strides() == from.strides;
    if (!same || *from.call_counts[front] != 1 || from.seen(front) != entry.seen) continue;
    if (*into.call_counts[front] != 0 || into.seen(front) != 0) return false;
    if (entry.samples != samples_of(x)) return false;
    copy_state(from.params[front], into.params[front], into.channels());
    into.count_fold(front);
    ++repeated;
    return true;
  }
  return false;
}

void Recent::add(const Key& key, const std::shared_ptr<const Bound>& bound, size_t front) {
  if (*bound->call_counts[front] != 1) return;
  const at::Tensor& x = key.x;
  Entry entry{x.storage().getWeakStorageImpl(),
              x.const_data_ptr(),
              x.unsafeGetTensorImpl()->version_counter(),
              version_of(x),
              samples_of(x),
              key.mask,
              key.origin,
              bound,
              bound->seen(front)};
  if (entries_.size() < kMost) {
    entries_.push_back(std::move(entry));
  } else {
    entries_[next_] = std::move(entry);
    next_ = (next_ + 1) % kMost;
  }
}

void Recent::clear() {
  entries_.clear();
  next_ = 0;
}

}  // namespace hookstats::hooks
