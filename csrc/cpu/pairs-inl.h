// Pairs: two elements of a whole histogram, counted by one increment.

#if HOOKSTATS_VECTOR_BYTES == 64

// The bytes or words that are `kept`, one after another. In assembly, as compilers may use these
// instructions (of VBMI2) in no other place: not every processor with AVX-512 has them, see
// `compresses_bytes`.
HOOKSTATS_INLINE __m256i compress_bytes(__m256i bytes, __mmask32 kept) {
  __m256i r;
  __asm__("vpcompressb %1, %0 %{%2%}%{z%}" : "=v"(r) : "v"(bytes), "Yk"(kept));
  return r;
}
HOOKSTATS_INLINE __m512i compress_words(__m512i words, __mmask32 kept) {
  __m512i r;
  __asm__("vpcompressw %1, %0 %{%2%}%{z%}" : "=v"(r) : "v"(words), "Yk"(kept));
  return r;
}

// Keys as bytes: of each sign the kKeys keys from `first` on. Zero is none of them.
struct PairKeys {
  static constexpr int kBits = 6;
  static constexpr int kKeys = 1 << kBits;

  int shift;      // from the upper half of an element to its key
  int16_t first;  // key of the window
  int16_t far;    // the bits that are zero in the distances of keys in the window alone

  // Stores the bytes of elements in the window at `to`, and the upper halves of the others that are
  // not zero at `outside`; either has room for all. Goes behind what it stored.
  HOOKSTATS_INLINE void operator()(const Lanes<float>& x, const Lanes<float>& y, uint8_t*& to,
                                   uint16_t*& outside) const {
    const __m512i bits_of_x = (__m512i)x.part[0], bits_of_y = (__m512i)y.part[0];
    const Lanes<int32_t> upper = iota<int32_t>() * fill(0x00040004) + fill(0x00030001);
    const __m512i words = _mm512_permutex2var_epi16(bits_of_x, (__m512i)upper.part[0], bits_of_y);
    const __m512i keys = _mm512_sub_epi16(_mm512_srl_epi16(words, _mm_cvtsi32_si128(shift)),
                                          _mm512_set1_epi16(first));
    const __mmask32 near = _mm512_testn_epi16_mask(keys, _mm512_set1_epi16(far));
    constexpr int kSelect = 0xca;  // a ? b : c
    const __m512i bytes = _mm512_ternarylogic_epi32(
        _mm512_set1_epi16(kKeys), _mm512_srli_epi16(words, 15 - kBits), keys, kSelect);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        compress_bytes(_mm512_cvtepi16_epi8(bytes), near));
    to += __builtin_popcount(near);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __mmask32 nonzero = _mm512_kunpackw(_mm512_test_epi32_mask(bits_of_y, magnitude),
                                              _mm512_test_epi32_mask(bits_of_x, magnitude));
    const __mmask32 others = nonzero & ~near;
    _mm512_storeu_si512(outside, compress_words(words, others));
    outside += __builtin_popcount(others);
  }
};

// Turns two bytes, in either order, into the number of their counter, of 16K. The smaller byte
// chooses the row, so that half of the table stays untouched. A row is four lines of the cache,
// and most elements use a few of them: the lines change places from row to row, or half of the
// cache's sets would stay empty. With twice as many keys this took 0.9 of the time, from memory.
struct SpreadPairs {
  static constexpr int64_t kTogether = 2, kMany = 1024;  // sooner, stores would be under way still
  static constexpr int kLine = HOOKSTATS_VECTOR_BYTES / sizeof(uint16_t);  // counters
  static constexpr int kRow = 2 * PairKeys::kKeys;
  static constexpr int kLines = kRow / kLine;  // of a row

  // Where the `line` of row `byte` is in the row, and the first one that is touched.
  static constexpr int line(int byte, int line) { return line ^ (byte / kLines % kLines); }
  static constexpr int first_line(int byte) { return byte / kLine; }

  static void all(uint8_t* bytes, int64_t n) {
    constexpr int kShift = __builtin_ctz(kRow) + __builtin_ctz(kLines) - __builtin_ctz(kLine);
    const __m512i lines = _mm512_set1_epi16((kLines - 1) * kLine);
    const __m512i low = _mm512_set1_epi16(kRow - 1);
    const __m512i other_order = _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
    constexpr int kXorOfAnd = 0x78;  // a ^ (b & c)
    constexpr int kSelect = 0xca;    // a ? b : c
    for (int64_t i = 0; i < n; i += HOOKSTATS_VECTOR_BYTES) {
      const __m512i found = _mm512_loadu_si512(bytes + i);
      const __m512i apart = _mm512_min_epu16(found, _mm512_shuffle_epi8(found, other_order));
      const __m512i pairs = _mm512_ternarylogic_epi32(
          low, apart, _mm512_srli_epi16(apart, 7 - PairKeys::kBits), kSelect);
      _mm512_storeu_si512(
          bytes + i,
          _mm512_ternarylogic_epi32(pairs, _mm512_srli_epi16(pairs, kShift), lines, kXorOfAnd));
    }
  }
};

