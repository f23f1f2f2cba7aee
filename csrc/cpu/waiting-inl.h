// What a sample counts while sums are added.

// GCC would make two loops of one that adds to sums and increments counters.
HOOKSTATS_INLINE void keep_together() { __asm__ volatile(""); }

// Counters that are found, and not yet incremented. A processor increments one per cycle, and sums
// wait for arithmetic and memory: between the additions of vectors, increments take a quarter of
// their time.
class Waiting {
 public:
  static constexpr int64_t kRoom = 2048;
  static constexpr int64_t kPerVector = 2;  // all, if a sample is of 1/8

  // What loops use while they add vectors.
  struct Increments {
    static constexpr bool kTakesLong = false;  // longer than memory does
    const uint32_t* which;
    uint16_t* counters;
    int64_t vectors;  // how many can be accompanied

    template <class Real>
    HOOKSTATS_INLINE void see(const Lanes<Real>&, int64_t = kLanes) {}
    template <class Real>
    HOOKSTATS_INLINE void see_first(const Lanes<Real>&) {}
    template <class Real>
    HOOKSTATS_INLINE void see_second(const Lanes<Real>&, const Lanes<Real>&) {}

    template <int kVectors>
    HOOKSTATS_INLINE void accompany() {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kVectors * kPerVector; ++i) ++counters[which[i]];
      which += kVectors * kPerVector;
      keep_together();
    }
  };

  // Those that go with at most `vectors` vectors, in steps of `step`.
  HOOKSTATS_INLINE Increments take(int64_t vectors, int64_t step) {
    const int64_t most = (end_ - begin_) / kPerVector;
    const int64_t taken = (most < vectors ? most : vectors) / step * step;
    const Increments some{which_ + begin_, counters_, taken};
    begin_ += taken * kPerVector;
    return some;
  }

  // Where at most `most` <= kRoom of `counters` can be stored, and whole vectors.
  uint32_t* room(int64_t most, uint16_t* counters) {
    if (end_ + most > kRoom || counters != counters_) finish();
    counters_ = counters;
    if (begin_ == end_) begin_ = end_ = 0;
    return which_ + end_;
  }
  void add(int64_t n) { end_ += n; }

  void finish() {
    int64_t i = begin_;
    for (; i + kLanes <= end_; i += kLanes) {
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) ++counters_[which_[i + j]];
    }
    for (; i < end_; ++i) ++counters_[which_[i]];
    begin_ = end_ = 0;
  }

 private:
  alignas(64) uint32_t which_[kRoom + kLanes];
  uint16_t* counters_ = nullptr;
  int64_t begin_ = 0, end_ = 0;
};

// What goes with sums: the increments of a sample, if there is one.
struct WithSample {
  Waiting* waiting = nullptr;

  // Calls f with what goes with at most `vectors` vectors, in steps of `step`.
  template <class F>
  HOOKSTATS_INLINE void with(int64_t vectors, int64_t step, int64_t, F&& f) const {
    using Increments = Waiting::Increments;
    Increments some =
        waiting != nullptr ? waiting->take(vectors, step) : Increments{nullptr, nullptr, 0};
    f(some);
  }
};
