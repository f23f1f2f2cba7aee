// Histograms: the slot of each lane, and the tables that slots are counted in.

// The slot of each lane: what core's `slot` says, without branches where bins allow.
HOOKSTATS_INLINE Lanes<int32_t> slots_of(const Bins& bins, const Lanes<double>& x) {
  double values[kLanes];
  int32_t slots[kLanes];
  store(values, x);
  for (int i = 0; i < kLanes; ++i) slots[i] = static_cast<int32_t>(slot(bins, values[i]));
  return lanes_at<int32_t>(slots);
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
  store(at, index);
  for (int i = 0; i < kLanes; ++i) values[i] = table[at[i]];
  return lanes_at<float>(values);
#endif
}

HOOKSTATS_INLINE Lanes<int32_t> linear_slots(const Bins& bins, const Lanes<float>& x) {
  if (!bins.uniform) {
    float values[kLanes];
    int32_t slots[kLanes];
    store(values, x);
    for (int i = 0; i < kLanes; ++i) slots[i] = static_cast<int32_t>(linear_slot(bins, values[i]));
    return lanes_at<int32_t>(slots);
  }
  // The nearest edge is never in doubt by more than rounding; comparing with it settles the bin.
  const Lanes<float> guess = (x - fill(bins.lo)) * fill(bins.scale) + fill(0.5f);
  // In this order a NaN becomes 0, and the cast below sees nothing it cannot represent.
  const Lanes<float> clamped = min(max(guess, fill(0.0f)), fill(static_cast<float>(bins.bins)));
  Lanes<int32_t> edge;
  HOOKSTATS_EACH_PART(int32_t) {
    edge.part[i] = __builtin_convertvector(clamped.part[i], Lanes<int32_t>::Part);
  }
  Lanes<int32_t> slots;
  if (bins.exact) {  // the edge is computed: 0.7 of the time of looking it up
    Lanes<float> rounded;
    HOOKSTATS_EACH_PART(float) {
      rounded.part[i] = __builtin_convertvector(edge.part[i], Lanes<float>::Part);
    }
    const Lanes<float> value = multiply_add(rounded, fill(bins.width), fill(bins.lo));
    slots = edge - at_least(x, value) + equal(x, fill(bins.hi));
  } else {
    slots = edge - at_least(x, gather(bins.edges, edge));
  }
  return slots;
}

HOOKSTATS_INLINE Lanes<int32_t> log_slots(const Bins& bins, const Lanes<float>& x) {
  const Lanes<int32_t> bits = bit_cast_lanes<int32_t>(x);
  const Lanes<int32_t> pattern = bits & fill(0x7fffffff);
  const Lanes<int32_t> zero_slot = fill(bins.magnitudes + 1);
  const int32_t offset = bins.base - (bins.base > 0 ? 1 : 0);
  Lanes<int32_t> m;
  HOOKSTATS_EACH_PART(int32_t) m.part[i] = pattern.part[i] >> bins.shift;
  m = m + fill(1 - offset);
  m = min(max(m, fill(1)), zero_slot);
  const Mask<float> down = less(bits, fill(0)) | less(fill(0x7f800000), pattern);  // -x and NaN
  const Lanes<int32_t> slots = select(down, zero_slot - m, zero_slot + m);
  return select(equal(pattern, fill(0)), zero_slot, slots);
}

HOOKSTATS_INLINE Lanes<int32_t> slots_of(const Bins& bins, const Lanes<float>& x) {
  return bins.kind == BinKind::kLinear ? linear_slots(bins, x) : log_slots(bins, x);
}

// Slots of this many elements are found, then counted: 4 KB, in L1 beside the elements. Counting
// each vector as it is found waits for its slots to pass through memory.
constexpr int64_t kCountBlock = 1024;

