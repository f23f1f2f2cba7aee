// Sixteen lanes of a type on whichever instruction set this file is included for.
//
// HOOKSTATS_VECTOR_BYTES is the size of a register. No include guard, on purpose.
// GCC/Clang vector extensions do the arithmetic; intrinsics do what these express badly.

#define HOOKSTATS_INLINE inline __attribute__((always_inline))

// A struct of registers, not one 64-byte vector: GCC would keep such a vector in memory.
template <class T>
struct Lanes {
  static constexpr int kPerPart = HOOKSTATS_VECTOR_BYTES / sizeof(T);
  static constexpr int kParts = kLanes / kPerPart;
  typedef T Part __attribute__((vector_size(HOOKSTATS_VECTOR_BYTES)));
  Part part[kParts];
};

template <class T>
struct MaskOf;
template <>
struct MaskOf<float> {
  using type = int32_t;
};
template <>
struct MaskOf<int32_t> {
  using type = int32_t;
};
template <>
struct MaskOf<double> {
  using type = int64_t;
};
template <>
struct MaskOf<int64_t> {
  using type = int64_t;
};
template <class T>
using Mask = Lanes<typename MaskOf<T>::type>;  // a lane is 0 or -1

#define HOOKSTATS_EACH_PART(T) _Pragma("GCC unroll 8") for (int i = 0; i < Lanes<T>::kParts; ++i)

template <class T>
HOOKSTATS_INLINE Lanes<T> fill(T value) {
  Lanes<T> r;
  HOOKSTATS_EACH_PART(T) r.part[i] = value - typename Lanes<T>::Part{};
  return r;
}

#define HOOKSTATS_BINARY(OP)                                                    \
  template <class T>                                                            \
  HOOKSTATS_INLINE Lanes<T> operator OP(const Lanes<T>& a, const Lanes<T>& b) { \
    Lanes<T> r;                                                                 \
    HOOKSTATS_EACH_PART(T) r.part[i] = a.part[i] OP b.part[i];                  \
    return r;                                                                   \
  }
HOOKSTATS_BINARY(+)
HOOKSTATS_BINARY(-)
HOOKSTATS_BINARY(*)
HOOKSTATS_BINARY(/)
HOOKSTATS_BINARY(&)
HOOKSTATS_BINARY(|)
HOOKSTATS_BINARY(^)
#undef HOOKSTATS_BINARY

#define HOOKSTATS_COMPARE(NAME, OP)                                     \
  template <class T>                                                    \
  HOOKSTATS_INLINE Mask<T> NAME(const Lanes<T>& a, const Lanes<T>& b) { \
    Mask<T> r;                                                          \
    HOOKSTATS_EACH_PART(T) r.part[i] = a.part[i] OP b.part[i];          \
    return r;                                                           \
  }
HOOKSTATS_COMPARE(equal, ==)
HOOKSTATS_COMPARE(unequal, !=)
HOOKSTATS_COMPARE(less, <)
HOOKSTATS_COMPARE(at_least, >=)
#undef HOOKSTATS_COMPARE

template <class T>
HOOKSTATS_INLINE Lanes<T> select(const Mask<T>& mask, const Lanes<T>& yes, const Lanes<T>& no) {
  Lanes<T> r;
  HOOKSTATS_EACH_PART(T) r.part[i] = mask.part[i] ? yes.part[i] : no.part[i];
  return r;
}

template <class T>
HOOKSTATS_INLINE Lanes<T> min(const Lanes<T>& a, const Lanes<T>& b) {
  return select(less(a, b), a, b);
}

template <class T>
HOOKSTATS_INLINE Lanes<T> max(const Lanes<T>& a, const Lanes<T>& b) {
  return select(less(b, a), a, b);
}

// For targets where this is one instruction, which GCC does not find by itself.
#define HOOKSTATS_INSTRUCTION(NAME, T, REGISTER, INTRINSIC)                          \
  HOOKSTATS_INLINE Lanes<T> NAME(const Lanes<T>& a, const Lanes<T>& b) {             \
    Lanes<T> r;                                                                      \
    HOOKSTATS_EACH_PART(T)                                                           \
    r.part[i] = (Lanes<T>::Part)INTRINSIC((REGISTER)a.part[i], (REGISTER)b.part[i]); \
    return r;                                                                        \
  }
