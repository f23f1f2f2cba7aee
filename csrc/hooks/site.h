// The C++ half of a Python `Site`: the site's counts, and what it takes to accumulate a tensor like
// the last one without asking Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/update_params.h"
#include "hooks/double_buffer.h"
#include "ops/kernels.h"

namespace hookstats::hooks {

// Why tensors are left out. Python has the same texts, in hookstats/records/reasons.py, and more.
inline constexpr const char* kDisabled = "disabled";
inline constexpr const char* kRecomputation = "recomputation";
inline constexpr const char* kNoGradient = "requires no gradient";
inline constexpr const char* kLeaf = "leaf";
inline constexpr const char* kNotRecorded = "step not recorded";
inline constexpr const char* kChangedByThread = "changed by another thread";
inline constexpr const char* kStaleView = "stale view";

// The arguments of `update_` after x and channel_dim: Python's `State`, with the same names.
struct State {
  at::Tensor moments, tallies;
  std::optional<at::Tensor> counts, bins, channel_counts, channel_bins, sampling;
};

// The rows of a site in the blocks of states, of their occupancy and of calls.
struct Rows {
  int64_t channel;  // the first of `moments`, `tallies` and `channel_counts`
  int64_t tensor;   // of `counts` and their occupancy
  int64_t call;
};

// Where a site accumulates tensors of one shape, dtype and device.
struct Bound {
  const Kernels* kernels;
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes, strides;
  int channel_dim;  // or -1
  // By buffer, as all arrays.
  std::array<UpdateParams, 2> params{};
  // Owns the memory that `params` points into.
  std::array<State, 2> states;
  std::array<at::Tensor, 2> calls;
  std::optional<std::array<at::Tensor, 2>> occupancy;
  std::array<int64_t*, 2> call_counts{};  // into `calls`
  std::vector<float> tensor_edges{}, channel_edges{};
  bool masked = false;  // whether the views in `params` are of a mask

  // `clock`: of the double buffer, which tells in what order sites first ran in a step.
  void count_accumulated(size_t front, int64_t& clock) {
    int64_t* const counts = call_counts[front];
    if (counts[0]++ == 0) counts[1] = ++clock;
    if (int64_t* const occupancy_of = params[front].tensor_occupancy) ++occupancy_of[0];
  }
};

// Every method but the constructor and destructor needs the double buffer's lock, unless it says
// otherwise.
class Site {
 public:
  // `owner` is the Python Site, which this half does not keep alive. Constructor and destructor
  // need the GIL.
  Site(std::shared_ptr<DoubleBuffer> buffers, PyObject* owner);
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  int64_t observed = 0, backwards = 0, missing = 0;
  int64_t unmasked = 0;  // observed with all rows, since a mask did not fit
  std::map<std::string, int64_t> skipped;
  bool disabled = false;

  // The calls that were counted: each has one outcome, counted at once, so that an interrupt finds
  // no call half counted.
  int64_t forwards() const;
  void skip(const char* reason) { ++skipped[reason]; }
  // Counts the outcome of a call: it was accumulated, with all rows though there is a mask if
  // `whole`, or skipped for a reason.
  void count(const std::optional<std::string>& reason, bool whole) {
    ++(reason ? skipped[*reason] : observed);
    if (!reason && whole) ++unmasked;
  }
  // Counts a gradient that arrived; if it is the first of its tensor, with the outcome of the call.
  void count_gradient(bool first, const std::optional<std::string>& reason, bool whole);

  // From now on, tensors of this shape, dtype and device go into these rows of `states` (by
  // buffer), and those of `calls`, int64 [N, 2] by buffer, count them, and have when the first one
  // came, by the double buffer's clock. Python keeps tensors of devices without kernels.
  // `occupancy` has the bitmaps (core/occupancy.h) of the counts in `states`, by buffer, if there
  // are any.
  void set_plan(const at::Tensor& x, std::optional<int64_t> channel_dim,
                std::array<State, 2> states, std::array<at::Tensor, 2> calls,
                const std::optional<std::array<at::Tensor, 2>>& occupancy, const Rows& rows);

