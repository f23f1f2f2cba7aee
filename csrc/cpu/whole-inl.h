// What a whole histogram counts while sums are added.

#if HOOKSTATS_VECTOR_BYTES == 64

// The counters of floats that are not zero, kCopies of a key.
template <int kCopies>
struct NonzeroKeys {
  int shift;

  explicit NonzeroKeys(const Bins& b) : shift(b.shift - __builtin_ctz(kCopies)) {}

  // Stores those of the lanes that are `kept`, one after another, at `to`, which has room for all,
  // and goes behind them.
  HOOKSTATS_INLINE void operator()(const Lanes<float>& x, uint32_t kept, uint32_t*& to) const {
    const __m512i bits = (__m512i)x.part[0],
                  key = (__m512i)(bit_cast_lanes<uint32_t>(x).part[0] >> shift);
    constexpr int kAndOr = 0xea;  // (a & b) | c
    const __m512i counters = _mm512_ternarylogic_epi32(
        key, _mm512_set1_epi32(~(kCopies - 1)), (__m512i)copy_of_lane<kCopies>().part[0], kAndOr);
    const __mmask16 nonzero = _mm512_mask_test_epi32_mask(static_cast<__mmask16>(kept), bits,
                                                          _mm512_set1_epi32(0x7fffffff));
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(nonzero, counters));
    to += __builtin_popcount(nonzero);
  }
};

// What is found and waits to be counted: one side goes with sums, the other takes what is found
// meanwhile. Once there are kMany, it is worth turning to them: then `Arrange` is done to all,
// which takes kTogether of them at a time.
template <class T, class Arrange>
class Found {
  static constexpr int64_t kMany = Arrange::kMany;

 public:
  // Takes what goes with at most `vectors` vectors, in steps of `step`, from `next` on.
  HOOKSTATS_INLINE int64_t take(int64_t vectors, int64_t step, const T*& next) {
    if (last_ - next_ < vectors * kLanes && has_many()) turn();
    const int64_t waiting = (last_ - next_) / kLanes;
    const int64_t taken = (waiting < vectors ? waiting : vectors) / step * step;
    next = items_[side_] + next_;
    next_ += taken * kLanes;
    return taken;
  }

  // Where what is found goes, with room for all of it and a register; `n` have gone there.
  T* end() { return items_[1 - side_] + found_; }
  void add(int64_t n) { found_ += n; }
  bool has_many() const { return found_ >= kMany; }
  int64_t waiting() const { return last_ - next_ + found_; }

  // Calls f(items, n) on all that was arranged, and then on what is left.
  template <class F, class Rest>
  void take_all(F&& f, Rest&& rest) {
    turn();
    f(items_[side_] + next_, last_ - next_);
    rest(items_[1 - side_], found_);
    next_ = last_ = found_ = 0;
  }

 private:
  // The most that waits on both sides: vectors go with as many as they find, or with all there are,
  // but for two vectors of them and for fewer than kMany on their side.
  static constexpr int64_t kRoom = kSpill * kLanes + kMany + 2 * kLanes;

  // Takes the other side, as far as it can be arranged; what is left of this one goes with it.
  void turn() {
    T* const other = items_[1 - side_];
    const int64_t rest = found_ % Arrange::kTogether;
    T kept[Arrange::kTogether];
    for (int64_t i = 0; i < rest; ++i) kept[i] = other[found_ - rest + i];
    found_ -= rest;
    Arrange::all(other, found_);
    for (; next_ < last_; next_ += kLanes, found_ += kLanes) {
      __builtin_memcpy(other + found_, items_[side_] + next_, kLanes * sizeof(T));
    }
    side_ = 1 - side_;
    last_ = found_ - (next_ - last_);
    next_ = 0;
    for (found_ = 0; found_ < rest; ++found_) items_[1 - side_][found_] = kept[found_];
  }

  // Of one side, [next_, last_) wait; of the other, found_ were found since.
  alignas(64) T items_[2][kRoom + 2 * kLanes];
  int side_ = 0;
  int64_t next_ = 0, last_ = 0, found_ = 0;
};

// Finds the counters of each vector that sums add, while those found before are incremented. A
// processor increments one counter per cycle, which leaves it time for finding and for sums; of
// large tensors, two elements share an increment (`Pairs`). Zeros, which would wait for each
// other's increments, are left out, and counted by what is missing.
class Whole {
  static constexpr int kCopies = Histogram::kCopies;

