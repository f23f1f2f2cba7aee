// Sixteen elements of a storage type, from memory, as lanes of a computing type.

// What memory is prefetched for. More of it can be under way to L2 than to L1.
enum class Use { kLater, kSoon, kWriting };

// Asks for the memory `ahead` elements from p, which may be anywhere. Call it only from what is
// always inlined: GCC drops calls of functions that do nothing but prefetch.
template <Use kUse = Use::kLater, class T>
HOOKSTATS_INLINE void prefetch(const T* p, int64_t ahead) {
  constexpr int kIntoL1 = 3, kIntoL2 = 2;
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead) * sizeof(T);
  __builtin_prefetch(reinterpret_cast<const void*>(address), kUse == Use::kWriting,
                     kUse == Use::kLater ? kIntoL2 : kIntoL1);
}

template <class Real, class Source>
struct Load;

template <class Real>
struct Load<Real, Real> {
  static HOOKSTATS_INLINE Lanes<Real> all(const Real* p) { return load_lanes<Real>(p); }
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
#elif HOOKSTATS_VECTOR_BYTES == 32
    // One instruction a register, where GCC makes five of __builtin_convertvector.
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    const Lanes<int32_t> bits = {
        {(Lanes<int32_t>::Part)_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)),
         (Lanes<int32_t>::Part)_mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1)) }};
    return bit_cast_lanes<float>(shift_left<16>(bits));
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
        bit_cast_lanes<int32_t>(bit_cast_lanes<float>(magnitude) * set(0x1p112f));
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

template <class Source>
struct Load<double, Source> {
  static HOOKSTATS_INLINE Lanes<double> all(const Source* p) {
    return to_double(Load<float, Source>::all(p));
  }
};
template <>
struct Load<double, double> {
  static HOOKSTATS_INLINE Lanes<double> all(const double* p) { return load_lanes<double>(p); }
};

template <class Real, class Source>
HOOKSTATS_INLINE Lanes<Real> load(const Source* p) {
  return Load<Real, Source>::all(p);
}

// The first `count` lanes, zeros behind; nothing is read behind them.
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

template <class Real, class Source>
HOOKSTATS_INLINE Lanes<Real> load_up_to(const Source* p, int64_t count) {
  return count == kLanes ? load<Real, Source>(p) : load_first<Real, Source>(p, count);
}
