// Shifted sums of sixteen lanes, and the channel statistics they amount to.
//
// A task sums its channels in fp32 around a shift close to their mean, spilling to fp64 every
// kSpill vectors, and tests nothing on the way: a NaN, an infinity, an overflow or a bad shift
// shows in the sums. Channels whose sums cannot be trusted are summed again: with a better shift,
// with masks over non-finite elements, or with masks in fp64. The task is in the cache by then.
//
// kHigher: sums of third and fourth powers too.

constexpr int kSpill = 64;  // fp32 additions per lane, and a tree of 4: rounding below 68 * 2^-24

// The value from which deviations are measured and, for sums of higher powers, their unit.
// Powers of two near the standard deviation keep a fourth power in the range of fp32; they cost no
// rounding, and no time: x / unit - shift / unit is one instruction. T: a number or Lanes of them.
template <class T, bool kHigher>
struct Frame {
  T shift;
};
template <class T>
struct Frame<T, true> {
  T shift, inverse;  // of the unit
};

template <bool kHigher, class T>
HOOKSTATS_INLINE Frame<T, kHigher> make_frame(const T& shift, [[maybe_unused]] const T& inverse) {
  if constexpr (kHigher) {
    return {shift, inverse};
  } else {
    return {shift};
  }
}

// As loops use it.
template <class Real, bool kHigher>
struct Origin {
  Lanes<Real> shift;

  HOOKSTATS_INLINE explicit Origin(const Frame<Lanes<Real>, false>& frame) : shift(frame.shift) {}
  HOOKSTATS_INLINE explicit Origin(const Frame<Real, false>& frame) : shift(fill(frame.shift)) {}
  HOOKSTATS_INLINE Lanes<Real> deviation(const Lanes<Real>& x) const { return x - shift; }
};
template <class Real>
struct Origin<Real, true> {
  Lanes<Real> inverse, start;

  HOOKSTATS_INLINE explicit Origin(const Frame<Lanes<Real>, true>& frame)
      : inverse(frame.inverse), start(fill(Real{0}) - frame.shift * frame.inverse) {}
  HOOKSTATS_INLINE explicit Origin(const Frame<Real, true>& frame)
      : inverse(fill(frame.inverse)), start(fill(-frame.shift * frame.inverse)) {}
  HOOKSTATS_INLINE Lanes<Real> deviation(const Lanes<Real>& x) const {
    return multiply_add(x, inverse, start);
  }
};

template <class Real, bool kHigher>
struct PowerSums {
  Lanes<Real> s1, s2, l1, least, greatest;  // of the deviation, its square, |x|, x, x
  Mask<Real> zero;                          // a counter
};
template <class Real>
struct PowerSums<Real, true> : PowerSums<Real, false> {
  Lanes<Real> s3, s4;  // of the third and fourth power of the deviation
};

template <class Real, bool kMasked, bool kHigher>
struct Sums : PowerSums<Real, kHigher> {};
template <class Real, bool kHigher>
struct Sums<Real, true, kHigher> : PowerSums<Real, kHigher> {
  Mask<Real> nan, posinf, neginf;  // counters
};

template <bool kHigher>
struct WideSums {
  Lanes<double> s1, s2, l1;
};
template <>
struct WideSums<true> : WideSums<false> {
  Lanes<double> s3, s4;
};

// Lane by lane: GCC clears whole structs by `rep stos`, which took half the time of short channels.
template <class Real, bool kMasked, bool kHigher>
HOOKSTATS_INLINE void clear(Sums<Real, kMasked, kHigher>& sums) {
  using Int = typename MaskOf<Real>::type;
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  sums.s1 = sums.s2 = sums.l1 = fill(Real{0});
  if constexpr (kHigher) sums.s3 = sums.s4 = fill(Real{0});
  sums.least = fill(kInf);
  sums.greatest = fill(-kInf);
  sums.zero = fill(Int{0});
  if constexpr (kMasked) sums.nan = sums.posinf = sums.neginf = fill(Int{0});
}
template <bool kHigher>
HOOKSTATS_INLINE void clear(WideSums<kHigher>& wide) {
  wide.s1 = wide.s2 = wide.l1 = fill(0.0);
  if constexpr (kHigher) wide.s3 = wide.s4 = fill(0.0);
}

