// What the whole tiles of a thread add up to, in the block's scratch memory: local memory would be
// written through to the device's, as often as there are tiles.
#pragma once

#include <new>

#include "cuda/source.cuh"
#include "cuda/sums.cuh"

namespace hookstats::cuda {

// Of kOwned neighbouring channels. Each number has a row of kBlock places, one for each thread, so
// that neighbouring threads have neighbouring banks.
template <class Source>
class WholeTotals {
  using Element = typename Source::Element;
  static constexpr int kWords = sizeof(typename Source::template Values<kOwned>) / 4;
  using Extremes = typename Source::template Extremes<kWords>;
  using Zeros = typename Source::template Zeros<kWords>;
  static constexpr int kSums = 3 * kOwned;  // of x - shift, of its square, of |x|
  // Rows of words: zeros, least and greatest, and how many rows there are.
  static constexpr int kLeast = kOwned, kGreatest = kLeast + kWords, kRows = kGreatest + kWords;

 public:
  static constexpr int kBytes = kBlock * (kSums * 8 + (kRows + 1) * 4);
  static_assert(kBytes <= kTotalsBytes);

  HOOKSTATS_DEVICE explicit WholeTotals(void* scratch)
      : sums_(static_cast<double*>(scratch) + thread_index()),
        words_(reinterpret_cast<uint32_t*>(static_cast<double*>(scratch) + kSums * kBlock) +
               thread_index()) {}

  HOOKSTATS_DEVICE void begin() {
    const Extremes none;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kSums; ++i) sums_[i * kBlock] = 0;
    HOOKSTATS_UNROLL
    for (int w = 0; w <= kRows; ++w) words_[w * kBlock] = 0;
    HOOKSTATS_UNROLL
    for (int w = 0; w < kWords; ++w) {
      words_[(kLeast + w) * kBlock] = none.least[w];
      words_[(kGreatest + w) * kBlock] = none.greatest[w];
    }
  }

  // Adds `rows` rows, about the same shift.
  HOOKSTATS_DEVICE void add(const TileSums (&tiles)[kOwned], const Zeros& zeros,
                            const Extremes& extremes, uint32_t rows) {
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      sums_[3 * c * kBlock] += static_cast<double>(tiles[c].s1);
      sums_[(3 * c + 1) * kBlock] += static_cast<double>(tiles[c].s2);
      sums_[(3 * c + 2) * kBlock] += static_cast<double>(tiles[c].l1);
      words_[c * kBlock] += zeros.of(c);
    }
    HOOKSTATS_UNROLL
    for (int w = 0; w < kWords; ++w) {
      uint32_t& least = words_[(kLeast + w) * kBlock];
      uint32_t& greatest = words_[(kGreatest + w) * kBlock];
      least = least_word<Element>(least, extremes.least[w]);
      greatest = greatest_word<Element>(greatest, extremes.greatest[w]);
    }
    words_[kRows * kBlock] += rows;
  }

  // Adds up what `down` threads have of each column, `across` places from one to the next, and
  // leaves it where the first of them had its own. Each of these threads calls it.
  HOOKSTATS_DEVICE void add_up(int row, int column, int across, int down) {
    double* const sums = sums_ - thread_index() + column;
    uint32_t* const words = words_ - thread_index() + column;
    for (int i = row; i < kSums; i += down) {
      double all = 0;
      for (int r = 0; r < down; ++r) all += sums[i * kBlock + r * across];
      sums[i * kBlock] = all;
    }
    for (int w = row; w <= kRows; w += down) {
      uint32_t all = words[w * kBlock];
      for (int r = 1; r < down; ++r) {
        const uint32_t each = words[w * kBlock + r * across];
        if (w < kLeast || w == kRows) {
          all += each;
        } else {
          all = w < kGreatest ? least_word<Element>(all, each) : greatest_word<Element>(all, each);
        }
      }
      words[w * kBlock] = all;
    }
  }

  // Of channel `c` of the thread `thread`, by its factor.
  HOOKSTATS_DEVICE Totals<float> of(const Scale& scale, int thread, int c) const {
    const double* const sums = sums_ - thread_index() + thread;
    const uint32_t* const words = words_ - thread_index() + thread;
    Extremes all;
    HOOKSTATS_UNROLL
    for (int w = 0; w < kWords; ++w) {
      all.least[w] = words[(kLeast + w) * kBlock];
      all.greatest[w] = words[(kGreatest + w) * kBlock];
    }
    Totals<float> totals;
    totals.wide_s1 = sums[3 * c * kBlock];
    totals.wide_s2 = sums[(3 * c + 1) * kBlock];
    totals.wide_l1 = sums[(3 * c + 2) * kBlock];
    totals.wide_zero = words[c * kBlock];
    totals.wide_finite = words[kRows * kBlock];
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) {
      if (i == c) all.put(scale, i, totals.least, totals.greatest);
    }
    return totals;
  }

 private:
  double* sums_;
  uint32_t* words_;
};

// What a thread has of tiles that are not summed as whole ones, made where the first one is met:
// most threads meet none, and would only write zeros to memory.
class OtherTotals {
 public:
  HOOKSTATS_DEVICE OtherTotals() { keep_in_memory(bytes_); }

  HOOKSTATS_DEVICE void add(const Sums<float> (&tiles)[kOwned]) {
    if (!made_) new (bytes_) All;
    made_ = true;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      all().sums[c].add_sums(tiles[c]);
      all().sums[c].add_others(tiles[c]);
    }
  }

  HOOKSTATS_DEVICE bool any() const { return made_; }

  HOOKSTATS_DEVICE void add_to(Totals<float> (&totals)[kOwned]) {
    if (!made_) return;
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) totals[c].add(all().sums[c]);
  }

 private:
  struct All {
    Totals<float> sums[kOwned];
  };
  HOOKSTATS_DEVICE All& all() { return *reinterpret_cast<All*>(bytes_); }

  alignas(All) char bytes_[sizeof(All)];
  bool made_ = false;
};

}  // namespace hookstats::cuda
