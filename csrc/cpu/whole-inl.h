// Whole: counts the histogram of all of a tensor's elements while their sums are added.

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

// Counters that were found and are pending. One side is incremented while vectors are added, the
// other takes the counters that are found meanwhile; the sides are swapped once there are kMany.
class Pending {
 public:
  // Takes the counters to interleave with at most `vectors` vectors, in steps of `step`; the first
  // is `next`.
  HOOKSTATS_INLINE int64_t take(int64_t vectors, int64_t step, const uint32_t*& next) {
    if (last_ - next_ < vectors * kLanes && found_ >= kMany) swap_sides();
    const int64_t pending = (last_ - next_) / kLanes;
    const int64_t taken = (pending < vectors ? pending : vectors) / step * step;
    next = items_[side_] + next_;
    next_ += taken * kLanes;
    return taken;
  }

  // Where counters that are found go, with room for all of them and a register; `n` have gone
  // there.
  uint32_t* end() { return items_[1 - side_] + found_; }
  void add(int64_t n) { found_ += n; }

  // Increments all that are pending.
  void count(uint16_t* counters) {
    for (; next_ < last_; ++next_) ++counters[items_[side_][next_]];
    for (int64_t i = 0; i < found_; ++i) ++counters[items_[1 - side_][i]];
    next_ = last_ = found_ = 0;
  }

 private:
  static constexpr int64_t kMany = 256;
  // Upper bound on pending items: each call consumes as many as it produces, except up to two
  // vectors and kMany items.
  static constexpr int64_t kRoom = kSpill * kLanes + kMany + 2 * kLanes;

  // What is left of this side goes to the other.
  void swap_sides() {
    uint32_t* const other = items_[1 - side_];
    for (; next_ < last_; next_ += kLanes, found_ += kLanes) {
      __builtin_memcpy(other + found_, items_[side_] + next_, kLanes * sizeof(uint32_t));
    }
    side_ = 1 - side_;
    last_ = found_ - (next_ - last_);
    next_ = found_ = 0;
  }

  // Of one side, [next_, last_) are pending; of the other, found_ were found since.
  alignas(64) uint32_t items_[2][kRoom + 2 * kLanes];
  int side_ = 0;
  int64_t next_ = 0, last_ = 0, found_ = 0;
};

// Finds the counters of each vector that is added to sums, and increments those found before. A
// processor increments one counter per cycle, which leaves it time to find others and to add.
// Zeros, which would wait for each other's increments, are left out, and counted by what is
// missing.
class Whole {
  static constexpr int kCopies = Histogram::kCopies;

 public:
  // What loops over vectors call.
  struct Increments {
    static constexpr bool kTakesLong = true;
    NonzeroKeys<kCopies> keys;
    const uint32_t* which;
    uint16_t* counters;
    int64_t vectors;  // with how many there is something to interleave
    bool uniform;     // whether it is worth asking for vectors of one slot
    uint32_t* to;

    // Finds the counters of the first `n` lanes of `x`.
    HOOKSTATS_INLINE void find(const Lanes<float>& x, int64_t n = kLanes) {
      keys(x, (1u << n) - 1, to);
    }

    // Increments as many counters as these vectors have lanes.
    template <int kVectors>
    HOOKSTATS_INLINE void interleave() {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v, which += kLanes) {
        if (uniform && in_turn<kCopies>(which)) {
          count_in_turn<kCopies>(counters + which[0]);
          continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) ++counters[which[i]];
      }
      keep_together();
    }
  };

  void into(Histogram& histogram) { histogram_ = &histogram; }

  // Calls f with what to interleave with `vectors` <= kSpill vectors, in steps of `step`; f finds
  // the counters of these, which have so many elements.
  template <class F>
  HOOKSTATS_INLINE void with(int64_t vectors, int64_t step, int64_t elements, F&& f) {
    const int64_t most_of_counter = most_of_one<kCopies>(vectors);
    if (!histogram_->has_room(most_of_counter)) {
      finish();
      histogram_->empty();
    }
    histogram_->take_room(most_of_counter);
    const uint32_t* which;
    const int64_t taken = pending_.take(vectors, step, which);
    const bool uniform = taken > 0 && in_turn<kCopies>(which);
    uint32_t* const first = pending_.end();
    Increments some{NonzeroKeys<kCopies>(histogram_->bins()),
                    which,
                    histogram_->counters(),
                    taken,
                    uniform,
                    first};
    f(some);
    const int64_t n = some.to - first;
    histogram_->note(first, n, elements);
    pending_.add(n);
  }

  // Without sums: as `Histogram::add`.
  template <class Real, class Source>
  void add(const Source* p, int64_t n, int64_t ahead, int64_t) {
    for (int64_t left; n > 0; p += left, n -= left) {
      left = n < kAtOnce ? n : kAtOnce;
      const int64_t vectors = left / kLanes;
      with(ceil_div(left, kLanes), 1, left, [&](auto& left_over) __attribute__((always_inline)) {
        auto some = left_over;  // in registers
        const auto find = [&](int64_t i) __attribute__((always_inline)) {
          prefetch(p + i * kLanes, ahead);
          some.find(load<Real, Source>(p + i * kLanes));
        };
        const int64_t with = some.vectors < vectors ? some.vectors : vectors;
        int64_t i = 0;
        for (; i + 2 <= with; i += 2) {
          find(i);
          find(i + 1);
          some.template interleave<2>();
        }
        if (i < with) {
          find(i++);
          some.template interleave<1>();
        }
        for (; i < vectors; ++i) find(i);
        if (vectors * kLanes < left) {
          const int64_t rest = left - vectors * kLanes;
          some.find(load_first<Real, Source>(p + vectors * kLanes, rest), rest);
          if (vectors < some.vectors) some.template interleave<1>();
        }
        left_over = some;
      });
    }
  }

  // Increments all counters that were found.
  void finish() {
    if (histogram_ != nullptr) pending_.count(histogram_->counters());
  }

 private:
  static constexpr int64_t kAtOnce = kSpill * kLanes;

  Histogram* histogram_ = nullptr;
  Pending pending_;
};
#else
class Whole;
#endif