#if HOOKSTATS_VECTOR_BYTES == 64
HOOKSTATS_INSTRUCTION(min, float, __m512, _mm512_min_ps)
HOOKSTATS_INSTRUCTION(max, float, __m512, _mm512_max_ps)
HOOKSTATS_INSTRUCTION(min, double, __m512d, _mm512_min_pd)
HOOKSTATS_INSTRUCTION(max, double, __m512d, _mm512_max_pd)
HOOKSTATS_INSTRUCTION(min, int32_t, __m512i, _mm512_min_epi32)
HOOKSTATS_INSTRUCTION(max, int32_t, __m512i, _mm512_max_epi32)
#elif HOOKSTATS_VECTOR_BYTES == 32
HOOKSTATS_INSTRUCTION(min, float, __m256, _mm256_min_ps)
HOOKSTATS_INSTRUCTION(max, float, __m256, _mm256_max_ps)
HOOKSTATS_INSTRUCTION(min, double, __m256d, _mm256_min_pd)
HOOKSTATS_INSTRUCTION(max, double, __m256d, _mm256_max_pd)
HOOKSTATS_INSTRUCTION(min, int32_t, __m256i, _mm256_min_epi32)
HOOKSTATS_INSTRUCTION(max, int32_t, __m256i, _mm256_max_epi32)
#elif defined(__SSE2__)
HOOKSTATS_INSTRUCTION(min, float, __m128, _mm_min_ps)
HOOKSTATS_INSTRUCTION(max, float, __m128, _mm_max_ps)
HOOKSTATS_INSTRUCTION(min, double, __m128d, _mm_min_pd)
HOOKSTATS_INSTRUCTION(max, double, __m128d, _mm_max_pd)
#endif
#undef HOOKSTATS_INSTRUCTION

template <class To, class From>
HOOKSTATS_INLINE Lanes<To> bit_cast_lanes(const Lanes<From>& from) {
  static_assert(sizeof(To) == sizeof(From));
  Lanes<To> to;
  HOOKSTATS_EACH_PART(To) to.part[i] = (typename Lanes<To>::Part)from.part[i];
  return to;
}

// Lanes from memory and to memory, which may be unaligned. They are copied part by part: GCC copies
// whole structs in pieces of 16 bytes by way of the stack, which made AVX2 five times slower.
template <class T>
HOOKSTATS_INLINE Lanes<T> lanes_at(const void* p) {
  constexpr int kBytes = HOOKSTATS_VECTOR_BYTES;
  Lanes<T> r;
  HOOKSTATS_EACH_PART(T)
  __builtin_memcpy(&r.part[i], static_cast<const char*>(p) + i * kBytes, kBytes);
  return r;
}
template <class T>
HOOKSTATS_INLINE void store(void* p, const Lanes<T>& lanes) {
  constexpr int kBytes = HOOKSTATS_VECTOR_BYTES;
  HOOKSTATS_EACH_PART(T)
  __builtin_memcpy(static_cast<char*>(p) + i * kBytes, &lanes.part[i], kBytes);
}

template <class T>
HOOKSTATS_INLINE Lanes<T> abs(const Lanes<T>& a) {
  using Int = typename MaskOf<T>::type;
  constexpr Int kMagnitude = static_cast<Int>(~(Int{1} << (8 * sizeof(Int) - 1)));
  return bit_cast_lanes<T>(bit_cast_lanes<typename MaskOf<T>::type>(a) & fill(kMagnitude));
}