template <class Real, bool kHigher>
HOOKSTATS_INLINE void add_powers(PowerSums<Real, kHigher>& sums, const Lanes<Real>& d) {
  sums.s1 = sums.s1 + d;
  if constexpr (kHigher) {
    const Lanes<Real> square = d * d;
    sums.s2 = sums.s2 + square;
    sums.s3 = multiply_add(square, d, sums.s3);
    sums.s4 = multiply_add(square, square, sums.s4);
  } else {
    sums.s2 = multiply_add(d, d, sums.s2);
  }
}

template <class Real, bool kHigher>
HOOKSTATS_INLINE void add_extent(PowerSums<Real, kHigher>& sums, const Lanes<Real>& x) {
  sums.l1 = sums.l1 + abs(x);
  sums.least = min(sums.least, x);
  sums.greatest = max(sums.greatest, x);
  count_zeros(sums.zero, x);
}

template <class Real, bool kMasked, bool kHigher>
HOOKSTATS_INLINE void add(Sums<Real, kMasked, kHigher>& sums, const Lanes<Real>& x,
                          const Origin<Real, kHigher>& origin, const Mask<Real>* valid = nullptr) {
  if (!kMasked && valid == nullptr) {
    add_powers(sums, origin.deviation(x));
    add_extent(sums, x);
    return;
  }
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  Mask<Real> use;
  if constexpr (kMasked) {
    Mask<Real> nan = unequal(x, x), posinf = equal(x, fill(kInf)), neginf = equal(x, fill(-kInf));
    use = less(abs(x), fill(kInf));
    if (valid != nullptr) use = use & *valid;  // lanes that are not valid hold zeros
    count_lanes(sums.nan, nan);
    count_lanes(sums.posinf, posinf);
    count_lanes(sums.neginf, neginf);
  } else {
    use = *valid;
  }
  add_powers(sums, select(use, origin.deviation(x), fill(Real{0})));
  sums.l1 = sums.l1 + select(use, abs(x), fill(Real{0}));
  sums.least = min(sums.least, select(use, x, fill(kInf)));
  sums.greatest = max(sums.greatest, select(use, x, fill(-kInf)));
  count_lanes(sums.zero, equal(x, fill(Real{0})) & use);
}

// Adds at most kSpill vectors, one after another. Where eight sums fill all registers, some would
// go to memory and back at every addition: then powers have a loop of their own, 0.7 of the time
// from memory with AVX2. What it had to widen it leaves to the other loop.
template <class Real, bool kMasked, bool kHigher, class Source, class Counting>
HOOKSTATS_INLINE void add_vectors(Sums<Real, kMasked, kHigher>& sums, const Source* p,
                                  int64_t count, const Origin<Real, kHigher>& origin, int64_t ahead,
                                  Counting& counting) {
  if constexpr (kHigher && !kMasked && 8 * Lanes<Real>::kParts >= kRegisters) {
    constexpr bool kWidened = !std::is_same_v<Source, Real>;
    Lanes<Real> widened[kWidened ? kSpill : 1];
    for (int64_t i = 0; i < count; ++i) {
      const Lanes<Real> x = load<Real, Source>(p + i * kLanes);
      add_powers(sums, origin.deviation(x));
      if constexpr (kWidened) store(&widened[i], x);
    }
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (kWidened) {
        add_extent(sums, lanes_at<Real>(&widened[i]));
      } else {
        add_extent(sums, load<Real, Source>(p + i * kLanes));
      }
    }
  } else {
    counting.with(count, 1, count * kLanes, [&](auto& some) __attribute__((always_inline)) {
      Sums<Real, kMasked, kHigher> local = sums;  // in registers
      const auto add_one = [&](int64_t i) {
        prefetch(p + i * kLanes, ahead);
        const Lanes<Real> x = load<Real, Source>(p + i * kLanes);
        add(local, x, origin);
        some.see(x);
      };
      int64_t i = 0;
      for (; i < some.vectors; ++i) {
        add_one(i);
        some.template accompany<1>();
      }
      for (; i < count; ++i) add_one(i);
      sums = local;
    });
  }
}