// Whether the pairs of these bytes have one counter.
template <int kVectors>
HOOKSTATS_INLINE bool are_one_pair(const uint8_t* bytes) {
  static_assert(kVectors == 1 || kVectors == 2);
  if constexpr (kVectors == 1) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return _mm_cmpneq_epi16_mask(pairs, _mm_broadcastw_epi16(pairs)) == 0;
  } else {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    const __m256i first = _mm256_broadcastw_epi16(_mm256_castsi256_si128(pairs));
    return _mm256_cmpneq_epi16_mask(pairs, first) == 0;
  }
}

// Counters for each two keys of a window, in either order, which take half of L1. The window is
// chosen by the first elements. Elements outside are counted one by one: where they are more than
// one in kMostOutside, the window is chosen again; after kMoves of these choices pairs are given
// up.
class Pairs {
 public:
  // Fewer elements are not worth bringing the counters into the caches, and emptying them. With
  // more bins in an octave, the window is too narrow.
  static bool are_worth(const Bins& bins, int64_t elements) {
    constexpr int64_t kLeast = 32768;
    constexpr int kMostBits = 4;
    return compresses_bytes() && elements >= kLeast && 23 - bins.shift <= kMostBits;
  }

  Pairs() = default;
  explicit Pairs(const Bins& bins)
      : counters_(zero_counters(thread_scratch().pair_counters, kCounters)), shift_(bins.shift) {
    state_ = State::kLooking;
  }

  bool are_on() const { return state_ == State::kOn; }
  uint16_t* counters() const { return counters_; }
  PairKeys keys() const {
    return {shift_ - 16, static_cast<int16_t>(first_),
            static_cast<int16_t>((half() - 1) & ~(PairKeys::kKeys - 1))};
  }
  int64_t key(int64_t byte) const {
    return first_ + byte % PairKeys::kKeys + byte / PairKeys::kKeys * half();
  }
  // The key of an element of which this is the upper half.
  int64_t key_of(uint16_t word) const { return word >> (shift_ - 16); }

  // Looks at `n` counters (of LogKeys, `kCopies` of each) that wait to be incremented. Returns
  // whether pairs are on now.
  template <int kCopies>
  bool look(const uint32_t* which, int64_t n) {
    if (state_ != State::kLooking) return false;
    for (int64_t i = 0; i < n; ++i) {
      ++octaves_[(which[i] / kCopies & (half() - 1)) >> bits()];
    }
    looked_ += n;
    if (looked_ < kLook) return false;
    if (choose()) {
      state_ = State::kOn;
    } else {
      leave();
    }
    inside_ = outside_ = looked_ = 0;
    for (uint16_t& octave : octaves_) octave = 0;
    return are_on();
  }

  // Whether every counter can count `n` more, which it will, besides the `waiting` that wait.
  bool take_room(int64_t n, int64_t waiting) {
    if (counted_ + n > kMostCounted) counted_ = greatest_counter() + waiting;
    if (counted_ + n > kMostCounted) return false;
    counted_ += n;
    return true;
  }

  // So many were found in the window and outside. Returns whether the window is to be left, once
  // what waits is counted.
  bool note(int64_t inside, int64_t outside) {
    inside_ += inside;
    outside_ += outside;
    if (inside_ + outside_ < kJudged) return false;
    const bool leave = outside_ * kMostOutside > inside_ + outside_;
    inside_ = outside_ = 0;
    return leave;
  }
  void leave() { state_ = ++moves_ < kMoves ? State::kLooking : State::kNever; }

  // Increments the counters of `n` bytes, which are arranged.
  void count(const uint8_t* bytes, int64_t n) const {
    for (int64_t i = 0; i < n; i += 2) ++counters_[pair_at(bytes + i)];
  }

  static HOOKSTATS_INLINE uint16_t pair_at(const uint8_t* bytes) {
    uint16_t pair;
    __builtin_memcpy(&pair, bytes, sizeof pair);
    return pair;
  }

