// What a whole histogram counts while sums are added.

#if HOOKSTATS_VECTOR_BYTES == 64

// The counters of floats that are not zero, kCopies of a key.
template <int kCopies>
struct NonzeroKeys {
  int shift;

  explicit NonzeroKeys(const Bins& b) : shift(b.shift - __builtin_ctz(kCopies)) {}

  // Stores those of the first `n` lanes, one after another, at `to`, which has room for all;
  // returns how many there are.
  HOOKSTATS_INLINE int64_t operator()(const Lanes<float>& x, int64_t n, uint32_t* to) const {
    const __m512i bits = (__m512i)x.part[0],
                  key = (__m512i)(bit_cast_lanes<uint32_t>(x).part[0] >> shift);
    constexpr int kAndOr = 0xea;  // (a & b) | c
    const __m512i counters = _mm512_ternarylogic_epi32(
        key, _mm512_set1_epi32(~(kCopies - 1)), (__m512i)copy_of_lane<kCopies>().part[0], kAndOr);
    const __mmask16 nonzero = _mm512_mask_test_epi32_mask(static_cast<__mmask16>((1u << n) - 1),
                                                          bits, _mm512_set1_epi32(0x7fffffff));
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(nonzero, counters));
    return __builtin_popcount(nonzero);
  }
};

// Finds the counters of each vector that sums add, while those found before are incremented. A
// processor increments one counter per cycle, which leaves it time for finding and for sums. Zeros,
// which would wait for each other's increments, are left out, and counted by what is missing.
class Whole {
 public:
  struct Increments {
    static constexpr bool kTakesLong = true;
    NonzeroKeys<Histogram::kCopies> keys;
    const uint32_t* which;
    uint16_t* counters;
    int64_t vectors;  // how many can be accompanied
    bool alike;       // whether it is worth asking for turns
    uint32_t* to;

    // The first `n` lanes of `x`.
    HOOKSTATS_INLINE void see(const Lanes<float>& x, int64_t n = kLanes) { to += keys(x, n, to); }

    template <int kVectors>
    HOOKSTATS_INLINE void accompany() {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v, which += kLanes) {
        if (alike && in_turn<Histogram::kCopies>(which)) {
          count_in_turn<Histogram::kCopies>(counters + which[0]);
          continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) ++counters[which[i]];
      }
      keep_together();
    }
  };

  void into(Histogram& histogram) { histogram_ = &histogram; }

  // Before `vectors` <= kAtOnce / kLanes vectors are seen: what goes with them, in steps of `step`.
  HOOKSTATS_INLINE Increments begin(int64_t vectors, int64_t step) {
    const int64_t most = vectors * kLanes;
    const int64_t most_of_counter = most_of_one<Histogram::kCopies>(vectors);
    if (!histogram_->has_room(most_of_counter)) {
      finish();
      histogram_->empty();
    }
    histogram_->take_room(most_of_counter);
    if (last_ - next_ < most && found_ >= kWorth) turn();
    const int64_t waiting = (last_ - next_) / kLanes;
    const int64_t taken = (waiting < vectors ? waiting : vectors) / step * step;
    const uint32_t* const which = which_[side_] + next_;
    const bool alike = taken > 0 && in_turn<Histogram::kCopies>(which);
    next_ += taken * kLanes;
    return {NonzeroKeys<Histogram::kCopies>(histogram_->bins()),
            which,
            histogram_->counters(),
            taken,
            alike,
            which_[1 - side_] + found_};
  }

  // `elements` have been seen.
  HOOKSTATS_INLINE void end(const Increments& some, int64_t elements) {
    const uint32_t* const first = which_[1 - side_] + found_;
    const int64_t n = some.to - first;
    histogram_->note(first, n, elements);
    found_ += n;
  }

  // Without sums: as `Histogram::add`.
  template <class Real, class Source>
  void add(const Source* p, int64_t n, int64_t ahead, int64_t, Waiting&) {
    for (int64_t left; n > 0; p += left, n -= left) {
      left = n < kAtOnce ? n : kAtOnce;
      const int64_t vectors = left / kLanes;
      Increments some = begin(ceil_div(left, kLanes), 1);
      const auto see = [&](int64_t i) {
        prefetch(p + i * kLanes, ahead);
        some.see(load<Real, Source>(p + i * kLanes));
      };
      int64_t i = 0;
      for (; i < some.vectors && i < vectors; ++i) {
        see(i);
        some.accompany<1>();
      }
      for (; i < vectors; ++i) see(i);
      if (vectors * kLanes < left) {
        const int64_t rest = left - vectors * kLanes;
        some.see(load_first<Real, Source>(p + vectors * kLanes, rest), rest);
        if (i < some.vectors) some.accompany<1>();
      }
      end(some, left);
    }
  }

  // Increments all that were found.
  void finish() {
    if (histogram_ == nullptr) return;
    turn();
    for (; next_ < last_; ++next_) ++histogram_->counters()[which_[side_][next_]];
  }

 private:
  static constexpr int64_t kAtOnce = kSpill * kLanes;  // elements that are seen at once
  static constexpr int64_t kWorth = 256;               // as many are worth turning to
  // The most that is found and not incremented: vectors are accompanied by as many counters as they
  // find, or by all there are, but for two vectors of them and for fewer than kWorth on their side.
  static constexpr int64_t kRoom = kAtOnce + kWorth + 2 * kLanes;

  // Takes the other side; what is left goes with it.
  void turn() {
    uint32_t* const other = which_[1 - side_];
    for (; next_ < last_; next_ += kLanes, found_ += kLanes) {
      store(other + found_, lanes_at<uint32_t>(which_[side_] + next_));
    }
    side_ = 1 - side_;
    last_ = found_ - (next_ - last_);
    next_ = found_ = 0;
  }

  Histogram* histogram_ = nullptr;
  // Of one side, [next_, last_) wait to be incremented; of the other, found_ were found since.
  alignas(64) uint32_t which_[2][kRoom + 2 * kLanes];
  int side_ = 0;
  int64_t next_ = 0, last_ = 0, found_ = 0;
};
#else
class Whole;
#endif