template <class Real, bool kHigher>
HOOKSTATS_INLINE void join(Sums<Real, false, kHigher>& into,
                           const Sums<Real, false, kHigher>& from) {
  into.s1 = into.s1 + from.s1;
  into.s2 = into.s2 + from.s2;
  if constexpr (kHigher) {
    into.s3 = into.s3 + from.s3;
    into.s4 = into.s4 + from.s4;
  }
  into.l1 = into.l1 + from.l1;
  into.least = min(into.least, from.least);
  into.greatest = max(into.greatest, from.greatest);
  into.zero = into.zero + from.zero;
}

template <class Real, bool kMasked, bool kHigher>
HOOKSTATS_INLINE void spill(Sums<Real, kMasked, kHigher>& sums, WideSums<kHigher>& wide) {
  wide.s1 = wide.s1 + to_double(sums.s1);
  wide.s2 = wide.s2 + to_double(sums.s2);
  wide.l1 = wide.l1 + to_double(sums.l1);
  sums.s1 = sums.s2 = sums.l1 = fill(Real{0});
  if constexpr (kHigher) {
    wide.s3 = wide.s3 + to_double(sums.s3);
    wide.s4 = wide.s4 + to_double(sums.s4);
    sums.s3 = sums.s4 = fill(Real{0});
  }
}

// --- from sums to channels ----------------------------------------------------------------------

// The sums of sixteen channels, one per lane.
template <bool kHigher>
struct ChannelSums {
  Lanes<double> shift, s1, s2, l1, least, greatest;
  Lanes<int64_t> seen, zero, nan, posinf, neginf;
};
template <>
struct ChannelSums<true> : ChannelSums<false> {
  Lanes<double> unit, s3, s4;  // all powers are in this unit
};

template <class T>
inline void copy_lane(Lanes<T>& to, int lane, const Lanes<T>& from, int from_lane) {
  constexpr int kPerPart = Lanes<T>::kPerPart;
  to.part[lane / kPerPart][lane % kPerPart] = from.part[from_lane / kPerPart][from_lane % kPerPart];
}
inline void copy_lane(ChannelSums<false>& to, int lane, const ChannelSums<false>& from,
                      int from_lane) {
  using Each = ChannelSums<false>;
  for (Lanes<double> Each::* each :
       {&Each::shift, &Each::s1, &Each::s2, &Each::l1, &Each::least, &Each::greatest}) {
    copy_lane(to.*each, lane, from.*each, from_lane);
  }
  for (Lanes<int64_t> Each::* each :
       {&Each::seen, &Each::zero, &Each::nan, &Each::posinf, &Each::neginf}) {
    copy_lane(to.*each, lane, from.*each, from_lane);
  }
}
inline void copy_lane(ChannelSums<true>& to, int lane, const ChannelSums<true>& from,
                      int from_lane) {
  using Each = ChannelSums<true>;
  copy_lane(static_cast<ChannelSums<false>&>(to), lane, from, from_lane);
  for (Lanes<double> Each::* each : {&Each::unit, &Each::s3, &Each::s4}) {
    copy_lane(to.*each, lane, from.*each, from_lane);
  }
}

// How many elements are finite.
HOOKSTATS_INLINE Lanes<int64_t> finite(const ChannelSums<false>& sums) {
  return sums.seen - sums.nan - sums.posinf - sums.neginf;
}
HOOKSTATS_INLINE Lanes<double> mean(const ChannelSums<false>& sums) {
  return sums.shift + sums.s1 / to_double(finite(sums));
}
HOOKSTATS_INLINE Lanes<double> mean(const ChannelSums<true>& sums) {
  return sums.shift + sums.s1 / to_double(finite(sums)) * sums.unit;
}