// a * b + c
template <class T>
HOOKSTATS_INLINE Lanes<T> multiply_add(const Lanes<T>& a, const Lanes<T>& b, const Lanes<T>& c) {
  return a * b + c;
}
#if HOOKSTATS_VECTOR_BYTES == 64
HOOKSTATS_INLINE Lanes<float> multiply_add(const Lanes<float>& a, const Lanes<float>& b,
                                           const Lanes<float>& c) {
  return {{_mm512_fmadd_ps(a.part[0], b.part[0], c.part[0])}};
}
#elif HOOKSTATS_VECTOR_BYTES == 32
HOOKSTATS_INLINE Lanes<float> multiply_add(const Lanes<float>& a, const Lanes<float>& b,
                                           const Lanes<float>& c) {
  return {{_mm256_fmadd_ps(a.part[0], b.part[0], c.part[0]),
           _mm256_fmadd_ps(a.part[1], b.part[1], c.part[1])}};
}
#endif

// counter + 1 in the lanes of the mask (whose -1 is subtracted).
template <class Int>
HOOKSTATS_INLINE void count_lanes(Lanes<Int>& counter, const Lanes<Int>& mask) {
  counter = counter - mask;
}
#if HOOKSTATS_VECTOR_BYTES == 64
// One masked add instead of a mask spread to a vector and subtracted.
HOOKSTATS_INLINE void count_zeros(Lanes<int32_t>& counter, const Lanes<float>& x) {
  const __mmask16 zero = _mm512_cmp_ps_mask(x.part[0], _mm512_setzero_ps(), _CMP_EQ_OQ);
  const __m512i old = reinterpret_cast<__m512i>(counter.part[0]);
  counter.part[0] = reinterpret_cast<Lanes<int32_t>::Part>(
      _mm512_mask_sub_epi32(old, zero, old, _mm512_set1_epi32(-1)));
}
#else
HOOKSTATS_INLINE void count_zeros(Lanes<int32_t>& counter, const Lanes<float>& x) {
  count_lanes(counter, equal(x, fill(0.0f)));
}
#endif
HOOKSTATS_INLINE void count_zeros(Lanes<int64_t>& counter, const Lanes<double>& x) {
  count_lanes(counter, equal(x, fill(0.0)));
}

template <class T>
HOOKSTATS_INLINE Lanes<T> iota() {
  T values[kLanes];
  for (int i = 0; i < kLanes; ++i) values[i] = static_cast<T>(i);
  return lanes_at<T>(values);
}

template <int kBits, class T>
HOOKSTATS_INLINE Lanes<T> shift_left(const Lanes<T>& a) {
  Lanes<T> r;
  HOOKSTATS_EACH_PART(T) r.part[i] = a.part[i] << kBits;
  return r;
}

template <int kBits, class T>
HOOKSTATS_INLINE Lanes<T> shift_right(const Lanes<T>& a) {
  Lanes<T> r;
  HOOKSTATS_EACH_PART(T) r.part[i] = a.part[i] >> kBits;
  return r;
}

// Is any lane not zero?
template <class T>
HOOKSTATS_INLINE bool any(const Lanes<T>& a) {
  typename Lanes<T>::Part all = a.part[0];
#pragma GCC unroll 8
  for (int i = 1; i < Lanes<T>::kParts; ++i) all |= a.part[i];
#if HOOKSTATS_VECTOR_BYTES == 64
  return _mm512_test_epi64_mask((__m512i)all, (__m512i)all) != 0;
#elif HOOKSTATS_VECTOR_BYTES == 32
  return _mm256_testz_si256((__m256i)all, (__m256i)all) == 0;
#else
  typedef uint64_t Words __attribute__((vector_size(16)));
  return (((Words)all)[0] | ((Words)all)[1]) != 0;
#endif
}

// Asks for the memory `ahead` elements from p, which may be anywhere.
template <class T>
HOOKSTATS_INLINE void prefetch(const T* p, int64_t ahead) {
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead) * sizeof(T);
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

// --- loads: 16 elements of a storage type as lanes of a computing type -------------------------

template <class Real, class Source>
struct Load;

template <class Real>
struct Load<Real, Real> {
  static HOOKSTATS_INLINE Lanes<Real> all(const Real* p) { return lanes_at<Real>(p); }
};

