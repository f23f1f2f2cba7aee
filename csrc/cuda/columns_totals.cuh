// What the tiles of a thread add up to, in the block's scratch memory: local memory would be
// written through to the device's, as often as there are tiles.
#pragma once

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
  using Tallies = typename Source::template Tallies<kWords>;
  static constexpr int kSums = 3 * kOwned;  // of x - shift, of its square, of |x|
  // Rows of words: tallies, how many are finite, least and greatest.
  static constexpr int kFinite = kValueTallies * kOwned, kLeast = kFinite + kOwned,
                       kGreatest = kLeast + kWords;
  static constexpr int kRows = kGreatest + kWords;
  static constexpr int kBytes = kBlock * (kSums * 8 + kRows * 4);
  static_assert(kBytes <= kTotalsBytes);

 public:
  HOOKSTATS_DEVICE explicit WholeTotals(void* scratch)
      : sums_(static_cast<double*>(scratch) + thread_index()),
        words_(reinterpret_cast<uint32_t*>(static_cast<double*>(scratch) + kSums * kBlock) +
               thread_index()) {}

  // All threads of the block call it, and meet before they add anything.
  HOOKSTATS_DEVICE void begin() {
    const Extremes none;
    HOOKSTATS_UNROLL
    for (int i = 0; i < kSums; ++i) sums_[i * kBlock] = 0;
    HOOKSTATS_UNROLL
    for (int w = 0; w < kLeast; ++w) words_[w * kBlock] = 0;
    HOOKSTATS_UNROLL
    for (int w = 0; w < kWords; ++w) {
      words_[(kLeast + w) * kBlock] = none.least[w];
      words_[(kGreatest + w) * kBlock] = none.greatest[w];
    }
    for (int i = thread_index(); i < kMostTallied; i += block_threads()) {
      infinities(i)[0] = infinities(i)[1] = 0;
    }
  }

  // Adds `rows` rows, about the same shift; see `leave_out`.
  HOOKSTATS_DEVICE void add(const TileSums (&tiles)[kOwned], const Tallies& tallies,
                            const Extremes& extremes, uint32_t rows) {
    HOOKSTATS_UNROLL
    for (int c = 0; c < kOwned; ++c) {
      sums_[3 * c * kBlock] += static_cast<double>(tiles[c].s1);
      sums_[(3 * c + 1) * kBlock] += static_cast<double>(tiles[c].s2);
      sums_[(3 * c + 2) * kBlock] += static_cast<double>(tiles[c].l1);
      HOOKSTATS_UNROLL
      for (int t = 0; t < kValueTallies; ++t) {
        words_[(t * kOwned + c) * kBlock] += tallies.of(t, c);
      }
      words_[(kFinite + c) * kBlock] += rows;
    }
    HOOKSTATS_UNROLL
    for (int w = 0; w < kWords; ++w) {
      uint32_t& least = words_[(kLeast + w) * kBlock];
      uint32_t& greatest = words_[(kGreatest + w) * kBlock];
      least = least_word<Element>(least, extremes.least[w]);
      greatest = greatest_word<Element>(greatest, extremes.greatest[w]);
    }
  }

  // Of the rows of channel `c`, so many are not finite.
  HOOKSTATS_DEVICE void leave_out(int c, uint32_t rows) { words_[(kFinite + c) * kBlock] -= rows; }

  // Infinities, in the block's `place`: all threads with elements of one channel have the same.
  HOOKSTATS_DEVICE void add_infinities(int place, uint32_t positive, uint32_t negative) const {
    add_shared(infinities(place), positive);
    add_shared(infinities(place) + 1, negative);
  }
  HOOKSTATS_DEVICE void put_infinities(int place, Channel& seen) const {
    seen.posinf = infinities(place)[0];
    seen.neginf = infinities(place)[1];
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
    for (int w = row; w < kRows; w += down) {
      uint32_t all = words[w * kBlock];
      for (int r = 1; r < down; ++r) {
        const uint32_t each = words[w * kBlock + r * across];
        if (w < kLeast) {
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
    HOOKSTATS_UNROLL
    for (int t = 0; t < kValueTallies; ++t) totals.tallied[t] = words[(t * kOwned + c) * kBlock];
    totals.wide_finite = words[(kFinite + c) * kBlock];
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) {
      if (i == c) all.put(scale, i, totals.least, totals.greatest);
    }
    return totals;
  }

 private:
  HOOKSTATS_DEVICE uint32_t* infinities(int place) const {
    char* const scratch = reinterpret_cast<char*>(sums_ - thread_index());
    return reinterpret_cast<uint32_t*>(scratch + kTotalsBytes) + 2 * place;
  }

  double* sums_;
  uint32_t* words_;
};

}  // namespace hookstats::cuda
