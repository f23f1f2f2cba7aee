// What sampled histograms count: the stretches of elements that a sample has.

// core's `mix` of each lane.
HOOKSTATS_INLINE Lanes<uint32_t> mix(const Lanes<uint32_t>& seeded) {
  Lanes<uint32_t> h = seeded ^ shift_right<16>(seeded);
  h = h * fill(0x85ebca6bu);
  h = h ^ shift_right<13>(h);
  h = h * fill(0xc2b2ae35u);
  return h ^ shift_right<16>(h);
}

// Where the chosen units of a sample begin, of sixteen groups at a time.
class Starts {
 public:
  Starts() = default;
  explicit Starts(const Sample& sample)
      : sample_(sample), step_(sample.every * kUnit), inverse_(1.0 / static_cast<double>(step_)) {}

  int64_t every() const { return sample_.every; }
  int64_t step() const { return step_; }

  // The group of the element at `place`; the product is at most one off, and takes a fifth of the
  // time of a division.
  HOOKSTATS_INLINE int64_t group_at(int64_t place) const {
    const auto group = static_cast<int64_t>(static_cast<double>(place) * inverse_);
    return group - (group * step_ > place) + ((group + 1) * step_ <= place);
  }

  // The place of the first element of the unit of each group, as core's `unit_of` has it; behind
  // the last group, a place behind all elements.
  HOOKSTATS_INLINE Lanes<int64_t> of(const Lanes<int64_t>& groups) const {
    const Lanes<uint32_t> low = bit_cast_lanes<uint32_t>(narrow_lanes<int32_t>(groups));
    const Lanes<uint32_t> seed = fill(sample_.seed), one = fill(1u), seven = fill(7u);
    const Lanes<uint32_t> turn = mix((shift_right<3>(low) + fill(0x9e3779b9u)) ^ seed);
    const Lanes<uint32_t> a = one + high_product(turn, seven), b = turn & seven;
    const Lanes<uint32_t> a2 = (a + a) ^ (shift_right<2>(a) * fill(11u));
    const Lanes<uint32_t> a4 = (a2 + a2) ^ (shift_right<2>(a2) * fill(11u));
    const Lanes<uint32_t> eighths = (a * (low & one)) ^ (a2 * (shift_right<1>(low) & one)) ^
                                    (a4 * (shift_right<2>(low) & one)) ^ b;
    const Lanes<int64_t> every = fill(sample_.every), first = groups * every;
    const Lanes<int64_t> left = max(fill(sample_.units) - first, fill(int64_t{0}));
    const Lanes<int32_t> choice = narrow_lanes<int32_t>(min(left, every));
    return (first + to_int64(choose(low, eighths, choice))) * fill(kUnit);
  }

  // The same of the groups from `group` on, a multiple of eight, counted from that group's first
  // element. Neighbours share their order: takes half as long.
  HOOKSTATS_INLINE Lanes<int32_t> from(int64_t group) const {
    const auto order = [&](int64_t of) {
      return fill(static_cast<int32_t>(sample_.order_of(of).eighths));
    };
    const Lanes<int32_t> lane = iota<int32_t>();
    const Lanes<uint32_t> orders =
        bit_cast_lanes<uint32_t>(select(less(lane, fill(8)), order(group), order(group + 8)));
    Lanes<uint32_t> eighths;
    const Lanes<uint32_t> places = (iota<uint32_t>() & fill(7u)) * fill(4u);
    HOOKSTATS_EACH_PART(uint32_t) eighths.part[i] = orders.part[i] >> places.part[i];
    const int64_t left = sample_.units - group * sample_.every, most = kLanes * sample_.every;
    const Lanes<int32_t> every = fill(static_cast<int32_t>(sample_.every)), first = lane * every;
    const Lanes<int32_t> behind = fill(static_cast<int32_t>(left < most ? left : most)) - first;
    const Lanes<uint32_t> low = fill(static_cast<uint32_t>(group)) + iota<uint32_t>();
    const Lanes<int32_t> chosen = choose(low, eighths, min(max(behind, fill(0)), every));
    return (first + chosen) * fill(static_cast<int32_t>(kUnit));
  }

