// Histograms: the tables in which slots are counted.

// At least `count` counters of a thread's own, all zero.
inline uint16_t* zero_counters(std::vector<uint16_t>& storage, int64_t count) {
  constexpr size_t kLine = 64 / sizeof(uint16_t);
  if (storage.size() < static_cast<size_t>(count) + kLine) {
    storage.assign(static_cast<size_t>(count) + kLine, 0);
  }
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  return storage.data() + (64 - address % 64) % 64 / sizeof(uint16_t);
}

// Slots of this many elements are found, then counted: 4 KB, in L1 beside the elements. Counting
// each vector as it is found waits for its slots to pass through memory.
constexpr int64_t kCountBlock = 1024;

// Which counter each lane counts into: a slot has kCopies counters side by side, and the lane's
// place among its neighbours chooses one. Equal neighbours need not wait for each other's
// increments, and the copies are in the cache together.
template <int kCopies>
HOOKSTATS_INLINE Lanes<int32_t> copy_of_lane() {
  return iota<int32_t>() & set(kCopies - 1);
}

// The counters of `n` <= kCountBlock elements, each with its lane's `offset` added. `counters` has
// room for whole vectors.
template <int kCopies, class Real, class Source, class Slots>
HOOKSTATS_INLINE void find_counters(const Slots& slots, const Source* p, int64_t n,
                                    const Lanes<int32_t>& offset, uint32_t* counters) {
  const auto counter = [&](const Lanes<Real>& x) { return slots(x) * set(kCopies) + offset; };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(counters + i, counter(load<Real, Source>(p + i)));
  if (i < n) store(counters + i, counter(load_first<Real, Source>(p + i, n - i)));
}

// Whether kLanes elements count into kCopies counters in turn, as those of one slot do. Where some
// were left out, the first may be any copy, and what follows the last copy is of the next slot.
template <int kCopies>
HOOKSTATS_INLINE bool in_turn(const uint32_t* which) {
  const Lanes<uint32_t> first = set(which[0]) + bit_cast_lanes<uint32_t>(copy_of_lane<kCopies>());
  return !any(load_lanes<uint32_t>(which) ^ first);
}

// Counts these elements, given the first of the counters.
template <int kCopies>
HOOKSTATS_INLINE void count_in_turn(uint16_t* counters) {
#pragma GCC unroll 4
  for (int i = 0; i < kCopies; ++i) counters[i] += kLanes / kCopies;
}

// The most that any counter counts of this many vectors.
template <int kCopies>
constexpr int64_t most_of_one(int64_t vectors) {
  return vectors * (kLanes / kCopies);
}

// Counts the first `n` elements of `p` into `counters[which[i]]`, and meanwhile prefetches the
// elements `ahead`: counting leaves memory idle, while the sums wait for memory. This takes 0.64 to
// 0.88 of the time in fp32, from memory.
template <int kCopies, class Source>
HOOKSTATS_INLINE void count(const Source* p, int64_t n, int64_t ahead, const uint32_t* which,
                            uint16_t* counters) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    prefetch(p + i, ahead);
    if constexpr (kCopies > 1) {
      // Takes 0.5 to 0.65 of the time for constant data and mostly zeros, else 3 % more.
      if (in_turn<kCopies>(which + i)) {
        count_in_turn<kCopies>(counters + which[i]);
        continue;
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) ++counters[which[i + j]];
  }
  for (; i < n; ++i) ++counters[which[i]];
}

// Which parts of a table have any of the first `n` counters of `which`: bit i stands for those from
// i << `shift` on. `which` has room for whole vectors, as `find_counters` leaves them.
HOOKSTATS_INLINE uint32_t parts_of(const uint32_t* which, int64_t n, int shift) {
  const Lanes<uint32_t> one = set(1u);
  Lanes<uint32_t> bits = set(0u);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Lanes<uint32_t> counters = load_lanes<uint32_t>(which + j);
    HOOKSTATS_EACH_PART(uint32_t) bits.part[i] |= one.part[i] << (counters.part[i] >> shift);
  }
  uint32_t lanes[kLanes], parts = 0;
  store(lanes, bits);
  for (const uint32_t lane : lanes) parts |= lane;
  return parts;
}

