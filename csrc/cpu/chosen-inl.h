// What sampled histograms count: the stretches of elements that a sample has.

// place / step, of which the quotient of doubles is at most one off: a division of integers would
// take as long as a group.
HOOKSTATS_INLINE int64_t group_at(int64_t place, int64_t step) {
  const auto group = static_cast<int64_t>(static_cast<double>(place) / static_cast<double>(step));
  return group - (group * step > place) + ((group + 1) * step <= place);
}

// Calls f(first, count) for each stretch that a sample has of the `n` elements from `place` on, of
// at most kLanes elements; `first` is counted from `place`.
template <class F>
HOOKSTATS_INLINE void each_chosen(const Sample& sample, int64_t place, int64_t n, F&& f) {
  static_assert(kLanes == kUnit);
  const int64_t end = place + n, step = sample.every * kUnit;
  int64_t group = group_at(place, step);
  Sample::Order order = sample.order_of(group);
  for (; group * step < end; ++group) {
    if (group % 8 == 0) order = sample.order_of(group);
    const int64_t unit = sample.unit_of(group, order) * kUnit;
    const int64_t first = unit < place ? place : unit;
    const int64_t last = unit + kUnit < end ? unit + kUnit : end;
    if (first < last) f(first - place, last - first);
  }
}

// The chosen units of neighbouring channels, each of which has elements that follow each other in
// logical order, while rows of one element per channel go by.
class ChannelUnits {
 public:
  explicit ChannelUnits(const Sample& sample) : sample_(sample) {}

  // Calls f(channel, first, count) for each stretch, of at most kLanes elements, that the sample
  // has of `n` rows; `first` is a row. The first element of channel c is at place + c * apart.
  template <class F>
  void each(int64_t place, int64_t apart, int64_t channels, int64_t n, F&& f) {
    if (place != place_ || channels > channels_) find(place, apart, channels);
    place_ = place + n;
    channels_ = channels;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t begin = place + c * apart, end = begin + n;
      while (next_[c] < end) {
        const int64_t first = next_[c] < begin ? begin : next_[c];
        const int64_t last = next_[c] + kUnit < end ? next_[c] + kUnit : end;
        f(c, first - begin, last - first);
        if (last < next_[c] + kUnit) break;
        next_[c] = start_of(++group_[c]);
      }
    }
  }

 private:
  int64_t start_of(int64_t group) const {
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max() - kUnit;
    return group < sample_.groups() ? sample_.unit_of(group) * kUnit : kNever;
  }

  void find(int64_t place, int64_t apart, int64_t channels) {
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t begin = place + c * apart;
      group_[c] = group_at(begin, sample_.every * kUnit);
      next_[c] = start_of(group_[c]);
      if (next_[c] + kUnit <= begin) next_[c] = start_of(++group_[c]);
    }
  }

  const Sample& sample_;
  // At which place and for how many channels what follows is up to date.
  int64_t place_ = -1, channels_ = 0;
  int64_t next_[kRowBlock], group_[kRowBlock];  // each channel's next chosen unit, and its group
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