template <class To, class From>
HOOKSTATS_INLINE Lanes<To> convert_halves(const From* p) {
  constexpr int kPerPart = Lanes<To>::kPerPart;
  typedef From Narrow __attribute__((vector_size(kPerPart * sizeof(From))));
  Lanes<To> r;
  HOOKSTATS_EACH_PART(To) {
    Narrow narrow;
    __builtin_memcpy(&narrow, p + i * kPerPart, sizeof narrow);
    r.part[i] = __builtin_convertvector(narrow, typename Lanes<To>::Part);
  }
  return r;
}

template <>
struct Load<float, BFloat16> {
  static HOOKSTATS_INLINE Lanes<float> all(const BFloat16* p) {
#if HOOKSTATS_VECTOR_BYTES == 64
    // One permutation instead of a widening and a shift.
    const Lanes<uint32_t> to_upper_half = shift_left<16>(iota<uint32_t>());
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {
        {(Lanes<float>::Part)_mm512_maskz_permutexvar_epi16(
            0xaaaaaaaa, (__m512i)to_upper_half.part[0], _mm512_castsi256_si512(narrow)) }};
#else
    const Lanes<uint32_t> bits = convert_halves<uint32_t>(reinterpret_cast<const uint16_t*>(p));
    return bit_cast_lanes<float>(shift_left<16>(bits));
#endif
  }
};

template <>
struct Load<float, Half> {
  static HOOKSTATS_INLINE Lanes<float> all(const Half* p) {
#if HOOKSTATS_VECTOR_BYTES == 64
    return {{ _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))) }};
#elif HOOKSTATS_VECTOR_BYTES == 32
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    return {
        { _mm256_cvtph_ps(_mm_loadu_si128(halves)),
          _mm256_cvtph_ps(_mm_loadu_si128(halves + 1)) }};
#else
    // As core's widen(Half), without its branch.
    const Lanes<int32_t> bits = convert_halves<int32_t>(reinterpret_cast<const uint16_t*>(p));
    Lanes<int32_t> magnitude, sign;
    HOOKSTATS_EACH_PART(int32_t) {
      magnitude.part[i] = (bits.part[i] & 0x7fff) << 13;
      sign.part[i] = (bits.part[i] & 0x8000) << 16;
    }
    const Lanes<int32_t> rebased =
        bit_cast_lanes<int32_t>(bit_cast_lanes<float>(magnitude) * fill(0x1p112f));
    Lanes<int32_t> result;
    HOOKSTATS_EACH_PART(int32_t) {
      const auto nonfinite = magnitude.part[i] >= (0x7c00 << 13);
      result.part[i] =
          sign.part[i] | (nonfinite ? magnitude.part[i] | 0x7f800000 : rebased.part[i]);
    }
    return bit_cast_lanes<float>(result);
#endif
  }
};

// The lanes of a register as they fill two registers of a type twice as wide. Lanes are picked by
// halves: one by one GCC picks them with an instruction each, and a detour over memory would keep
// the sums that come this way in memory, in the loop too, which took 2.5 times as long.
template <class To, class Half, class Part, int... kLane>
HOOKSTATS_INLINE void widen_part(const Part& x, typename Lanes<To>::Part& low,
                                 typename Lanes<To>::Part& high,
                                 std::integer_sequence<int, kLane...>) {
  constexpr int kHalf = static_cast<int>(sizeof...(kLane));
  const Half low_half = __builtin_shufflevector(x, x, kLane...);
  const Half high_half = __builtin_shufflevector(x, x, (kLane + kHalf)...);
  low = __builtin_convertvector(low_half, typename Lanes<To>::Part);
  high = __builtin_convertvector(high_half, typename Lanes<To>::Part);
}
template <class To, class From>
HOOKSTATS_INLINE Lanes<To> widen_lanes(const Lanes<From>& x) {
  typedef From Half __attribute__((vector_size(HOOKSTATS_VECTOR_BYTES / 2)));
  Lanes<To> r;
  HOOKSTATS_EACH_PART(From) {
    widen_part<To, Half>(x.part[i], r.part[2 * i], r.part[2 * i + 1],
                         std::make_integer_sequence<int, Lanes<To>::kPerPart>{});
  }
  return r;
}
HOOKSTATS_INLINE Lanes<double> to_double(const Lanes<float>& x) { return widen_lanes<double>(x); }
HOOKSTATS_INLINE Lanes<double> to_double(const Lanes<double>& x) { return x; }