// Calls f(first, count) on pieces, of count <= kLanes elements, that cover what `sample` counts of
// the `n` elements from `position` on; `first` is relative to `position`.
template <class F>
HOOKSTATS_INLINE void each_sampled(const Sample& sample, int64_t position, int64_t n, F&& f) {
  const int64_t end = position + n;
  const int64_t groups = sample.groups();
  for (int64_t g = position / (kSampleBlock * sample.every); g < groups; ++g) {
    const int64_t begin = sample.block_of(g) * kSampleBlock;
    if (begin >= end) return;
    const int64_t last = begin + kSampleBlock < end ? begin + kSampleBlock : end;
    for (int64_t i = begin < position ? position : begin; i < last; i += kLanes) {
      f(i - position, last - i < kLanes ? last - i : kLanes);
    }
  }
}

// Stores the counters of the finite ones among the first `count` elements `x`, one after another,
// at `to`, which has room for kLanes; returns how many there are.
template <class Real>
HOOKSTATS_INLINE int64_t keep_finite(const Lanes<Real>& x, const Lanes<int32_t>& counters,
                                     int64_t count, uint32_t* to) {
  store(to, counters);
  const Mask<Real> nonfinite = ne(x - x, set(Real{0}));
  if (!any(nonfinite)) return count;
  typename MaskOf<Real>::type bad[kLanes];
  store(bad, nonfinite);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[kept] = to[i];
    kept += bad[i] == 0;
  }
  return kept;
}

constexpr int64_t kMostCounted = 65535;  // what a 16-bit counter holds

// One histogram of runs of elements. 16-bit counters keep four copies of 4096 slots in 32 KB, of
// which few lines are touched; they are emptied before they can overflow, and all zero between
// uses, so that nobody has to clear them.
class Histogram {
 public:
  static constexpr int kCopies = 4;
  // Whether all elements of a plan `by_key` are counted by `Whole`. Elsewhere registers are too
  // few, and zeros take too long to leave out.
  static constexpr bool kCountsWithSums = HOOKSTATS_VECTOR_BYTES == 64;

  static int64_t counters(const Bins& bins) {
    const int64_t slots = have_keys(bins) ? LogKeys::keys(bins) + 1 : bins.slots();
    return ceil_div(slots, kLanes) * kLanes * kCopies;
  }

  Histogram() = default;

  // `elements` are expected, of which `sample` is counted; `floats` says whether as floats,
  // `by_key` whether all of them by keys. If they are few, they are counted in the target itself.
  Histogram(const Bins& bins, uint16_t* counters, const Target& target, int64_t elements,
            const Sample& sample, bool floats, bool by_key = false)
      : bins_(&bins), counters_(counters), target_(target), sample_(sample) {
    const int64_t counted = elements / sample.every;
    if (bins.slots() > kMostSlots || (!target.shared && !worth_counters(bins, counted))) {
      counters_ = nullptr;
    }
    const bool sampled = floats && !sample.all() && have_keys(bins) && counters_ != nullptr;
    by_key_ = by_key || sampled;
    if (counters_ == nullptr || !sample.all() || elements > kFew) return;
    touched_ = 0;
    part_shift_ = kLeastShift;
    while (Histogram::counters(bins) > int64_t{32} << part_shift_) ++part_shift_;
  }

  // `ahead` is by how many elements to prefetch; `position` is that of p[0] (core/sample.h).
  template <class Real, class Source>
  void add(const Source* p, int64_t n, int64_t ahead, int64_t position) {
    if (!sample_.all()) return add_sample<Real>(p, n, position);
    with_slots_or_keys<Real>([&](const auto& slots) {
      alignas(64) uint32_t which[kCountBlock];
      for (int64_t i = 0; i < n; i += kCountBlock) {
        const int64_t block = n - i < kCountBlock ? n - i : kCountBlock;
        if (counters_ == nullptr) {
          find_counters<1, Real>(slots, p + i, block, set(0), which);
          for (int64_t j = 0; target_.occupancy != nullptr && j < block; ++j)
            target_.mark(which[j]);
          for (int64_t j = 0; j < block; ++j) target_.add(which[j], 1);
          continue;
        }
        find_counters<kCopies, Real>(slots, p + i, block, copy_of_lane<kCopies>(), which);
        const int64_t most = most_of_one<kCopies>(ceil_div(block, kLanes));
        if (!has_room(most)) empty();
        take_room(most);
        if (part_shift_ != kWhole) touched_ |= parts_of(which, block, part_shift_);
        count<kCopies>(p + i, block, ahead, which, counters_);
      }
    });
  }