// The slots of `n` <= kCountBlock elements, each with its lane's `offset` added. `slots` has room
// for whole vectors.
template <class Real, class Source>
HOOKSTATS_INLINE void find_slots(const Bins& bins, const Source* p, int64_t n,
                                 const Lanes<int32_t>& offset, uint32_t* slots) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(slots + i, slots_of(bins, load<Real, Source>(p + i)) + offset);
  }
  if (i < n) store(slots + i, slots_of(bins, load_first<Real, Source>(p + i, n - i)) + offset);
}

// Neighbours count into copies of the counter that lie side by side: equal ones need not wait for
// each other's increments, and the copies are in the cache together.
template <int kCopies>
HOOKSTATS_INLINE void count_slots(const uint32_t* slots, int64_t n, uint16_t* counters) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (kCopies > 1) {
      // Constant data and data of mostly zeros: 0.5 to 0.65 of the time; else 3 % more.
      if (!any(lanes_at<uint32_t>(slots + i) ^ fill(slots[i]))) {
        counters[slots[i] * kCopies] += kLanes;
        continue;
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) ++counters[slots[i + j] * kCopies + j % kCopies];
  }
  for (; i < n; ++i) ++counters[slots[i] * kCopies + i % kCopies];
}

// Where `counts` may be other threads' too, additions are atomic. Integer additions commute: the
// counts do not depend on which thread comes first.
struct Target {
  int64_t* counts;
  int64_t times;  // how often each element is counted
  bool shared;
  int64_t* marks = nullptr;  // see core/marks.h; or null

  void add(int64_t slot, int64_t count) const {
    if (shared) {
      __atomic_fetch_add(&counts[slot], count * times, __ATOMIC_RELAXED);
    } else {
      counts[slot] += count * times;
    }
  }

  // Marks `slot` and its neighbours, before or after it is counted in.
  HOOKSTATS_INLINE void mark(int64_t slot) const {
    if (marks == nullptr) return;
    int64_t* const word = marks + 1 + slot / kWordSlots;
    const int64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    const auto bit = static_cast<int64_t>(uint64_t{1} << (slot / kMarkSlots % 64));
    if ((old & bit) != 0) return;
    if (shared) {
      __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
    } else {
      *word = old | bit;
    }
  }

  // `sums` are of the slots from `slot` on, of which there are `slots` in all.
  HOOKSTATS_INLINE void add_lanes(int64_t slot, int64_t slots, const Lanes<uint64_t>& sums) const {
    if (!shared && times == 1 && slot + kLanes <= slots) {
      store(counts + slot, lanes_at<uint64_t>(counts + slot) + sums);
      return;
    }
    uint64_t values[kLanes];
    store(values, sums);
    for (int64_t i = 0; i < kLanes && slot + i < slots; ++i) {
      if (values[i] != 0) add(slot + i, static_cast<int64_t>(values[i]));
    }
  }
};

constexpr int64_t kMostCounted = 65535;  // what a 16-bit counter holds

// One histogram of runs of elements. 16-bit counters keep four copies of 4096 slots in 32 KB, of
// which few lines are touched; they are emptied before they can overflow, and all zero between
// uses, so that nobody has to clear them.
class Histogram {
 public:
  static constexpr int kCopies = 4;

  static int64_t counters(const Bins& bins) {
    return ceil_div(bins.slots(), kLanes) * kLanes * kCopies;
  }

  Histogram() = default;

  // `elements` are expected. Few are counted where they belong, as emptying counters would cost
  // more; so are those of histograms too large for any cache.
  Histogram(const Bins& bins, uint16_t* counters, const Target& target, int64_t elements)
      : bins_(&bins), counters_(counters), target_(target) {
    if (bins.slots() > kMostCounted || (!target.shared && elements < bins.slots() / 2)) {
      counters_ = nullptr;
    }
  }

