// Sixteen lanes of a type on whichever instruction set this file is included for.
//
// HOOKSTATS_VECTOR_BYTES is the size of a register. No include guard, on purpose.
// GCC/Clang vector extensions do the arithmetic; intrinsics cover what they cannot express.

constexpr int kRegisters = HOOKSTATS_VECTOR_BYTES == 64 ? 32 : 16;  // of an x86 processor

#if !defined(HOOKSTATS_INLINE)
#define HOOKSTATS_INLINE inline __attribute__((always_inline))
#endif

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
HOOKSTATS_INLINE Lanes<T> set(T value) {
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
HOOKSTATS_COMPARE(eq, ==)
HOOKSTATS_COMPARE(ne, !=)
HOOKSTATS_COMPARE(lt, <)
HOOKSTATS_COMPARE(ge, >=)
#undef HOOKSTATS_COMPARE

template <class T>
HOOKSTATS_INLINE Lanes<T> select(const Mask<T>& mask, const Lanes<T>& yes, const Lanes<T>& no) {
  Lanes<T> r;
  HOOKSTATS_EACH_PART(T) r.part[i] = mask.part[i] ? yes.part[i] : no.part[i];
  return r;
}

template <class T>
HOOKSTATS_INLINE Lanes<T> min(const Lanes<T>& a, const Lanes<T>& b) {
  return select(lt(a, b), a, b);
}

template <class T>
HOOKSTATS_INLINE Lanes<T> max(const Lanes<T>& a, const Lanes<T>& b) {
  return select(lt(b, a), a, b);
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
HOOKSTATS_INLINE Lanes<T> load_lanes(const void* p) {
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
  return bit_cast_lanes<T>(bit_cast_lanes<typename MaskOf<T>::type>(a) & set(kMagnitude));
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
  count_lanes(counter, eq(x, set(0.0f)));
}
#endif
HOOKSTATS_INLINE void count_zeros(Lanes<int64_t>& counter, const Lanes<double>& x) {
  count_lanes(counter, eq(x, set(0.0)));
}

template <class T>
HOOKSTATS_INLINE Lanes<T> iota() {
  T values[kLanes];
  for (int i = 0; i < kLanes; ++i) values[i] = static_cast<T>(i);
  return load_lanes<T>(values);
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

template <class T>
HOOKSTATS_INLINE Mask<T> first_lanes(int64_t count) {
  using Int = typename MaskOf<T>::type;
  Mask<T> r;
  const Lanes<Int> index = iota<Int>();
  HOOKSTATS_EACH_PART(Int) r.part[i] = index.part[i] < static_cast<Int>(count);
  return r;
}

// The lanes of a register as they fill two registers of a type twice as wide. Lanes are picked by
// halves: one by one GCC picks them with an instruction each, and a detour over memory would keep
// the sums that come this way in memory, in the loop too, which took 2.5 times as long.
template <class To, class Half, class Part, int... kLane>
HOOKSTATS_INLINE void promote_part(const Part& x, typename Lanes<To>::Part& low,
                                   typename Lanes<To>::Part& high,
                                   std::integer_sequence<int, kLane...>) {
  constexpr int kHalf = static_cast<int>(sizeof...(kLane));
  const Half low_half = __builtin_shufflevector(x, x, kLane...);
  const Half high_half = __builtin_shufflevector(x, x, (kLane + kHalf)...);
  low = __builtin_convertvector(low_half, typename Lanes<To>::Part);
  high = __builtin_convertvector(high_half, typename Lanes<To>::Part);
}
template <class To, class From>
HOOKSTATS_INLINE Lanes<To> promote_lanes(const Lanes<From>& x) {
  typedef From Half __attribute__((vector_size(HOOKSTATS_VECTOR_BYTES / 2)));
  Lanes<To> r;
  HOOKSTATS_EACH_PART(From) {
    promote_part<To, Half>(x.part[i], r.part[2 * i], r.part[2 * i + 1],
                           std::make_integer_sequence<int, Lanes<To>::kPerPart>{});
  }
  return r;
}

// The lanes in the opposite order.
template <class Part, int... kLane>
HOOKSTATS_INLINE Part reverse_part(const Part& x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (static_cast<int>(sizeof...(kLane)) - 1 - kLane)...);
}
template <class T>
HOOKSTATS_INLINE Lanes<T> reverse(const Lanes<T>& x) {
  Lanes<T> r;
  HOOKSTATS_EACH_PART(T) {
    r.part[i] = reverse_part(x.part[Lanes<T>::kParts - 1 - i],
                             std::make_integer_sequence<int, Lanes<T>::kPerPart>{});
  }
  return r;
}

HOOKSTATS_INLINE Lanes<double> to_double(const Lanes<float>& x) { return promote_lanes<double>(x); }
HOOKSTATS_INLINE Lanes<double> to_double(const Lanes<double>& x) { return x; }

HOOKSTATS_INLINE Lanes<int64_t> to_int64(const Lanes<int32_t>& x) {
  return promote_lanes<int64_t>(x);
}
HOOKSTATS_INLINE Lanes<int64_t> to_int64(const Lanes<int64_t>& x) { return x; }
HOOKSTATS_INLINE Lanes<double> to_double(const Lanes<int64_t>& x) {
  Lanes<double> r;
  HOOKSTATS_EACH_PART(double) {
    r.part[i] = __builtin_convertvector(x.part[i], Lanes<double>::Part);
  }
  return r;
}