  // Calls f(key, count) for all that were counted; the counters are zero then.
  template <class F>
  void empty(F&& f) {
    constexpr int kParts = SpreadPairs::kLines;
    counted_ = 0;
    const __m512i low = _mm512_set1_epi32(0xffff), zero = _mm512_setzero_si512();
    uint32_t counts[kRow];
    __m512i even[kParts], odd[kParts];  // by the lower byte
    for (int i = 0; i < kParts; ++i) even[i] = odd[i] = zero;
    for (int byte = 0; byte < kRow; ++byte) {
      __m512i* const row = reinterpret_cast<__m512i*>(counters_ + byte * kRow);
      __m512i some = zero;
      for (int i = SpreadPairs::first_line(byte); i < kParts; ++i) {
        some = _mm512_or_si512(some, row[SpreadPairs::line(byte, i)]);
      }
      counts[byte] = 0;
      if (_mm512_test_epi32_mask(some, some) == 0) continue;
      __m512i sum = zero;
      for (int i = SpreadPairs::first_line(byte); i < kParts; ++i) {
        __m512i& line = row[SpreadPairs::line(byte, i)];
        const __m512i of_even = _mm512_and_si512(line, low), of_odd = _mm512_srli_epi32(line, 16);
        even[i] = _mm512_add_epi32(even[i], of_even);
        odd[i] = _mm512_add_epi32(odd[i], of_odd);
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(of_even, of_odd));
        line = zero;
      }
      counts[byte] = static_cast<uint32_t>(_mm512_reduce_add_epi32(sum));
    }
    for (int i = 0; i < kParts; ++i) {
      uint32_t evens[kLanes], odds[kLanes];
      _mm512_storeu_si512(evens, even[i]);
      _mm512_storeu_si512(odds, odd[i]);
      for (int j = 0; j < kLanes; ++j) {
        counts[(i * kLanes + j) * 2] += evens[j];
        counts[(i * kLanes + j) * 2 + 1] += odds[j];
      }
    }
    for (int byte = 0; byte < kRow; ++byte) {
      if (counts[byte] != 0) f(key(byte), static_cast<int64_t>(counts[byte]));
    }
  }

 private:
  enum class State : uint8_t { kNever, kLooking, kOn };

  static constexpr int kRow = SpreadPairs::kRow;
  static constexpr int64_t kCounters = kRow * kRow;
  static constexpr int kOctaves = 256;        // the last one is not finite
  static constexpr int64_t kLook = 1024;      // elements before the window is chosen
  static constexpr int64_t kJudged = 4096;    // elements before the window is judged
  static constexpr int64_t kMostOutside = 8;  // one of so many
  static constexpr int kMoves = 3;

  int64_t greatest_counter() const {
    __m512i greatest = _mm512_setzero_si512();
    for (int byte = 0; byte < kRow; ++byte) {
      const __m512i* const row = reinterpret_cast<const __m512i*>(counters_ + byte * kRow);
      for (int i = SpreadPairs::first_line(byte); i < SpreadPairs::kLines; ++i) {
        greatest = _mm512_max_epu16(greatest, row[SpreadPairs::line(byte, i)]);
      }
    }
    uint16_t lanes[SpreadPairs::kLine], most = 0;
    _mm512_storeu_si512(lanes, greatest);
    for (const uint16_t lane : lanes) most = lane > most ? lane : most;
    return most;
  }

  int bits() const { return 23 - shift_; }                      // of a key, within its octave
  int64_t half() const { return int64_t{1} << (31 - shift_); }  // keys of a sign

  // The window with most of the finite elements that were looked at. Returns whether that is enough
  // of them.
  bool choose() {
    const int octaves = PairKeys::kKeys >> bits();
    int64_t inside = 0, most = 0, end = octaves;
    for (int octave = 0; octave < kOctaves - 1; ++octave) {
      inside += octaves_[octave];
      if (octave >= octaves) inside -= octaves_[octave - octaves];
      if (inside >= most) {  // of equal ones the highest: those to come may be larger
        most = inside;
        end = octave + 1;
      }
    }
    const int64_t first = (end - octaves) * (int64_t{1} << bits());
    const int64_t last = half() - PairKeys::kKeys;
    first_ = first < 1 ? 1 : first < last ? first : last;
    return (looked_ - most) * kMostOutside <= looked_;
  }

  uint16_t* counters_ = nullptr;
  int shift_ = 23;
  State state_ = State::kNever;
  int moves_ = 0;
  int64_t first_ = 1;                // key of the window
  uint16_t octaves_[kOctaves] = {};  // of the elements that were looked at
  int64_t looked_ = 0;
  int64_t inside_ = 0, outside_ = 0;
  int64_t counted_ = 0;  // the most that any counter has counted
};
#endif