  struct AsFound {
    static constexpr int64_t kTogether = 1, kMany = 256;
    static void all(const uint32_t*, int64_t) {}
  };

  // The upper halves of elements outside of the pairs' window, which wait to be counted.
  class Outside {
   public:
    // Where those of a `with` go.
    uint16_t* end() { return items_ + n_; }
    void add(int64_t n) { n_ += n; }
    bool has_many() const { return n_ >= kMany; }

    void count(const Histogram& histogram, const Pairs& pairs) {
      uint16_t* const counters = histogram.counters();
      for (int64_t i = 0; i < n_; ++i) {
        ++counters[pairs.key_of(items_[i]) * kCopies + i % kCopies];
      }
      n_ = 0;
    }

   private:
    static constexpr int64_t kMany = 256;
    alignas(64) uint16_t items_[kMany + kSpill * kLanes + 2 * kLanes];
    int64_t n_ = 0;
  };

  // What goes with sums, by keys.
  struct Increments {
    static constexpr bool kTakesLong = true;
    NonzeroKeys<kCopies> keys;
    const uint32_t* which;
    uint16_t* counters;
    int64_t vectors;  // how many can be accompanied
    bool alike;       // whether it is worth asking for turns
    uint32_t* to;

    // The first `n` lanes of `x`.
    HOOKSTATS_INLINE void see(const Lanes<float>& x, int64_t n = kLanes) {
      keys(x, (1u << n) - 1, to);
    }
    // Of two vectors, the first and then the second.
    HOOKSTATS_INLINE void see_first(const Lanes<float>& x) { see(x); }
    HOOKSTATS_INLINE void see_second(const Lanes<float>&, const Lanes<float>& y) { see(y); }