// The inverse of the power of two at or below a size that is not negative; 1 where there is none,
// and for fp64, which holds all fourth powers that a state can.
HOOKSTATS_INLINE Lanes<float> inverse_unit(const Lanes<float>& size) {
  const Lanes<int32_t> top = fill(0x7f000000);
  const Lanes<int32_t> exponent = bit_cast_lanes<int32_t>(size) & fill(0x7f800000);
  const Mask<float> normal = less(fill(0), exponent) & less(exponent, top);
  return select(normal, bit_cast_lanes<float>(top - exponent), fill(1.0f));
}
HOOKSTATS_INLINE Lanes<double> inverse_unit(const Lanes<double>&) { return fill(1.0); }

// The frames of sixteen channels, one by one.
template <class Real, bool kHigher>
struct Frames {
  Real shift[kLanes], inverse[kHigher ? kLanes : 1];

  HOOKSTATS_INLINE explicit Frames(const Frame<Lanes<Real>, kHigher>& frame) {
    store(shift, frame.shift);
    if constexpr (kHigher) store(inverse, frame.inverse);
  }
  HOOKSTATS_INLINE Frame<Real, kHigher> at(int i) const {
    if constexpr (kHigher) {
      return {shift[i], inverse[i]};
    } else {
      return {shift[i]};
    }
  }
};

// The frame of values whose mean and variance are known.
template <class Real, bool kHigher>
Frame<Lanes<Real>, kHigher> frame_of(const Lanes<double>& mean, const Lanes<double>& variance) {
  double means[kLanes], variances[kLanes];
  Real shift[kLanes], size[kLanes];
  store(means, mean);
  store(variances, variance);
  for (int i = 0; i < kLanes; ++i) {
    shift[i] = static_cast<Real>(means[i]);
    size[i] = static_cast<Real>(__builtin_sqrt(variances[i] > 0.0 ? variances[i] : 0.0));
  }
  return make_frame<kHigher>(lanes_at<Real>(shift), inverse_unit(lanes_at<Real>(size)));
}

// The frame to sum in again, as far as sums tell it.
template <class Real, bool kHigher>
Frame<Lanes<Real>, kHigher> frame_of(const ChannelSums<kHigher>& sums) {
  const Lanes<double> n = to_double(finite(sums)), ahead = sums.s1 / n;
  Lanes<double> variance = sums.s2 / n - ahead * ahead;
  if constexpr (kHigher) variance = variance * sums.unit * sums.unit;
  return frame_of<Real, kHigher>(mean(sums), variance);
}

// Whether sums in precision Real can be trusted, or else how to make them again.
enum Verdict : int64_t { kTrusted, kShiftAgain, kMask, kWiden };

template <class Real, bool kHigher>
HOOKSTATS_INLINE Lanes<int64_t> judge(const ChannelSums<kHigher>& sums) {
  constexpr bool kSingle = sizeof(Real) == sizeof(float);
  const Lanes<double> inf = fill(std::numeric_limits<double>::infinity());
  const Lanes<double> n = to_double(finite(sums));
  // NaN and infinities poison the sums, that of magnitudes too; squares above the range of Real
  // that of squares.
  const Mask<double> clean = less(sums.l1, inf);
  const Mask<double> constant = equal(sums.s2, fill(0.0)) & equal(sums.least, sums.greatest);
  // Squares below the normal range of Real lose digits: 1e-30 leaves them 1e-8 of the sum.
  const Lanes<double> least = n * fill(kSingle ? 1e-30 : 0.0);
  const Mask<double> normal = at_least(sums.s2, least) & less(sums.s2, inf);
  // A shift far from the mean costs digits: s2 is then much more than m2.
  const Lanes<double> off = sums.s1 * sums.s1 / n;
  Mask<double> near = at_least(fill(kSingle ? 2.0 : 1e4) * (sums.s2 - off), off);
  // A unit that does not suit the fourth powers is chosen again, as a bad shift is.
  if constexpr (kHigher) near = near & at_least(sums.s4, least) & less(sums.s4, inf);
  Lanes<int64_t> verdict =
      select(clean & normal, fill(int64_t{kShiftAgain}), fill(int64_t{kWiden}));
  verdict = select(clean, verdict, fill(int64_t{kMask}));
  const Mask<double> trusted = constant | (normal & near) | equal(n, fill(0.0));
  return select(clean & trusted, fill(int64_t{kTrusted}), verdict);
}
HOOKSTATS_INLINE bool has(const Lanes<int64_t>& verdict, Verdict which) {
  return any(equal(verdict, fill(int64_t{which})));
}