  template <class Real, class Source>
  void add(const Source* p, int64_t n) {
    alignas(64) uint32_t slots[kCountBlock];
    for (int64_t i = 0; i < n; i += kCountBlock) {
      const int64_t block = n - i < kCountBlock ? n - i : kCountBlock;
      find_slots<Real, Source>(*bins_, p + i, block, Lanes<int32_t>{}, slots);
      if (counters_ == nullptr) {
        for (int64_t j = 0; j < block; ++j) {
          target_.mark(slots[j]);
          target_.add(slots[j], 1);
        }
        continue;
      }
      counted_ += block;
      if (counted_ > kMostCounted) {
        empty();
        counted_ = block;
      }
      count_slots<kCopies>(slots, block, counters_);
    }
  }

  void empty() {
    if (counters_ == nullptr) return;
    static_assert(kLanes == kMarkSlots);
    const int64_t slots = bins_->slots();
    const Lanes<uint64_t> alternate = fill(uint64_t{0x0000ffff0000ffff});
    const Lanes<uint64_t> low = fill(uint64_t{0x00000000ffffffff});
    for (int64_t slot = 0; slot < slots; slot += kLanes) {
      Lanes<uint64_t> sums = lanes_at<uint64_t>(counters_ + slot * kCopies);  // of four copies
      if (!any(sums)) continue;
      sums = (sums & alternate) + (shift_right<16>(sums) & alternate);
      sums = (sums & low) + shift_right<32>(sums);
      target_.mark(slot);
      target_.add_lanes(slot, slots, sums);
      __builtin_memset(counters_ + slot * kCopies, 0, sizeof sums);
    }
  }

 private:
  const Bins* bins_ = nullptr;
  uint16_t* counters_ = nullptr;  // null: each element goes to the target
  Target target_{};
  int64_t counted_ = 0;  // since the counters were empty
};

// Histograms side by side, one a lane of rows of lanes.
class RowHistograms {
 public:
  static int64_t counters(const Bins& bins, int64_t lanes) { return bins.slots() * lanes; }

  RowHistograms() = default;
  RowHistograms(const Bins& bins, uint16_t* counters) : bins_(&bins), counters_(counters) {}

  template <class Real, class Source>
  void add(const Source* p, int64_t n) {
    alignas(64) uint32_t slots[kRowBlock];
    const int32_t size = static_cast<int32_t>(bins_->slots());
    Lanes<int32_t> offset = iota<int32_t>() * fill(size);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      store(slots + i, slots_of(*bins_, load<Real, Source>(p + i)) + offset);
      offset = offset + fill(kLanes * size);
    }
    if (i < n) store(slots + i, slots_of(*bins_, load_first<Real, Source>(p + i, n - i)) + offset);
    count_slots<1>(slots, n, counters_);
    ++counted_;
  }

  // Can this many rows more be counted?
  bool has_room(int64_t rows) const { return counted_ + rows <= kMostCounted; }

  // `target_of(lane)` says where each lane's counts go.
  template <class TargetOf>
  void empty(int64_t lanes, TargetOf&& target_of) {
    if (counted_ == 0) return;
    const int64_t slots = bins_->slots();
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const Target target = target_of(lane);
      const uint16_t* row = counters_ + lane * slots;
      int64_t slot = 0;
      for (; slot + kLanes <= slots; slot += kLanes) {
        target.add_lanes(slot, slots, convert_halves<uint64_t>(row + slot));
      }
      for (; slot < slots; ++slot) {
        if (row[slot] != 0) target.add(slot, row[slot]);
      }
    }
    __builtin_memset(counters_, 0, static_cast<size_t>(counters(*bins_, lanes)) * sizeof(uint16_t));
    counted_ = 0;
  }

 private:
  const Bins* bins_ = nullptr;
  uint16_t* counters_ = nullptr;
  int64_t counted_ = 0;  // rows, since the counters were empty
};

// At least `count` counters of a thread's own, all zero.
inline uint16_t* zero_counters(std::vector<uint16_t>& storage, int64_t count) {
  constexpr size_t kLine = 64 / sizeof(uint16_t);
  if (storage.size() < static_cast<size_t>(count) + kLine) {
    storage.assign(static_cast<size_t>(count) + kLine, 0);
  }
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  return storage.data() + (64 - address % 64) % 64 / sizeof(uint16_t);
}
