// What sampled histograms count: the blocks that core/sample.h chooses, a quarter of one (a unit)
// by the threads side by side. They are read once more, so the loops that read all elements know
// nothing of them; if the tensor is large, they are few.
#pragma once

#include "core/sample.h"
#include "cuda/counting.cuh"
#include "cuda/kept.cuh"
#include "cuda/source.cuh"

namespace hookstats::cuda {

// What a histogram counts of an item; everything without a sampling.
HOOKSTATS_DEVICE Sample sample_of(const Common& common, const Item& item, SamplingColumn every) {
  if (common.sampling == nullptr) return {};
  return make_sample(load(common.sampling + every), load(common.sampling + kStep), item.elements());
}

constexpr int64_t kUnit = 16;  // elements
constexpr int64_t kUnits = kSampleBlock / kUnit;

// How many units a sample has, and the i-th of them.
HOOKSTATS_DEVICE int64_t units_of(const Sample& sample) { return sample.groups() * kUnits; }
HOOKSTATS_DEVICE int64_t unit_of(const Sample& sample, int64_t i) {
  return sample.block_of(i / kUnits) * kUnits + i % kUnits;
}

// The histogram as those see it who read all elements: off, if a sample of them is counted.
HOOKSTATS_DEVICE Histogram of_all(const Histogram& histogram, const Sample& sample) {
  Histogram h = histogram;
  if (!sample.all()) {
    h.table = nullptr;
    h.way = Way::kNone;
  }
  return h;
}

template <class Source>
class Chosen {
  using Real = typename Source::Real;

 public:
  HOOKSTATS_DEVICE Chosen(const Common& common, const Item& item, const Dim* placed)
      : common_(common), item_(item), placed_(placed), scale_(common) {}

  // Counts the block's share of the tensor's sample.
  HOOKSTATS_DEVICE void count_tensor(const Histogram& h, const Sample& sample) const {
    if (!h.on() || sample.all()) return;
    if constexpr (kVectors) {
      if (in_vectors(h)) return count_vectors(h, sample);
    }
    const int32_t copy[] = {lane() & (h.pitch - 1)};
    int64_t* const state = item_.tensor_counts;
    each(sample, [&](int64_t, const Real(&x)[1]) {
      if (h.patterns() && x[0] == 0) add_shared(h.unread + 1, 1);
      count_any(h, x, item_.repeat, copy, [=](int) { return state; });
    });
  }

  // Whether the block's share of the tensor's sample has something, or all elements are counted.
  HOOKSTATS_DEVICE bool has_share(const Histogram& h, const Sample& sample) const {
    const int64_t together = in_vectors(h) ? int64_t{kBlock} * kUnitsOfThread : kSideBySide;
    return sample.all() || (block_index() - item_.first_block) * together < units_of(sample);
  }

  // The same of the channels' sample. Neighbouring units may be of any channels, whose tables would
  // have no room, so they are counted in the state.
  HOOKSTATS_DEVICE void count_channels(const Histogram& h, const Sample& sample) const {
    if (!h.on() || sample.all()) return;
    each(sample, [&](int64_t place, const Real(&x)[1]) {
      if (!is_finite(x[0])) return;
      const int64_t channel = place / item_.channel_place % item_.channels;
      int64_t* const state = item_.channel_counts + channel * h.bins.slots();
      add_global(state + slot_of_any(h.bins, h.edges == nullptr, x[0]), item_.repeat);
    });
  }

 private:
  static constexpr bool kVectors = Source::kVectors && !Source::kMasked;
  // Units that a thread chooses at a time, of vectors that as many threads read.
  static constexpr int kUnitsOfThread =
      kItemsPerThread * Source::kElements / static_cast<int>(kUnit);

  HOOKSTATS_DEVICE bool in_vectors(const Histogram& h) const {
    return kVectors && item_.placed_dims == 0 && h.way != Way::kAny &&
           reinterpret_cast<uintptr_t>(item_.data) % 16 == 0;
  }