HOOKSTATS_INLINE Lanes<int64_t> to_int64(const Lanes<int32_t>& x) {
  return widen_lanes<int64_t>(x);
}
HOOKSTATS_INLINE Lanes<int64_t> to_int64(const Lanes<int64_t>& x) { return x; }
HOOKSTATS_INLINE Lanes<double> to_double(const Lanes<int64_t>& x) {
  Lanes<double> r;
  HOOKSTATS_EACH_PART(double) {
    r.part[i] = __builtin_convertvector(x.part[i], Lanes<double>::Part);
  }
  return r;
}

template <class Source>
struct Load<double, Source> {
  static HOOKSTATS_INLINE Lanes<double> all(const Source* p) {
    return to_double(Load<float, Source>::all(p));
  }
};
template <>
struct Load<double, double> {
  static HOOKSTATS_INLINE Lanes<double> all(const double* p) { return lanes_at<double>(p); }
};

template <class Real, class Source>
HOOKSTATS_INLINE Lanes<Real> load(const Source* p) {
  return Load<Real, Source>::all(p);
}

// The first `count` lanes, followed by zeros; nothing is read beyond these lanes.
template <class Real, class Source>
HOOKSTATS_INLINE Lanes<Real> load_first(const Source* p, int64_t count) {
  alignas(64) Source values[kLanes] = {};
#if HOOKSTATS_VECTOR_BYTES == 64
  const uint32_t mask = (1u << count) - 1;
  if constexpr (std::is_same_v<Source, Real> && sizeof(Source) == 4) {
    return {{_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p)}};
  } else if constexpr (sizeof(Source) == 4) {
    _mm512_store_si512(values, _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), p));
  } else if constexpr (sizeof(Source) == 2) {
    const __m512i loaded = _mm512_maskz_loadu_epi16(mask, p);
    _mm256_store_si256(reinterpret_cast<__m256i*>(values), _mm512_castsi512_si256(loaded));
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = p[i];
  }
#else
  for (int64_t i = 0; i < count; ++i) values[i] = p[i];
#endif
  return load<Real, Source>(values);
}

template <class T>
HOOKSTATS_INLINE Mask<T> first_lanes(int64_t count) {
  using Int = typename MaskOf<T>::type;
  Mask<T> r;
  const Lanes<Int> index = iota<Int>();
  HOOKSTATS_EACH_PART(Int) r.part[i] = index.part[i] < static_cast<Int>(count);
  return r;
}

// --- reductions over lanes, as trees of fixed shape ---------------------------------------------

// One step for two vectors at once. Each holds values of `kWidth` lanes; the halves of those of
// `a`, then of `b`, come to lie side by side, block by block of `kBlock` lanes. Vectors come and go
// by reference: as values they would be part of an ABI.
template <int kWidth, int kBlock, int kHigh, class Part, int... kLane>
HOOKSTATS_INLINE void halves(const Part& a, const Part& b, Part& to,
                             std::integer_sequence<int, kLane...>) {
  constexpr int kLanesAPart = static_cast<int>(sizeof...(kLane)), kHalf = kWidth / 2;
  to = __builtin_shufflevector(
      a, b,
      (kLane / kBlock * kBlock + kLane % (kBlock / 2) / kHalf * kWidth + kLane % kHalf +
       kHigh * kHalf + (kLane % kBlock < kBlock / 2 ? 0 : kLanesAPart))...);
}

template <class T, int kWidth, int kBlock, class Combine>
HOOKSTATS_INLINE void combine_halves(typename Lanes<T>::Part& a, const typename Lanes<T>::Part& b,
                                     Combine combine) {
  constexpr std::make_integer_sequence<int, Lanes<T>::kPerPart> lanes{};
  typename Lanes<T>::Part low, high;
  halves<kWidth, kBlock, 0>(a, b, low, lanes);
  halves<kWidth, kBlock, 1>(a, b, high, lanes);
  combine(low, high);
  a = low;
}