  // What `Whole` needs to count with sums.
  const Bins& bins() const { return *bins_; }
  uint16_t* counters() const { return counters_; }
  // Whether every counter can count `n` more.
  bool has_room(int64_t n) const { return counted_ + n <= kMostCounted; }
  void take_room(int64_t n) { counted_ += n; }

  // The counters of `n` of `elements` that sums have seen will be incremented; the others were
  // zero. There is room for them.
  void note(const uint32_t* which, int64_t n, int64_t elements) {
    zeros_ += elements - n;
    if (part_shift_ != kWhole) touched_ |= parts_of(which, n, part_shift_);
  }
  // Nothing of it may be waiting.
  void empty() {
    if (counters_ == nullptr) return;
    counted_ = 0;
    const int64_t slots = bins_->slots();
    each_part([&](int64_t i, const Lanes<uint64_t>&)
                  __attribute__((always_inline)) { prefetch_target(i); });
    if (by_key_) {
      if (zeros_ != 0) add_key(LogKeys::keys(*bins_), zeros_);
      zeros_ = 0;
      take_each([&](int64_t key, const Lanes<uint64_t>& sums) { add_keys(key, sums); });
    } else {
      take_each([&](int64_t slot, const Lanes<uint64_t>& sums) {
        target_.mark(slot);  // kOccupancySlots of them
        target_.add_lanes(slot, slots, sums);
      });
    }
  }

 private:
  // Counts `count` elements of a key.
  void add_key(int64_t key, int64_t count) const {
    const int64_t slot = LogKeys::slot(*bins_, key);
    if (slot < 0) return;
    target_.mark(slot);
    target_.add(slot, count);
  }

  // Calls f(i, counters) on all copies of the counters of kLanes slots or keys from the i-th on,
  // unless all are zero.
  template <class F>
  HOOKSTATS_INLINE void each_part(F&& f) const {
    const int64_t size = by_key_ ? LogKeys::keys(*bins_) + 1 : bins_->slots();
    const int64_t part = (int64_t{1} << part_shift_) / kCopies;
    for (uint32_t left = touched_; left != 0; left &= left - 1) {
      const int64_t begin = __builtin_ctz(left) * part;
      const int64_t end = size - begin < part ? size : begin + part;
      for (int64_t i = begin; i < end; i += kLanes) {
        const Lanes<uint64_t> counters = load_lanes<uint64_t>(counters_ + i * kCopies);
        if (any(counters)) f(i, counters);
      }
    }
  }

  // Calls f(i, sums) on the sums of these copies, and makes them zero.
  template <class F>
  HOOKSTATS_INLINE void take_each(F&& f) {
    const Lanes<uint64_t> alternate = set(uint64_t{0x0000ffff0000ffff});
    const Lanes<uint64_t> low = set(uint64_t{0x00000000ffffffff});
    each_part([&](int64_t i, const Lanes<uint64_t>& counters) {
      const Lanes<uint64_t> sums = (counters & alternate) + (shift_right<16>(counters) & alternate);
      f(i, (sums & low) + shift_right<32>(sums));
      __builtin_memset(counters_ + i * kCopies, 0, sizeof sums);
    });
    touched_ = part_shift_ == kWhole;
  }

  // `sums` are of the keys from `key` on.
  HOOKSTATS_INLINE void add_keys(int64_t key, const Lanes<uint64_t>& sums) const {
    const int64_t first = LogKeys::slot(*bins_, key),
                  last = LogKeys::slot(*bins_, key + kLanes - 1);
    const bool finite = first >= 0 && last >= 0;
    if (finite && (last - first == kLanes - 1 || first - last == kLanes - 1)) {
      const int64_t slot = first < last ? first : last;
      const Lanes<uint64_t> of_slots = first < last ? sums : reverse(sums);
      target_.mark_lanes(slot, of_slots);
      return target_.add_lanes(slot, bins_->slots(), of_slots);
    }
    uint64_t values[kLanes];
    store(values, sums);
    for (int64_t i = 0; i < kLanes; ++i) {
      if (values[i] != 0) add_key(key + i, static_cast<int64_t>(values[i]));
    }
  }