    template <int kVectors>
    HOOKSTATS_INLINE void accompany() {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v, which += kLanes) {
        if (alike && in_turn<kCopies>(which)) {
          count_in_turn<kCopies>(counters + which[0]);
          continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) ++counters[which[i]];
      }
      keep_together();
    }
  };

  // What goes with sums, by pairs.
  struct PairIncrements {
    static constexpr bool kTakesLong = true;
    PairKeys keys;
    const uint8_t* which;
    uint16_t* counters;
    int64_t vectors;  // how many can be accompanied
    bool alike;       // whether it is worth asking whether they are one pair
    uint8_t* to;
    uint16_t* outside;

    // The first lanes of `x`; zeros are behind them.
    HOOKSTATS_INLINE void see(const Lanes<float>& x, int64_t = kLanes) {
      see_second(x, fill(0.0f));
    }
    // Of two vectors, both at once.
    HOOKSTATS_INLINE void see_first(const Lanes<float>&) {}
    HOOKSTATS_INLINE void see_second(const Lanes<float>& x, const Lanes<float>& y) {
      keys(x, y, to, outside);
    }

    template <int kVectors>
    HOOKSTATS_INLINE void accompany() {
      if (alike && are_one_pair<kVectors>(which)) {
        counters[Pairs::pair_at(which)] += kVectors * kLanes / 2;
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < kVectors * kLanes; i += 2) ++counters[Pairs::pair_at(which + i)];
      }
      which += kVectors * kLanes;
      keep_together();
    }
  };

 public:
  // `elements` are expected.
  void into(Histogram& histogram, int64_t elements) {
    if (histogram_ == nullptr && Pairs::are_worth(histogram.bins(), elements)) {
      pairs_ = Pairs(histogram.bins());
    }
    histogram_ = &histogram;
  }

  // Calls f with what goes with `vectors` <= kSpill vectors, in steps of `step`; f sees these,
  // which have so many elements.
  template <class F>
  HOOKSTATS_INLINE void with(int64_t vectors, int64_t step, int64_t elements, F&& f) {
    const int64_t most_of_counter = most_of_one<kCopies>(vectors);
    if (!histogram_->has_room(most_of_counter)) {
      finish();
      histogram_->empty();
    }
    if (pairs_.are_on()) return with_pairs(vectors, step, elements, f);
    histogram_->take_room(most_of_counter);
    const uint32_t* which;
    const int64_t taken = found_.take(vectors, step, which);
    const bool alike = taken > 0 && in_turn<kCopies>(which);
    uint32_t* const first = found_.end();
    Increments some{NonzeroKeys<kCopies>(histogram_->bins()),
                    which,
                    histogram_->counters(),
                    taken,
                    alike,
                    first};
    f(some);
    const int64_t n = some.to - first;
    histogram_->note(first, n, elements);
    found_.add(n);
    if (pairs_.look<kCopies>(first, n)) count_found();  // from now on few are found
  }

  // Without sums: as `Histogram::add`.
  template <class Real, class Source>
  void add(const Source* p, int64_t n, int64_t ahead, int64_t, Waiting&) {
    for (int64_t left; n > 0; p += left, n -= left) {
      left = n < kAtOnce ? n : kAtOnce;
      const int64_t vectors = left / kLanes;
      const auto at = [&](int64_t i) {
        prefetch(p + i * kLanes, ahead);
        return load<Real, Source>(p + i * kLanes);
      };
      const auto see_all = [&](auto& left_over) __attribute__((always_inline)) {
        auto some = left_over;  // in registers
        const auto see_two = [&](int64_t i) __attribute__((always_inline)) {
          const Lanes<float> x = at(i), y = at(i + 1);
          some.see_first(x);
          some.see_second(x, y);
        };
        const int64_t with = some.vectors < vectors ? some.vectors : vectors;
        int64_t i = 0;
        for (; i + 2 <= with; i += 2) {
          see_two(i);
          some.template accompany<2>();
        }
        if (i < with) {
          some.see(at(i++));
          some.template accompany<1>();
        }
        for (; i + 2 <= vectors; i += 2) see_two(i);
        if (i < vectors) some.see(at(i));
        if (vectors * kLanes < left) {
          const int64_t rest = left - vectors * kLanes;
          some.see(load_first<Real, Source>(p + vectors * kLanes, rest), rest);
          if (vectors < some.vectors) some.template accompany<1>();
        }
        left_over = some;
      };
      with(ceil_div(left, kLanes), 1, left, see_all);
    }
  }

  // Increments all that were found.
  void finish() {
    if (histogram_ == nullptr) return;
    count_found();
    outside_.count(*histogram_, pairs_);
    if (pairs_.are_on()) count_found_pairs();
  }

 private:
  static constexpr int64_t kAtOnce = kSpill * kLanes;

  template <class F>
  HOOKSTATS_INLINE void with_pairs(int64_t vectors, int64_t step, int64_t elements, F&& f) {
    const int64_t most_of_pair = vectors * kLanes / 2;
    if (!pairs_.take_room(most_of_pair, found_pairs_.waiting() / 2)) {
      count_found_pairs();
      pairs_.take_room(most_of_pair, 0);
    }
    if (outside_.has_many()) outside_.count(*histogram_, pairs_);
    const uint8_t* which;
    const int64_t taken = found_pairs_.take(vectors, step, which);
    const bool alike = taken > 0 && are_one_pair<1>(which);
    uint8_t* const first = found_pairs_.end();
    uint16_t* const outside = outside_.end();
    PairIncrements some{pairs_.keys(), which, pairs_.counters(), taken, alike, first, outside};
    f(some);
    const int64_t n = some.to - first, others = some.outside - outside;
    histogram_->note_zeros(elements - n - others);
    histogram_->take_room(others);
    outside_.add(others);
    found_pairs_.add(n);
    if (pairs_.note(n, others)) {
      count_found_pairs();
      pairs_.leave();
    }
  }

  void count_found() {
    uint16_t* const counters = histogram_->counters();
    const auto count = [counters](const uint32_t* which, int64_t n) {
      for (int64_t i = 0; i < n; ++i) ++counters[which[i]];
    };
    found_.take_all(count, count);
  }

  void count_found_pairs() {
    const auto count_key = [this](int64_t key, int64_t count) { histogram_->add_key(key, count); };
    found_pairs_.take_all([this](const uint8_t* bytes, int64_t n) { pairs_.count(bytes, n); },
                          [&](const uint8_t* bytes, int64_t n) {
                            for (int64_t i = 0; i < n; ++i) count_key(pairs_.key(bytes[i]), 1);
                          });
    pairs_.empty(count_key);
  }

  Histogram* histogram_ = nullptr;
  Found<uint32_t, AsFound> found_;
  Pairs pairs_;
  Found<uint8_t, SpreadPairs> found_pairs_;
  Outside outside_;
};
#else
class Whole;
#endif
