// What sampled histograms count: the blocks of elements that core/sample.h chooses. They are read
// once more, so the loops that read all elements know nothing of them; if the tensor is large, they
// are few.
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
class Sampled {
  using Real = typename Source::Real;

 public:
  HOOKSTATS_DEVICE Sampled(const Common& common, const Item& item, const Dim* outer)
      : common_(common), item_(item), outer_(outer), scale_(common) {}

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
    const int64_t together = in_vectors(h) ? kVectorsSideBySide * kItemsPerThread : kSideBySide;
    return sample.all() || (block_index() - item_.first_block) * together < sample.groups();
  }

  // The same of the channels' sample. Neighbouring blocks of elements may be of any channels, whose
  // tables would have no room, so they are counted in the state.
  HOOKSTATS_DEVICE void count_channels(const Histogram& h, const Sample& sample) const {
    if (!h.on() || sample.all()) return;
    each(sample, [&](int64_t position, const Real(&x)[1]) {
      if (!is_finite(x[0])) return;
      const int64_t channel = position / item_.inner_size % item_.channels;
      int64_t* const state = item_.channel_counts + channel * h.bins.slots();
      add_global(state + slot_of_any(h.bins, h.edges == nullptr, x[0]), item_.repeat);
    });
  }

 private:
  static constexpr bool kVectors = Source::kVectors && !Source::kMasked;
  // Threads that read a block of elements, in vectors or one each; and how many blocks of elements
  // the threads read side by side.
  static constexpr int kReaders = static_cast<int>(kSampleBlock) / Source::kElements;
  static constexpr int64_t kVectorsSideBySide = kBlock / kReaders;
  static constexpr int64_t kSideBySide = kBlock / kSampleBlock;

  HOOKSTATS_DEVICE bool in_vectors(const Histogram& h) const {
    return kVectors && item_.dense && h.way != Way::kAny &&
           reinterpret_cast<uintptr_t>(item_.data) % 16 == 0;
  }

  HOOKSTATS_DEVICE void count_vectors(const Histogram& h, const Sample& sample) const {
    constexpr int kElements = Source::kElements;
    const int64_t groups = sample.groups(), elements = item_.elements();
    const int64_t together = kVectorsSideBySide * kItemsPerThread;
    const int64_t block = block_index() - item_.first_block;
    const int32_t copy[] = {lane() & (h.pitch - 1)};
    uint32_t all_zeros = 0;
    HOOKSTATS_NO_UNROLL
    for (int64_t first = block * together; first < groups; first += item_.blocks * together) {
      typename Source::template Values<kElements> values[kItemsPerThread];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kItemsPerThread; ++i) {
        const int64_t group = first + i * kVectorsSideBySide + thread_index() / kReaders;
        const int64_t position =
            position_in(sample, group, elements) + thread_index() % kReaders * kElements;
        const int64_t left = elements - position;
        const int exist = left < 0 ? 0 : left < kElements ? static_cast<int>(left) : kElements;
        const uintptr_t at = reinterpret_cast<uintptr_t>(item_.data) +
                             static_cast<uintptr_t>(position * Source::element_size(common_));
        values[i] = Source::read_part(at, (1u << exist) - 1, exist == kElements);
      }
      Real x[kItemsPerThread * kElements];
      typename Source::template Tallies<1> tallies;
      Source::scale_in_place(scale_, values);
      Source::widen_tile(scale_, values, x, tallies);
      all_zeros += tallies.all();
      count_quickly<false, true>(h, x, copy);
    }
    if (h.patterns()) add_shared(h.unread + 1, all_zeros);
  }

  // Calls f(position, x) on the elements of this thread: one of each of its blocks of elements.
  // Elements beyond the tensor are NaN, as are those that a mask leaves out.
  template <class F>
  HOOKSTATS_DEVICE void each(const Sample& sample, F&& f) const {
    constexpr int kTogether = 4;  // reads under way
    const int64_t groups = sample.groups(), elements = item_.elements();
    const int64_t step = item_.blocks * kSideBySide;
    const int64_t block = block_index() - item_.first_block;
    const auto own = thread_index() % kSampleBlock;
    HOOKSTATS_NO_UNROLL
    for (int64_t group = block * kSideBySide + thread_index() / kSampleBlock; group < groups;
         group += kTogether * step) {
      int64_t positions[kTogether];
      typename Source::Bits bits[kTogether];
      HOOKSTATS_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        positions[i] = position_in(sample, group + i * step, elements) + own;
        bits[i] = 0;
        if constexpr (Source::kMasked) {  // positions are those of all rows
          if (positions[i] < elements && !keeps(positions[i])) positions[i] = elements;
        }
        if (positions[i] < elements) bits[i] = Source::bits_at(common_, address_of(positions[i]));
      }
      HOOKSTATS_NO_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int64_t position = pick(positions, i);
        const Real x[1] = {position < elements ? Source::widen_one(common_, scale_, pick(bits, i))
                                               : kNaN<Real>};
        f(position, x);
      }
    }
  }

  // Of the first element that is counted of a group; the end of the tensor if there is no such
  // group.
  static HOOKSTATS_DEVICE int64_t position_in(const Sample& sample, int64_t group,
                                              int64_t elements) {
    return group < sample.groups() ? sample.block_of(group) * kSampleBlock : elements;
  }

  HOOKSTATS_DEVICE bool keeps(int64_t position) const {
    return load(common_.rows.flags + position / common_.rows.row_positions) != 0;
  }

  HOOKSTATS_DEVICE uintptr_t address_of(int64_t position) const {
    int64_t offset = position;
    if (!item_.dense) {
      const int64_t row = position / item_.inner_size, outer = row / item_.channels;
      offset = (position - row * item_.inner_size) * item_.inner_stride +
               (row - outer * item_.channels) * item_.channel_stride +
               offset_of_many(outer_, item_.outer_dims, outer);
    }
    return reinterpret_cast<uintptr_t>(item_.data) +
           static_cast<uintptr_t>(offset * Source::element_size(common_));
  }

  const Common& common_;
  const Item& item_;
  const Dim* outer_;
  Scale scale_;
};

}  // namespace hookstats::cuda
