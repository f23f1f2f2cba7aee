// Where counts go: the histogram in a state.

// If other threads may add to `counts`, too, additions are atomic. Integer additions commute: the
// counts do not depend on which thread comes first.
struct Target {
  int64_t* counts;
  int64_t times;  // how often each element is counted
  bool shared;
  int64_t* occupancy = nullptr;  // see core/occupancy.h; or null

  void add(int64_t slot, int64_t count) const {
    if (shared) {
      __atomic_fetch_add(&counts[slot], count * times, __ATOMIC_RELAXED);
    } else {
      counts[slot] += count * times;
    }
  }

  // Marks `slot` and its neighbours, before or after it is counted in.
  HOOKSTATS_INLINE void mark(int64_t slot) const {
    if (occupancy == nullptr) return;
    int64_t* const word = occupancy + 1 + slot / kWordSlots;
    const int64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    const auto bit = static_cast<int64_t>(uint64_t{1} << (slot / kOccupancySlots % 64));
    if ((old & bit) != 0) return;
    if (shared) {
      __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
    } else {
      *word = old | bit;
    }
  }

  // Marks those of the slots from `slot` on that are not zero in `sums`.
  HOOKSTATS_INLINE void mark_lanes(int64_t slot, const Lanes<uint64_t>& sums) const {
    static_assert(kLanes == kOccupancySlots);
    const Mask<int64_t> head = lt(iota<int64_t>(), set(kOccupancySlots - slot % kOccupancySlots));
    const Lanes<int64_t> values = bit_cast_lanes<int64_t>(sums);
    if (any(values & head)) mark(slot);
    if (any(values & (head ^ set(int64_t{-1})))) mark(slot + kLanes - 1);
  }

  // `sums` are of the slots from `slot` on, of which there are `slots` in all.
  HOOKSTATS_INLINE void add_lanes(int64_t slot, int64_t slots, const Lanes<uint64_t>& sums) const {
    if (!shared && times == 1 && slot + kLanes <= slots) {
      store(counts + slot, load_lanes<uint64_t>(counts + slot) + sums);
      return;
    }
    uint64_t values[kLanes];
    store(values, sums);
    for (int64_t i = 0; i < kLanes && slot + i < slots; ++i) {
      if (values[i] != 0) add(slot + i, static_cast<int64_t>(values[i]));
    }
  }
};
