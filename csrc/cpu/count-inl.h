// Histograms: the slot of each lane, and the tables that slots are counted in.

// The slot of each lane: what core's `slot` says, without branches where bins allow.
HOOKSTATS_INLINE Lanes<int32_t> slots_of(const Bins& bins, const Lanes<double>& x) {
  double values[kLanes];
  int32_t slots[kLanes];
  __builtin_memcpy(values, &x, sizeof values);
  for (int i = 0; i < kLanes; ++i) slots[i] = static_cast<int32_t>(slot(bins, values[i]));
  Lanes<int32_t> r;
  __builtin_memcpy(&r, slots, sizeof r);
  return r;
}

HOOKSTATS_INLINE Lanes<float> gather(const float* table, const Lanes<int32_t>& index) {
#if HOOKSTATS_VECTOR_BYTES == 64
  return {{_mm512_i32gather_ps(reinterpret_cast<__m512i>(index.part[0]), table, 4)}};
#elif HOOKSTATS_VECTOR_BYTES == 32
  return {{_mm256_i32gather_ps(table, reinterpret_cast<__m256i>(index.part[0]), 4),
           _mm256_i32gather_ps(table, reinterpret_cast<__m256i>(index.part[1]), 4)}};
#else
  int32_t at[kLanes];
  float values[kLanes];
  __builtin_memcpy(at, &index, sizeof at);
  for (int i = 0; i < kLanes; ++i) values[i] = table[at[i]];
  Lanes<float> r;
  __builtin_memcpy(&r, values, sizeof r);
  return r;
#endif
}

HOOKSTATS_INLINE Lanes<int32_t> linear_slots(const Bins& bins, const Lanes<float>& x) {
  if (!bins.uniform) {
    float values[kLanes];
    int32_t slots[kLanes];
    __builtin_memcpy(values, &x, sizeof values);
    for (int i = 0; i < kLanes; ++i) slots[i] = static_cast<int32_t>(linear_slot(bins, values[i]));
    Lanes<int32_t> r;
    __builtin_memcpy(&r, slots, sizeof r);
    return r;
  }
  // The nearest edge is never in doubt by more than rounding; comparing with it settles the bin.
  const Lanes<float> guess = (x - fill(bins.lo)) * fill(bins.scale) + fill(0.5f);
  // In this order a NaN becomes 0, and the cast below sees nothing it cannot represent.
  const Lanes<float> clamped = min(max(guess, fill(0.0f)), fill(static_cast<float>(bins.bins)));
  Lanes<int32_t> edge;
  HOOKSTATS_EACH_PART(int32_t) {
    edge.part[i] = __builtin_convertvector(clamped.part[i], Lanes<int32_t>::Part);
  }
  const Mask<float> below = less(x, gather(bins.edges, edge)) | unequal(x, x);
  return edge + below + fill(1);
}

HOOKSTATS_INLINE Lanes<int32_t> log_slots(const Bins& bins, const Lanes<float>& x) {
  const Lanes<int32_t> bits = bit_cast_lanes<Lanes<int32_t>>(x);
  const int32_t zero_slot = bins.magnitudes + 1;
  const int32_t offset = bins.base - (bins.base > 0 ? 1 : 0);
  Lanes<int32_t> slots;
  HOOKSTATS_EACH_PART(int32_t) {
    const auto pattern = bits.part[i] & 0x7fffffff;
    auto m = (pattern >> bins.shift) - offset;
    m = m < 0 ? 0 - m + m : m;
    m = m > bins.magnitudes ? bins.magnitudes - m + m : m;
    const auto negative = bits.part[i] >> 31;  // 0 or -1
    auto s = zero_slot + (((m + 1) ^ negative) - negative);
    s = pattern == 0 ? zero_slot - s + s : s;
    slots.part[i] = pattern > 0x7f800000 ? s - s : s;
  }
  return slots;
}

HOOKSTATS_INLINE Lanes<int32_t> slots_of(const Bins& bins, const Lanes<float>& x) {
  return bins.kind == BinKind::kLinear ? linear_slots(bins, x) : log_slots(bins, x);
}

// `lane_offset` leads each lane to its table: the channel's, or one of several copies, without
// which equal neighbours would wait for each other's increments.
template <class Real, class Source, class Count>
void count(const Bins& bins, const Source* p, int64_t n, Count* table,
           const Lanes<int32_t>& lane_offset) {
  int32_t index[kLanes];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes<int32_t> at = slots_of(bins, load<Real, Source>(p + i)) + lane_offset;
    __builtin_memcpy(index, &at, sizeof index);
    for (int j = 0; j < kLanes; ++j) ++table[index[j]];
  }
  if (i == n) return;
  const Lanes<int32_t> at = slots_of(bins, load_first<Real, Source>(p + i, n - i)) + lane_offset;
  __builtin_memcpy(index, &at, sizeof index);
  for (int j = 0; j < n - i; ++j) ++table[index[j]];
}

// `rows` histograms, in `copies` copies that lie `size` counters apart.
template <class Count>
struct CountTable {
  const Bins& bins;
  Count* data;
  int64_t rows;
  int32_t copies;  // a power of two

  int64_t size() const { return rows * bins.slots(); }

  // Lane j counts into copy j mod copies of row `row`.
  template <class Real, class Source>
  void count_run(const Source* p, int64_t n, int64_t row) {
    Lanes<int32_t> offset = iota<int32_t>();
    HOOKSTATS_EACH_PART(int32_t) {
      offset.part[i] = (offset.part[i] & (copies - 1)) * static_cast<int32_t>(size());
    }
    count<Real, Source>(bins, p, n, data + row * bins.slots(), offset);
  }

  // Element i is of row i.
  template <class Real, class Source>
  void count_row(const Source* p, int64_t n) {
    const int32_t slots = static_cast<int32_t>(bins.slots());
    Lanes<int32_t> offset = iota<int32_t>();
    HOOKSTATS_EACH_PART(int32_t) offset.part[i] *= slots;
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t lanes = n - i < kLanes ? n - i : kLanes;
      count<Real, Source>(bins, p + i, lanes, data + i * slots, offset);
    }
  }

  // Integer additions commute: the counts do not depend on which thread comes first.
  void add_to(int64_t* counts, int64_t row, int64_t times) const {
    const int64_t slots = bins.slots();
    for (int64_t s = 0; s < slots; ++s) {
      int64_t sum = 0;
      for (int copy = 0; copy < copies; ++copy) sum += data[copy * size() + row * slots + s];
      if (sum != 0) __atomic_fetch_add(&counts[s], sum * times, __ATOMIC_RELAXED);
    }
  }
};

template <class Count>
CountTable<Count> cleared_table(std::vector<Count>& storage, const Bins& bins, int64_t rows,
                                int32_t copies) {
  const size_t needed = static_cast<size_t>(rows * bins.slots() * copies);
  if (storage.size() < needed) storage.resize(needed);
  __builtin_memset(storage.data(), 0, needed * sizeof(Count));
  return {bins, storage.data(), rows, copies};
}

using TensorTable = CountTable<int64_t>;
using ChannelTable = CountTable<uint32_t>;  // half the cache; a task has far fewer than 2^32

// Copies pay where they stay in L1 and their clearing is small beside the counting.
inline int32_t table_copies(const Bins& bins, int64_t elements) {
  return bins.slots() <= 4096 && elements >= 8 * bins.slots() ? 4 : 1;
}
