// The slot of each lane, as core's `slot` defines it: one class per kind of bins, which keeps in
// registers what all lanes share.

// Any bins, lane by lane.
struct SearchedSlots {
  const Bins& bins;

  template <class Real>
  HOOKSTATS_INLINE Lanes<int32_t> operator()(const Lanes<Real>& x) const {
    Real values[kLanes];
    int32_t slots[kLanes];
    store(values, x);
    for (int i = 0; i < kLanes; ++i) slots[i] = static_cast<int32_t>(slot(bins, values[i]));
    return load_lanes<int32_t>(slots);
  }
};

// The nearest edge of uniform bins. Rounding can put the value on either side of that edge alone,
// so a comparison with the edge settles the bin.
struct NearestEdge {
  const Lanes<float> lo, scale, bins;

  explicit NearestEdge(const Bins& b)
      : lo(set(b.lo)), scale(set(b.scale)), bins(set(static_cast<float>(b.bins))) {}

  HOOKSTATS_INLINE Lanes<int32_t> operator()(const Lanes<float>& x) const {
    const Lanes<float> guess = multiply_add(x - lo, scale, set(0.5f));
    // In this order a NaN becomes 0, and the cast below sees nothing it cannot represent.
    const Lanes<float> clamped = min(max(guess, set(0.0f)), bins);
    Lanes<int32_t> edge;
    HOOKSTATS_EACH_PART(int32_t) {
      edge.part[i] = __builtin_convertvector(clamped.part[i], Lanes<int32_t>::Part);
    }
    return edge;
  }
};

HOOKSTATS_INLINE Lanes<float> gather(const float* table, const Lanes<int32_t>& index) {
#if HOOKSTATS_VECTOR_BYTES == 64
  return {{_mm512_i32gather_ps(reinterpret_cast<__m512i>(index.part[0]), table, 4)}};
#elif HOOKSTATS_VECTOR_BYTES == 32
  return {{_mm256_i32gather_ps(table, reinterpret_cast<__m256i>(index.part[0]), 4),
           _mm256_i32gather_ps(table, reinterpret_cast<__m256i>(index.part[1]), 4)}};
#else
  int32_t at[kLanes];
  float values[kLanes];
  store(at, index);
  for (int i = 0; i < kLanes; ++i) values[i] = table[at[i]];
  return load_lanes<float>(values);
#endif
}

// Uniform bins whose edges are looked up.
struct StoredEdges {
  const NearestEdge nearest;
  const float* edges;

  explicit StoredEdges(const Bins& b) : nearest(b), edges(b.edges) {}

  HOOKSTATS_INLINE Lanes<int32_t> operator()(const Lanes<float>& x) const {
    const Lanes<int32_t> edge = nearest(x);
    return select(ge(x, gather(edges, edge)), edge + set(1), edge);
  }
};

// Uniform bins whose edges are computed exactly: 0.7 of the time of looking them up.
struct ComputedEdges {
  const NearestEdge nearest;
  const Lanes<float> width, hi;

  explicit ComputedEdges(const Bins& b) : nearest(b), width(set(b.width)), hi(set(b.hi)) {}

  HOOKSTATS_INLINE Lanes<int32_t> operator()(const Lanes<float>& x) const {
    const Lanes<int32_t> edge = nearest(x);
    Lanes<float> index;
    HOOKSTATS_EACH_PART(float) {
      index.part[i] = __builtin_convertvector(edge.part[i], Lanes<float>::Part);
    }
    const Lanes<float> value = multiply_add(index, width, nearest.lo);
    const Lanes<int32_t> slots = select(ge(x, value), edge + set(1), edge);
    return select(eq(x, hi), slots - set(1), slots);
  }
};

struct LogSlots {
  const int shift;
  const Lanes<int32_t> first, zero_slot;

  explicit LogSlots(const Bins& b)
      : shift(b.shift),
        first(set(1 - b.base + (b.base > 0 ? 1 : 0))),
        zero_slot(set(b.magnitudes + 1)) {}

  HOOKSTATS_INLINE Lanes<int32_t> operator()(const Lanes<float>& x) const {
    const Lanes<int32_t> pattern = bit_cast_lanes<int32_t>(abs(x));
    Lanes<int32_t> m;
    HOOKSTATS_EACH_PART(int32_t) m.part[i] = pattern.part[i] >> shift;
    m = min(max(m + first, set(1)), zero_slot);
    m = select(eq(pattern, set(0)), set(0), m);
    return select(ge(x, set(0.0f)), zero_slot + m, zero_slot - m);  // NaN goes down
  }
};

// For bins that `have_keys`: the counter is chosen by a value's upper bits, in
// half the instructions of a slot. Zeros have a key behind those of all patterns; non-finite values
// have keys that nobody asks for.
struct LogKeys {
  const int shift;
  const Lanes<int32_t> zero;

  explicit LogKeys(const Bins& b) : shift(b.shift), zero(set(static_cast<int32_t>(keys(b)))) {}

  static uint32_t keys(const Bins& b) { return 1u << (32 - b.shift); }  // of all patterns

  // -1 for the keys of non-finite values.
  static int64_t slot(const Bins& b, int64_t key) {
    const int64_t zero_slot = b.magnitudes + 1, half = keys(b) / 2;
    if (key >= 2 * half) return zero_slot;
    const int64_t magnitude = key & (half - 1);
    if (magnitude >= b.magnitudes) return -1;
    return key < half ? zero_slot + 1 + magnitude : zero_slot - 1 - magnitude;
  }

  HOOKSTATS_INLINE Lanes<int32_t> operator()(const Lanes<float>& x) const {
    const Lanes<uint32_t> bits = bit_cast_lanes<uint32_t>(x);
    Lanes<uint32_t> key;
    HOOKSTATS_EACH_PART(uint32_t) key.part[i] = bits.part[i] >> shift;
    const Lanes<int32_t> magnitude = bit_cast_lanes<int32_t>(bits & set(0x7fffffffu));
    return select(eq(magnitude, set(0)), zero, bit_cast_lanes<int32_t>(key));
  }
};

// Calls f with the fastest class for these bins.
template <class Real, class F>
HOOKSTATS_INLINE void with_slots(const Bins& bins, F&& f) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (bins.kind == BinKind::kLog) return f(LogSlots(bins));
    if (bins.exact && bins.uniform) return f(ComputedEdges(bins));
    if (bins.uniform) return f(StoredEdges(bins));
  }
  f(SearchedSlots{bins});
}
