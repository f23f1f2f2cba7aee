// The native half of a Python `Site`: its counts, and its state where a tensor like the last one
// can be folded in without asking Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/update_params.h"
#include "hooks/arena.h"
#include "ops/kernels.h"

namespace hookstats::hooks {

// The arguments of `update_` after x and channel_dim, as Python's arena holds them.
struct State {
  at::Tensor moments, tallies;
  std::optional<at::Tensor> counts, bins, channel_counts, channel_bins;
};

// All but the constructor and destructor: under the arena's lock.
class Site {
 public:
  // `owner` is the Python Site, which is not kept alive. Both need the GIL.
  Site(std::shared_ptr<Arena> arena, PyObject* owner);
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  int64_t forwards = 0, observed = 0, backwards = 0, missing = 0;
  std::map<std::string, int64_t> skipped;
  bool disabled = false;

  void skip(const char* reason) { ++skipped[reason]; }

  // From now on tensors of this shape, dtype and device go into `states` (by buffer), and are
  // counted in `calls`, int64 [1] by buffer. Those of devices without kernels stay with Python.
  // `marks` are the rows of marks (core/marks.h) of `states`' counts, by buffer, if there are any.
  void bind(const at::Tensor& x, std::optional<int64_t> channel_dim, std::array<State, 2> states,
            std::array<at::Tensor, 2> calls, const std::optional<std::array<at::Tensor, 2>>& marks);

  // Whether `fold` takes this tensor; others are Python's.
  bool takes(const at::Tensor& x) const { return fits(x) && arena_->kernels(x) != nullptr; }
  // Whether it does where its device has kernels now.
  bool fits(const at::Tensor& x) const { return is_plain(x) && matches(x); }
  // Whether it does of a plain tensor.
  bool matches(const at::Tensor& x) const {
    return bound_ && !disabled && x.scalar_type() == bound_->dtype &&
           x.device() == bound_->device && x.sizes() == bound_->sizes;
  }
  // Folds a tensor that `takes` said yes to into the open step. Needs no GIL.
  void fold(const at::Tensor& x) { fold(aim(x)); }
  // The same in parts, for whoever gives up the GIL between them or folds many by one call: `aim`
  // alone reads the tensor, whose memory the caller keeps.
  const UpdateParams& aim(const at::Tensor& x);
  void fold(const UpdateParams& aimed);
  void count_fold() {
    const auto front = static_cast<size_t>(arena_->front);
    ++*bound_->call_counts[front];
    if (int64_t* const marks = bound_->params[front].tensor_marks) ++marks[0];
  }

  // Counts a gradient that came and folds it in, `first` of its tensor or not. Without the GIL,
  // which is taken only where `takes` says no. Not under the lock.
  void receive(const at::Tensor& gradient, bool first);
  // Counts the gradient of a view's base, of which the view's part cannot be taken.
  void refuse(const at::Tensor& gradient, bool first);
  // Runs a step of the site's work, and disables the site, with a warning, where that throws:
  // whether it did not. With or without the GIL. What is not ours to catch is thrown on.
  template <class Work>
  bool attempt(Work work);
  // Disables the site, with a warning. With or without the GIL.
  void fail(const std::exception& error);

  Arena& arena() const { return *arena_; }

  // Whether a tensor has plain memory with its values: no wrapper, lazy bit or special layout.
  static bool is_plain(const at::Tensor& x);
  // Whether it is plain but for lazy bits, so that parts of it can be told by sizes and strides.
  static bool is_strided(const at::Tensor& x);

 private:
  struct Bound {
    const Kernels* kernels;
    at::ScalarType dtype;
    at::Device device;
    std::vector<int64_t> sizes, strides;
    int channel_dim;  // or -1
    std::array<UpdateParams, 2> params;
    // What the pointers in `params` point into.
    std::array<State, 2> states;
    std::array<at::Tensor, 2> calls;
    std::optional<std::array<at::Tensor, 2>> marks;
    std::array<int64_t*, 2> call_counts;
    std::vector<float> tensor_edges, channel_edges;
  };

  void hand_to_owner(const char* method, const at::Tensor& gradient, bool first);

  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Bound> bound_;
  PyObject* owner_;  // a weak reference
};

template <class Work>
bool Site::attempt(Work work) {
  try {
    work();
    return true;
  } catch (const c10::AcceleratorError&) {
    throw;  // the device is lost
  } catch (const python_error&) {
    throw;
  } catch (const std::exception& error) {
    fail(error);
    return false;
  }
}

}  // namespace hookstats::hooks