  // Of a tensor whose positions are offsets, in vectors: a thread
  // chooses some neighbouring units, of each of which it reads one vector, as its neighbours do.
  HOOKSTATS_DEVICE void count_vectors(const Histogram& h, const Sample& sample) const {
    constexpr int kElements = Source::kElements, kOfUnit = kItemsPerThread / kUnitsOfThread;
    using Values = typename Source::template Values<kElements>;
    const int64_t units = units_of(sample), elements = item_.elements();
    const int64_t step = int64_t{item_.blocks} * kBlock * kUnitsOfThread;
    const int64_t block = block_index() - item_.first_block;
    const int32_t copy[] = {lane() & (h.pitch - 1)};
    const int own = lane() % kOfUnit;
    uint32_t all_zeros = 0;
    HOOKSTATS_NO_UNROLL
    for (int64_t of_warp = (block * kBlock + warp() * kWarp) * kUnitsOfThread; of_warp < units;
         of_warp += step) {
      const int64_t first = of_warp + lane() * kUnitsOfThread;
      Values values[kItemsPerThread];
      HOOKSTATS_UNROLL
      for (int u = 0; u < kUnitsOfThread; ++u) {
        const int64_t unit = first + u < units ? unit_of(sample, first + u) : elements / kUnit + 1;
        HOOKSTATS_UNROLL
        for (int v = 0; v < kOfUnit; ++v) {
          const int64_t place = shuffle_from(unit, lane() - own + v) * kUnit + own * kElements;
          const int64_t left = elements - place;
          const int exist = left < 0 ? 0 : left < kElements ? static_cast<int>(left) : kElements;
          const uintptr_t at = reinterpret_cast<uintptr_t>(item_.data) +
                               static_cast<uintptr_t>(place * Source::element_size(common_));
          values[u * kOfUnit + v] = Source::read_part(at, (1u << exist) - 1, exist == kElements);
        }
      }
      Real x[kItemsPerThread * kElements];
      typename Source::template Zeros<1> zeros;
      Source::scale_in_place(scale_, values);
      Source::widen_tile(scale_, values, x, zeros);
      all_zeros += zeros.all();
      count_quickly<false, true>(h, x, copy);
    }
    if (h.patterns()) add_shared(h.unread + 1, all_zeros);
  }

  static constexpr int kTogether = 4;                                   // units of a thread
  static constexpr int kSideBySide = kBlock / static_cast<int>(kUnit);  // units of a block

  // Calls f(place, x) on the elements of this thread: one of each of its units. Of units that end
  // beyond the tensor, the elements that do not exist are NaN, as are those that a mask leaves out.
  template <class F>
  HOOKSTATS_DEVICE void each(const Sample& sample, F&& f) const {
    const int64_t units = units_of(sample), elements = item_.elements();
    const int64_t step = int64_t{item_.blocks} * kSideBySide;
    const int64_t block = block_index() - item_.first_block;
    HOOKSTATS_NO_UNROLL
    for (int64_t group = block * kSideBySide + thread_index() / kUnit; group < units;
         group += kTogether * step) {
      int64_t places[kTogether];
      typename Source::Bits bits[kTogether];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int64_t at = group + i * step;
        places[i] = elements;
        if (at < units) places[i] = unit_of(sample, at) * kUnit + thread_index() % kUnit;
        bits[i] = 0;
        if constexpr (Source::kMasked) {  // places are those of all rows
          if (places[i] < elements && !keeps_place(places[i])) places[i] = elements;
        }
        if (places[i] < elements) bits[i] = Source::bits_at(common_, address_of(places[i]));
      }
      HOOKSTATS_NO_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int64_t place = pick(places, i);
        const Real x[1] = {place < elements ? Source::widen_one(common_, scale_, pick(bits, i))
                                            : kNaN<Real>};
        f(place, x);
      }
    }
  }

  HOOKSTATS_DEVICE bool keeps_place(int64_t place) const {
    return load(common_.rows.flags + place / common_.rows.row_places) != 0;
  }

  HOOKSTATS_DEVICE uintptr_t address_of(int64_t place) const {
    int64_t offset = item_.placed_dims == 0 ? place : 0;
    HOOKSTATS_NO_UNROLL
    for (int d = 0; d < item_.placed_dims; ++d) {
      const int64_t size = placed_[d].size, row = place / size;
      offset += (place - row * size) * placed_[d].stride;
      place = row;
    }
    return reinterpret_cast<uintptr_t>(item_.data) +
           static_cast<uintptr_t>(offset * Source::element_size(common_));
  }

  const Common& common_;
  const Item& item_;
  const Dim* placed_;
  Scale scale_;
};

}  // namespace hookstats::cuda
