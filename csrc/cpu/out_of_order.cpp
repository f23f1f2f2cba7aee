// Walks the chosen units in logical order, element by element. This reads the elements once more,
// from all over the tensor.
#include "cpu/out_of_order.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/marks.h"

namespace hookstats::cpu {

namespace {

constexpr int64_t kGroupsATask = 256;

struct Place {
  int64_t size, stride, place;
};

// The dimensions of a view in logical order, slowest first.
struct Order {
  Place dims[kMaxDims + 2];
  int count = 0;
  int channel_dim = -1;  // among `dims`; -1 if there is one channel

  explicit Order(const ChannelView& view) {
    for (int d = 0; d < view.outer_dims; ++d) {
      add({view.outer[d].size, view.outer[d].stride, view.outer_place[d]});
    }
    add({view.inner.size, view.inner.stride, view.inner_place});
    const Place channels{view.channels, view.channel_stride, view.channel_place};
    add(channels);
    const auto slower = [](const Place& a, const Place& b) { return a.place > b.place; };
    std::sort(dims, dims + count, slower);
    if (channels.size == 1) return;
    const auto is_channels = [&](const Place& dim) { return dim.place == channels.place; };
    channel_dim = static_cast<int>(std::find_if(dims, dims + count, is_channels) - dims);
  }

  // Calls f(offset, channel) on each of the elements [begin, end), by their places.
  template <class F>
  void each(int64_t begin, int64_t end, F&& f) const {
    int64_t index[kMaxDims + 2], offset = 0;
    for (int d = 0; d < count; ++d) {
      index[d] = begin / dims[d].place % dims[d].size;
      offset += index[d] * dims[d].stride;
    }
    for (int64_t i = begin; i < end; ++i) {
      f(offset, channel_dim < 0 ? 0 : index[channel_dim]);
      for (int d = count - 1; d >= 0; --d) {
        offset += dims[d].stride;
        if (++index[d] < dims[d].size) break;
        offset -= dims[d].size * dims[d].stride;
        index[d] = 0;
      }
    }
  }

 private:
  void add(const Place& dim) {
    if (dim.size > 1) dims[count++] = dim;
  }
};

// Where counts go. Threads share the counts, and additions of integers commute.
struct Counts {
  const Bins& bins;
  int64_t* counts;  // [channels, bins.slots()], or [bins.slots()]
  int64_t* marks;   // of the first histogram (core/marks.h), or null
  bool by_channel;
  int64_t times;

  template <class Real>
  void add(int64_t channel, Real x) const {
    if (!std::isfinite(x)) return;
    const int64_t at = slot(bins, x);
    __atomic_fetch_add(&counts[(by_channel ? channel : 0) * bins.slots() + at], times,
                       __ATOMIC_RELAXED);
    if (marks == nullptr) return;
    const auto bit = static_cast<int64_t>(uint64_t{1} << (at / kMarkSlots % 64));
    int64_t* const word = marks + 1 + at / kWordSlots;
    if ((__atomic_load_n(word, __ATOMIC_RELAXED) & bit) == 0) {
      __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
    }
  }
};

// Which places are in rows that a mask keeps; asked for in ascending order.
class Kept {
 public:
  explicit Kept(const ChannelView& view) : view_(view), next_(view.kept) {}

  bool has(int64_t place) {
    if (view_.kept == nullptr) return true;
    const int64_t row = place / view_.row_places();
    const int64_t* const last = view_.kept + view_.kept_rows();
    next_ = std::lower_bound(next_, last, row);
    return next_ != last && *next_ == row;
  }

 private:
  const ChannelView& view_;
  const int64_t* next_;
};

struct Pass {
  const UpdateParams& params;
  const Sample& sample;
  const Counts& counts;
  const Order order;

  template <class T>
  void groups(int64_t begin, int64_t end) const {
    const auto* const data = static_cast<const T*>(params.data);
    const int64_t places = params.view.places();
    Kept kept(params.view);
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = sample.unit_of(group) * kUnit;
      int64_t place = first;
      order.each(first, std::min(first + kUnit, places), [&](int64_t offset, int64_t channel) {
        if (!kept.has(place++)) return;
        const auto value = widen(data[offset]);
        counts.add(channel, params.scale == 1.0f ? value : value / params.scale);
      });
    }
  }
};

void count(const UpdateParams& params, const Sample& sample, const Counts& counts,
           ParallelFor parallel_for) {
  if (counts.bins.kind == BinKind::kNone) return;
  Pass pass{params, sample, counts, Order(params.view)};
  const auto run = [](int64_t begin, int64_t end, void* context) {
    const Pass& p = *static_cast<const Pass*>(context);
    dispatch(p.params.dtype, [&](auto* type) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
      p.template groups<T>(begin * kGroupsATask, std::min(end * kGroupsATask, p.sample.groups()));
    });
  };
  const int64_t tasks = (sample.groups() + kGroupsATask - 1) / kGroupsATask;
  if (tasks == 1) return run(0, 1, &pass);
  parallel_for(tasks, run, &pass);
}

}  // namespace

void count_tensor(const UpdateParams& params, const Sample& sample, ParallelFor parallel_for) {
  const Counts counts{params.tensor_bins, params.tensor_counts, params.tensor_marks, false,
                      params.view.repeat};
  count(params, sample, counts, parallel_for);
}

void count_channels(const UpdateParams& params, const Sample& sample, ParallelFor parallel_for) {
  const Counts counts{params.channel_bins, params.channel_counts, nullptr, true,
                      params.view.repeat};
  count(params, sample, counts, parallel_for);
}

}  // namespace hookstats::cpu