// Reduces each of as many vectors as a vector has lanes; v[0] gets the results in order. First
// whole 16 bytes trade places, then lanes within them: instructions of one cycle.
template <class T, int kWidth, class Combine>
HOOKSTATS_INLINE void reduce_parts(typename Lanes<T>::Part* v, Combine combine) {
  constexpr int kCount = Lanes<T>::kPerPart, kBlock = 16 / static_cast<int>(sizeof(T));
  if constexpr (kWidth > kBlock) {
    constexpr int kDistance = kBlock * (kCount / kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      if (i % (2 * kDistance) < kBlock) {
        combine_halves<T, kWidth, kCount>(v[i], v[i + kDistance], combine);
      }
    }
  } else {
    constexpr int kDistance = kBlock / kWidth;
#pragma GCC unroll 4
    for (int i = 0; i < kBlock; i += 2 * kDistance) {
      combine_halves<T, kWidth, kBlock>(v[i], v[i + kDistance], combine);
    }
  }
  if constexpr (kWidth > 2) reduce_parts<T, kWidth / 2>(v, combine);
}

// Reduces one vector; every lane of the result has the value.
template <class T, int kWidth, class Combine>
HOOKSTATS_INLINE void reduce_part(typename Lanes<T>::Part& v, Combine combine) {
  constexpr int kCount = Lanes<T>::kPerPart, kBlock = 16 / static_cast<int>(sizeof(T));
  combine_halves<T, kWidth, (kWidth > kBlock ? kCount : kBlock)>(v, v, combine);
  if constexpr (kWidth > 2) reduce_part<T, kWidth / 2>(v, combine);
}

// Lane i is what `combine` makes of the lanes of get(i), for i < count; the other lanes repeat some
// of these. All together take fewer instructions than one by one. `get` should return a reference
// to memory, or else GCC copies the vector (see `lanes_at`).
template <class T, class Get, class Combine>
HOOKSTATS_INLINE Lanes<T> reduce_each(int count, Get get, Combine combine) {
  constexpr int kCount = Lanes<T>::kPerPart;
  using Part = typename Lanes<T>::Part;
  const auto join_parts = [&](int i, Part& v) {
    const Lanes<T>& lanes = get(i);
    v = lanes.part[0];
#pragma GCC unroll 8
    for (int j = 1; j < Lanes<T>::kParts; ++j) combine(v, lanes.part[j]);
  };
  Lanes<T> result;
#pragma GCC unroll 8
  for (int p = 0; p < Lanes<T>::kParts; ++p) {
    if (count == 1 || p * kCount >= count) {
      if (p == 0) {
        join_parts(0, result.part[0]);
        reduce_part<T, kCount>(result.part[0], combine);
      } else {
        result.part[p] = result.part[0];
      }
      continue;
    }
    Part v[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      const int which = p * kCount + i;
      join_parts(which < count ? which : 0, v[i]);
    }
    reduce_parts<T, kCount>(v, combine);
    result.part[p] = v[0];
  }
  return result;
}
template <class T, class Get>
HOOKSTATS_INLINE Lanes<T> sum_each(int count, Get get) {
  using Part = typename Lanes<T>::Part;
  return reduce_each<T>(count, get, [](Part& a, const Part& b) { a = a + b; });
}
template <class T, class Get>
HOOKSTATS_INLINE Lanes<T> min_each(int count, Get get) {
  using Part = typename Lanes<T>::Part;
  return reduce_each<T>(count, get, [](Part& a, const Part& b) { a = a < b ? a : b; });
}
template <class T, class Get>
HOOKSTATS_INLINE Lanes<T> max_each(int count, Get get) {
  using Part = typename Lanes<T>::Part;
  return reduce_each<T>(count, get, [](Part& a, const Part& b) { a = a > b ? a : b; });
}
