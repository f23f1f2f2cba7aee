// Reductions over lanes, of one vector or of many together, as trees of fixed shape.

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

// Reduces one vector: all its lanes are the result.
template <class T, int kWidth, class Combine>
HOOKSTATS_INLINE void reduce_part(typename Lanes<T>::Part& v, Combine combine) {
  constexpr int kCount = Lanes<T>::kPerPart, kBlock = 16 / static_cast<int>(sizeof(T));
  combine_halves<T, kWidth, (kWidth > kBlock ? kCount : kBlock)>(v, v, combine);
  if constexpr (kWidth > 2) reduce_part<T, kWidth / 2>(v, combine);
}

// Lane i is what `combine` makes of the lanes of get(i), for i < count; the others are as some of
// these. Together they take fewer instructions than one by one. `get` should return a reference to
// memory, because GCC copies a value (see `load_lanes`).
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
