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
    const Lanes<uint32_t> seed = fill(sample_.seed);
    const Lanes<uint32_t> turn = mix((shift_right<3>(low) + fill(0x9e3779b9u)) ^ seed);
    const Lanes<uint32_t> half = turn & fill(0xffffu), seven = fill(7u), eleven = fill(11u);
    const Lanes<uint32_t> sevenfold = shift_right<16>(turn) * seven + shift_right<16>(half * seven);
    const Lanes<uint32_t> a = fill(1u) + shift_right<16>(sevenfold), b = turn & seven;
    const Lanes<uint32_t> a2 = (a + a) ^ (shift_right<2>(a) * eleven);
    const Lanes<uint32_t> a4 = (a2 + a2) ^ (shift_right<2>(a2) * eleven);
    const Lanes<uint32_t> one = fill(1u);
    const Lanes<uint32_t> eighth = (a * (low & one)) ^ (a2 * (shift_right<1>(low) & one)) ^
                                   (a4 * (shift_right<2>(low) & one)) ^ b;
    const Lanes<uint32_t> fraction = shift_left<29>(eighth) | shift_right<3>(mix(low ^ seed));
    const Lanes<int64_t> every = fill(sample_.every), first = groups * every;
    const Lanes<int64_t> left = max(fill(sample_.units) - first, fill(int64_t{0}));
    const Lanes<uint64_t> choice = bit_cast_lanes<uint64_t>(min(left, every));
    const Lanes<uint64_t> chosen = shift_right<32>(widen_lanes<uint64_t>(fraction) * choice);
    return (first + bit_cast_lanes<int64_t>(chosen)) * fill(kUnit);
  }

 private:
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

  // Calls f(first, count) for each stretch that the sample has of the `n` elements from `place` on,
  // of at most kLanes elements; `first` is counted from `place`.
  template <class F>
  HOOKSTATS_INLINE void each(int64_t place, int64_t n, F&& f) {
    static_assert(kLanes == kUnit);
    const int64_t end = place + n;
    if (place != place_) seek(place);
    place_ = end;
    for (int64_t unit = found_[next_]; unit < end; unit = found_[next_]) {
      const int64_t first = unit < place ? place : unit;
      const int64_t last = unit + kUnit < end ? unit + kUnit : end;
      f(first - place, last - first);
      if (last < unit + kUnit) break;
      advance();
    }
  }

 private:
  void seek(int64_t place) {
    const int64_t group = starts_.group_at(place);
    if (group < group_ || group >= group_ + kLanes) find(group);
    next_ = group - group_;
    if (found_[next_] + kUnit <= place) advance();
  }

  HOOKSTATS_INLINE void advance() {
    if (++next_ == kLanes) find(group_ + kLanes);
  }

  void find(int64_t group) {
    group_ = group;
    next_ = 0;
    store(found_, starts_.of(fill(group) + iota<int64_t>()));
  }

  Starts starts_;
  int64_t place_ = -1;  // to which the next unit is up to date
  int64_t group_ = -int64_t{kLanes}, next_ = 0;
  int64_t found_[kLanes];  // the starts of the units of the groups from group_ on
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