 private:
  // The unit of each group among its `choice`; of `eighths`, the lowest three bits matter.
  HOOKSTATS_INLINE Lanes<int32_t> choose(const Lanes<uint32_t>& groups,
                                         const Lanes<uint32_t>& eighths,
                                         const Lanes<int32_t>& choice) const {
    const Lanes<uint32_t> in_eighth = shift_right<3>(mix(groups ^ fill(sample_.seed)));
    return bit_cast_lanes<int32_t>(
        high_product(shift_left<29>(eighths) | in_eighth, bit_cast_lanes<uint32_t>(choice)));
  }

  Sample sample_{};
  int64_t step_ = kUnit;  // elements of a group
  double inverse_ = 1.0 / kUnit;
};

// The chosen units in logical order.
class Units {
 public:
  Units() = default;
  explicit Units(const Sample& sample) : starts_(sample) {}

  int64_t every() const { return starts_.every(); }

  // At most so many elements a sample has of `n` that follow each other.
  static int64_t most(int64_t n) { return n / 2 + 2 * kUnit; }

  // Calls whole(first) for each unit among the `n` elements from `place` on, and part(first, count)
  // for a part of one at either end; `first` is counted from `place`.
  template <class Whole, class Part>
  HOOKSTATS_INLINE void each(int64_t place, int64_t n, Whole&& whole, Part&& part) {
    static_assert(kLanes == kUnit);
    if (place != place_) seek(place);
    place_ = place + n;
    const int64_t first = found_[next_] + base_ - place;
    if (first < 0) {
      const int64_t last = first + kUnit;
      part(0, last < n ? last : n);
      if (last > n) return;
      ++next_;
    }
    for (;; find(group_ + kLanes)) {
      const int64_t behind = base_ - place;
      int64_t next = next_;
      for (; found_[next] + behind + kUnit <= n; ++next) whole(found_[next] + behind);
      next_ = next;
      if (next < kLanes) break;
    }
    const int64_t last = found_[next_] + base_ - place;
    if (last < n) part(last, n - last);
  }

 private:
  void seek(int64_t place) {
    const int64_t group = starts_.group_at(place);
    if (group < group_ || group >= group_ + kLanes) find(group / kLanes * kLanes);
    next_ = group - group_;
    next_ += found_[next_] + base_ + kUnit <= place;
    if (next_ == kLanes) find(group_ + kLanes);
  }

  void find(int64_t group) {
    group_ = group;
    base_ = group * starts_.step();
    next_ = 0;
    store(found_, starts_.from(group));
    found_[kLanes] = std::numeric_limits<int32_t>::max();
  }

  Starts starts_;
  int64_t place_ = -1;  // to which the next unit is up to date
  int64_t group_ = -int64_t{kLanes}, base_ = 0, next_ = 0;
  // The starts of the units of the groups from group_ on, from base_, and one that is never
  // reached.
  int32_t found_[kLanes + 1];
};

// The chosen units of neighbouring channels, each of which has elements that follow each other in
// logical order, while rows of one element per channel go by.
class ChannelUnits {
 public:
  explicit ChannelUnits(const Sample& sample) : starts_(sample) {}

  struct Batch {           // of rows
    int64_t place, apart;  // the first element of channel c is at place + c * apart
    int64_t channels, count;
    int64_t before;  // rows before these that can be read
    bool goes_on;    // whether the next call has those behind these
  };