// The channels that the lanes amount to. In one struct: GCC would hold the address of each array.
template <bool kHigher>
struct ChannelRows {
  int64_t count[kLanes], nan[kLanes], posinf[kLanes], neginf[kLanes], zero[kLanes];
  double mean[kLanes], m2[kLanes], min[kLanes], max[kLanes], l1[kLanes];

  HOOKSTATS_INLINE ChannelRows() {}
  HOOKSTATS_INLINE explicit ChannelRows(const ChannelSums<false>& sums) {
    const Lanes<double> offset = sums.s1 / to_double(finite(sums));
    fill_rows(sums, sums.shift + offset, spread(sums, offset));
  }

 protected:
  // m2, in the unit of the sums.
  static HOOKSTATS_INLINE Lanes<double> spread(const ChannelSums<false>& sums,
                                               const Lanes<double>& offset) {
    const Lanes<double> spread = sums.s2 - sums.s1 * offset;
    // Rounding may leave m2 just below zero; fp64 squares that overflowed leave inf - inf.
    const Lanes<double> inf = fill(std::numeric_limits<double>::infinity());
    const Lanes<double> none = select(less(sums.s2, inf), fill(0.0), sums.s2);
    return select(less(fill(0.0), spread), spread, none);
  }

  HOOKSTATS_INLINE void fill_rows(const ChannelSums<false>& sums, const Lanes<double>& center,
                                  const Lanes<double>& squares) {
    const Lanes<int64_t> counts = finite(sums);
    const Mask<double> some = less(fill(0.0), to_double(counts));
    store(mean, select(some, center, fill(0.0)));
    store(m2, select(some, squares, fill(0.0)));
    store(min, sums.least);
    store(max, sums.greatest);
    store(l1, sums.l1);
    store(count, counts);
    store(nan, sums.nan);
    store(posinf, sums.posinf);
    store(neginf, sums.neginf);
    store(zero, sums.zero);
  }

 public:
  HOOKSTATS_INLINE Channel at(int i) const {
    Channel c;
    c.count = count[i];
    c.nan = nan[i];
    c.posinf = posinf[i];
    c.neginf = neginf[i];
    c.zero = zero[i];
    c.mean = mean[i];
    c.m2 = m2[i];
    c.min = min[i];
    c.max = max[i];
    c.l1 = l1[i];
    return c;
  }
};
template <>
struct ChannelRows<true> : ChannelRows<false> {
  double m3[kLanes], m4[kLanes];

  HOOKSTATS_INLINE explicit ChannelRows(const ChannelSums<true>& sums) {
    const Lanes<double> offset = sums.s1 / to_double(finite(sums)), unit = sums.unit;
    const Lanes<double> squares = spread(sums, offset), unit2 = unit * unit;
    fill_rows(sums, sums.shift + offset * unit, squares * unit2);
    // About the mean, from the powers about the shift, by Horner's rule. Of a constant all are
    // zero.
    const Lanes<double> s1 = sums.s1, s2 = sums.s2, s3 = sums.s3, s4 = sums.s4;
    const Lanes<double> cubes = s3 - offset * (fill(3.0) * s2 - fill(2.0) * offset * s1);
    const Lanes<double> fourths =
        s4 - offset * (fill(4.0) * s3 - offset * (fill(6.0) * s2 - fill(3.0) * offset * s1));
    const Lanes<double> inf = fill(std::numeric_limits<double>::infinity());
    const Mask<double> some = less(fill(0.0), squares);
    store(m3, select(some, cubes * unit2 * unit, fill(0.0)));
    store(m4, select(some, select(less(s4, inf), fourths * unit2 * unit2, inf), fill(0.0)));
  }

  HOOKSTATS_INLINE HigherChannel at(int i) const {
    HigherChannel c;
    static_cast<Channel&>(c) = ChannelRows<false>::at(i);
    c.m3 = m3[i];
    c.m4 = m4[i];
    return c;
  }
};