  // Python decides by the number of channels which tensors belong to the site: from now on those of
  // these sizes do, whether the site can observe them or not.
  void set_expected_sizes(std::vector<int64_t> sizes) { expected_ = std::move(sizes); }
  bool expects(const at::Tensor& x) const { return expected_ && x.sizes() == *expected_; }

  // Whether `accumulate` takes this tensor; Python accumulates all others.
  bool takes(const at::Tensor& x) const { return fits(x) && buffer_->kernels(x) != nullptr; }
  // The same, if the tensor's device has kernels now.
  bool fits(const at::Tensor& x) const { return is_plain(x) && matches(x); }
  // The same, if the tensor is plain and its device has kernels now.
  bool matches(const at::Tensor& x) const {
    return bound_ && !disabled && x.scalar_type() == bound_->dtype &&
           x.device() == bound_->device && x.sizes() == bound_->sizes;
  }
  // Whether a mask does not fit a tensor that `takes` accepted, all rows of which are read then.
  bool is_whole(const at::Tensor& x, const Mask* mask) const {
    return mask != nullptr && covered(x, mask) == 0;
  }
  // Accumulates a tensor that `takes` accepted into the open step; of its rows, those that `mask`
  // keeps, if there is one that fits. Needs no GIL.
  void accumulate(const at::Tensor& x, const Mask* mask) { accumulate(prepare(x, mask)); }
  // The same in two parts, for callers that release the GIL in between or accumulate many tensors
  // by one call. Only `prepare` reads the tensor; the caller keeps the memory of tensor and mask
  // alive.
  const UpdateParams& prepare(const at::Tensor& x, const Mask* mask = nullptr);
  void accumulate(const UpdateParams& prepared);
  void count_accumulated() {
    bound_->count_accumulated(static_cast<size_t>(buffer_->front), buffer_->clock);
  }

  // Counts a gradient that arrived and accumulates it; `first`: no other gradient arrived for its
  // tensor; `mask`: that of the call which had the tensor, or null. Call it without the lock and
  // without the GIL, which it takes only where `takes` refuses.
  void receive(const at::Tensor& gradient, bool first, const std::shared_ptr<const Mask>& mask);
  // Runs one step of the site's work; if that throws, disables the site with a warning. Returns
  // whether the work was done. With or without the GIL. Rethrows errors of the device and of
  // Python.
  template <class Work>
  bool attempt(Work work);
  // Disables the site, with a warning. With or without the GIL.
  void fail(const std::exception& error);

  DoubleBuffer& buffers() const { return *buffer_; }

  // Whether a value is a tensor by its type. An object may lie about its class, as proxies and
  // mocks do: THPVariable_Check believes it, and what unpacks the tensor then reads foreign memory.
  static bool is_tensor(PyObject* value);
  // Whether a tensor's memory holds its values: no wrapper, no lazy bit, no special layout.
  static bool is_plain(const at::Tensor& x);
  // Whether a tensor is plain except for lazy bits, so that sizes and strides describe parts of it.
  static bool is_strided(const at::Tensor& x);

 private:
  // How many dimensions of the tensor a mask covers; 0: it does not fit, or there is none.
  int covered(const at::Tensor& x, const Mask* mask) const;

  std::shared_ptr<DoubleBuffer> buffer_;
  std::optional<Bound> bound_;
  std::optional<std::vector<int64_t>> expected_;
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

// Registers the hooks on a tensor that requires grad. Backward runs them without the GIL. Under the
// double buffer's lock, as the gradient gets the mask that the double buffer has now.
//
// A view that is changed in place later is replaced in the graph, and the view's hook then gets
// part of the gradient or none. The gradient of the base has all of it, so a hook on the base takes
// over. Where the tensor has no place in the graph, there is no hook, and the result is the reason.
const char* await_gradient(const std::shared_ptr<Site>& site, const at::Tensor& x);

}  // namespace hookstats::hooks
