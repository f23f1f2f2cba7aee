// Recent: recognises tensors that come again, and copies their states.
#include "hooks/recent.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/copy_state.h"

namespace hookstats::hooks {

namespace {

// Tensors below this many elements are read in less time than it takes to be sure of them.
constexpr int64_t kLeastElements = 1 << 14;

constexpr int64_t kMostElements = INT32_MAX;  // by how `hash_of_some` finds them

// Up to this many bytes per element, a state is copied faster than the tensor is read.
constexpr int64_t kMostRowBytes = 2;

// A hash of 64 elements all over a dense tensor: a change that version counters do not tell, as by
// `x.data`, shows in it unless only few elements changed.
uint64_t hash_of_some(const at::Tensor& x) {
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

}  // namespace

bool Recent::takes(const Bound& bound, const at::Tensor& x, const Origin& origin) {
  if (x.numel() < kLeastElements || x.numel() > kMostElements) return false;
  // Autograd has to know of each change of a tensor that it computes gradients with.
  const bool versioned = !x.is_inference() && (origin.node != nullptr || x.requires_grad());
  return versioned && bound.device.is_cpu() && x.is_non_overlapping_and_dense() &&
         row_bytes(bound.params[0], bound.channels()) <= kMostRowBytes * x.numel();
}

Recent::Entry Recent::describe(const at::Tensor& x, const std::shared_ptr<const Mask>& mask,
                               const Origin& origin, const std::shared_ptr<const Bound>& bound,
                               size_t front) {
  const c10::VariableVersion& counter = x.unsafeGetTensorImpl()->version_counter();
  std::array<int64_t, kSamplingColumns> sampling{};
  const int64_t* const rates = bound->params[front].sampling;
  if (rates != nullptr) std::copy_n(rates, kSamplingColumns, sampling.begin());
  return {x.storage().getWeakStorageImpl(),
          x.const_data_ptr(),
          counter,
          counter.current_version(),
          hash_of_some(x),
          mask,
          origin,
          sampling,
          bound->seen(front) == 0,
          bound,
          0};
}

bool Recent::repeat(const Entry& tensor, at::IntArrayRef strides, Bound& into, size_t front) {
  for (const Entry& entry : entries_) {
    if (entry.storage._unsafe_get_target() != tensor.storage._unsafe_get_target()) continue;
    const Bound& from = *entry.bound;
    const bool same = entry.data == tensor.data && entry.version == tensor.version &&
                      entry.counter.current_version() == tensor.version &&
                      entry.mask == tensor.mask && entry.origin == tensor.origin &&
                      entry.sampling == tensor.sampling && from.dtype == into.dtype &&
                      from.channel_dim == into.channel_dim && from.sizes == into.sizes &&
                      strides == from.strides;
    if (!same || from.seen(front) != entry.seen) continue;
    if (!tensor.first || entry.hash != tensor.hash) return false;
    copy_state(from.params[front], into.params[front], into.channels());
    into.count_fold(front);
    ++repeated;
    return true;
  }
  return false;
}

void Recent::add(Entry tensor, size_t front) {
  // What changed while it was read is not what will come again.
  if (!tensor.first || tensor.counter.current_version() != tensor.version) return;
  tensor.seen = tensor.bound->seen(front);
  if (entries_.size() < kMost) {
    entries_.push_back(std::move(tensor));
  } else {
    entries_[next_] = std::move(tensor);
    next_ = (next_ + 1) % kMost;
  }
}

void Recent::clear() {
  entries_.clear();
  next_ = 0;
}

}  // namespace hookstats::hooks