  // Calls f with what finds the counters of all elements, but for those that `Whole` counts.
  template <class Real, class F>
  HOOKSTATS_INLINE void with_slots_or_keys(F&& f) const {
    if constexpr (std::is_same_v<Real, float> && !kCountsWithSums) {
      if (by_key_) return f(LogKeys(*bins_));
    }
    with_slots<Real>(*bins_, f);
  }

  // Calls f with what finds counters, or slots where elements go to the target.
  template <class Real, class F>
  HOOKSTATS_INLINE void with_finder(F&& f) const {
    if constexpr (std::is_same_v<Real, float>) {
      if (by_key_) return f(FindKeys{LogKeys(*bins_)});
    }
    const int copies = counters_ == nullptr ? 1 : kCopies;
    with_slots<Real>(*bins_, [&](const auto& slots) {
      f(FindSlots<std::decay_t<decltype(slots)>>{slots, set(copies),
                                                 copy_of_lane<kCopies>() & set(copies - 1)});
    });
  }

  // These store the counters of the finite ones of the first n lanes at `which`, which has room for
  // all lanes, and return how many there are.
  struct FindKeys {
    const LogKeys keys;

    HOOKSTATS_INLINE int64_t operator()(const Lanes<float>& x, int64_t n, uint32_t* which) const {
      store(which, keys(x) * set(kCopies) + copy_of_lane<kCopies>());
      return n;
    }
  };
  template <class Slots>
  struct FindSlots {
    const Slots& slots;
    const Lanes<int32_t> copies, copy;

    template <class Real>
    HOOKSTATS_INLINE int64_t operator()(const Lanes<Real>& x, int64_t n, uint32_t* which) const {
      return keep_finite(x, slots(x) * copies + copy, n, which);
    }
  };

  template <class Real, class Source>
  void add_sample(const Source* p, int64_t n, int64_t position) {
    with_finder<Real>([&](const auto& find) {
      alignas(64) uint32_t which[kSampleBlock + kLanes];
      uint32_t* end = which;
      each_sampled(sample_, position, n, [&](int64_t first, int64_t count) {
        end += find(load_up_to<Real, Source>(p + first, count), count, end);
        if (end - which <= kSampleBlock) return;
        count_found(which, end - which);
        end = which;
      });
      count_found(which, end - which);
    });
  }

  void count_found(const uint32_t* which, int64_t n) {
    if (counters_ == nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        target_.mark(which[i]);
        target_.add(which[i], 1);
      }
      return;
    }
    if (!has_room(n)) empty();
    take_room(n);
    for (int64_t i = 0; i < n; ++i) ++counters_[which[i]];
  }

  // Prefetches where kLanes slots or keys from `i` on are added: with many sites, the state is in
  // no cache, and an addition that is atomic waits for its line.
  HOOKSTATS_INLINE void prefetch_target(int64_t i) const {
    const int64_t first = by_key_ ? LogKeys::slot(*bins_, i) : i;
    if (first < 0) return;
    const int64_t sign = !by_key_ || first > bins_->magnitudes ? 1 : -1;
    for (const int j : {0, kLanes / 2, kLanes - 1}) {
      prefetch<Use::kWriting>(target_.counts + first, sign * j);
    }
  }

  static constexpr int64_t kFew = 8192;  // elements of which it is worth noting where they count
  static constexpr int kLeastShift = 6;  // a part has whole vectors
  static_assert(1 << kLeastShift == kLanes * kCopies);
  static constexpr int kWhole = 30;  // one part has all counters

  const Bins* bins_ = nullptr;
  uint16_t* counters_ = nullptr;  // null: each element goes to the target
  bool by_key_ = false;           // counters are of LogKeys
  Target target_{};
  Sample sample_;
  // The most that any counter has counted, and the zeros that sums left out, since the counters
  // were empty.
  int64_t counted_ = 0, zeros_ = 0;
  // Which parts of the counters are not empty, a bit for every 1 << part_shift_ of them. A table
  // takes all of L1, 32 KB. Tracking the touched parts cuts the hook time of small layers by
  // 5 %.
  int part_shift_ = kWhole;
  uint32_t touched_ = 1;
};