  // Calls f(channel, first, count) for each stretch, of at most kLanes elements, that the sample
  // has of a batch; `first` is counted from their first. A unit that ends behind them is left to
  // the next call, if it goes on there.
  template <class F>
  void each(const Batch& rows, F&& f) {
    const int64_t place = rows.place, end = place + rows.count, floor = place - rows.before;
    if (place != place_ || rows.channels > channels_) find(place, rows.apart, rows.channels);
    place_ = end;
    channels_ = rows.channels;
    for (int64_t v = 0; v * kLanes < channels_; ++v) {
      const auto call = [&](const Lanes<int64_t>& due) {
        int64_t is_due[kLanes], next[kLanes], units[kLanes], lanes[kLanes], count = 0;
        store(is_due, due);
        store(next, next_[v]);
        for (int64_t i = 0; i < kLanes; ++i) {
          units[count] = next[i];
          lanes[count] = i;
          count -= is_due[i];
        }
        for (int64_t i = 0; i < count; ++i) {
          const int64_t first = units[i] < floor ? floor : units[i];
          const int64_t last = units[i] + kUnit < end ? units[i] + kUnit : end;
          f(v * kLanes + lanes[i], first - place, last - first);
        }
      };
      for (;;) {
        const Lanes<int64_t> due = less(next_[v], fill(end - (kUnit - 1)));
        if (!any(due)) break;
        call(due);
        advance(v, due, rows.apart);
      }
      if (rows.goes_on) continue;
      const Lanes<int64_t> due = less(next_[v], fill(end));
      if (any(due)) call(due);
    }
  }

 private:
  static HOOKSTATS_INLINE Lanes<int64_t> offsets(int64_t v, int64_t apart) {
    return (fill(v * kLanes) + iota<int64_t>()) * fill(apart);
  }

  HOOKSTATS_INLINE void advance(int64_t v, const Lanes<int64_t>& due, int64_t apart) {
    groups_[v] = groups_[v] - due;
    next_[v] = select(due, starts_.of(groups_[v]) - offsets(v, apart), next_[v]);
  }

  void find(int64_t place, int64_t apart, int64_t channels) {
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    for (int64_t v = 0; v * kLanes < channels; ++v) {
      int64_t groups[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        groups[i] = starts_.group_at(place + (v * kLanes + i) * apart);
      }
      groups_[v] = lanes_at<int64_t>(groups);
      next_[v] = starts_.of(groups_[v]) - offsets(v, apart);
      advance(v, less(next_[v], fill(place - (kUnit - 1))), apart);
      const Lanes<int64_t> some = less(fill(v * kLanes) + iota<int64_t>(), fill(channels));
      next_[v] = select(some, next_[v], fill(kNever));
    }
  }

  const Starts starts_;
  // At which place and for how many channels what follows is up to date.
  int64_t place_ = -1, channels_ = 0;
  // Each channel's next chosen unit, from where its element of the first channel's place would be,
  // and its group.
  Lanes<int64_t> next_[kRowBlock / kLanes], groups_[kRowBlock / kLanes];
};

// The chosen units of neighbouring channels, as ChannelUnits has them, where a batch may have whole
// maps: of channels whose elements follow each other, all of them in logical order.
class UnitsAcross {
 public:
  explicit UnitsAcross(const Sample& sample) : in_order_(sample), by_channel_(sample) {}

  // Calls f(channel, first, count) as ChannelUnits::each does.
  template <class F>
  HOOKSTATS_INLINE void each(const ChannelUnits::Batch& rows, F&& f) {
    if (rows.count != rows.apart) return by_channel_.each(rows, f);
    const auto part = [&](int64_t at, int64_t count) {
      // In 32 bits, which all elements of a batch fit into.
      int64_t channel = static_cast<uint32_t>(at) / static_cast<uint32_t>(rows.count);
      for (int64_t first = at - channel * rows.count; count > 0; ++channel, first = 0) {
        const int64_t left = rows.count - first, n = count < left ? count : left;
        f(channel, first, n);
        count -= n;
      }
    };
    in_order_.each(
        rows.place, rows.channels * rows.count, [&](int64_t first) { part(first, kLanes); }, part);
  }

 private:
  Units in_order_;
  ChannelUnits by_channel_;
};

// Stores the counters of the finite ones among the first `count` elements `x`, one after another,
// at `to`, which has room for kLanes; returns how many there are.
template <class Real>
HOOKSTATS_INLINE int64_t keep_finite(const Lanes<Real>& x, const Lanes<int32_t>& counters,
                                     int64_t count, uint32_t* to) {
  store(to, counters);
  const Mask<Real> nonfinite = unequal(x - x, fill(Real{0}));
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
