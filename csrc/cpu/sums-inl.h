// Shifted sums of sixteen lanes, and the channel statistics they amount to.
//
// A task sums its channels in fp32 around a shift close to their mean, spilling to fp64 every
// kSpill vectors, and tests nothing on the way: a NaN, an infinity, an overflow or a bad shift
// shows in the sums. What cannot be trusted is summed again: with a better shift, with masks over
// what is not finite, or with masks in fp64. The task is in the cache by then.

constexpr int kSpill = 64;  // fp32 additions a lane, and a tree of 4: rounding below 68 * 2^-24

template <class Real, bool kMasked>
struct Sums {
  Lanes<Real> s1, s2, l1, least, greatest;  // of x - shift, its square, |x|, x, x
  Mask<Real> zero;                          // a counter
};
template <class Real>
struct Sums<Real, true> : Sums<Real, false> {
  Mask<Real> nan, posinf, neginf;  // counters
};

struct WideSums {
  Lanes<double> s1, s2, l1;
};

// Lane by lane: GCC clears whole structs by `rep stos`, which took half the time of short channels.
template <class Real, bool kMasked>
HOOKSTATS_INLINE void clear(Sums<Real, kMasked>& sums) {
  using Int = typename MaskOf<Real>::type;
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  sums.s1 = sums.s2 = sums.l1 = fill(Real{0});
  sums.least = fill(kInf);
  sums.greatest = fill(-kInf);
  sums.zero = fill(Int{0});
  if constexpr (kMasked) sums.nan = sums.posinf = sums.neginf = fill(Int{0});
}
HOOKSTATS_INLINE void clear(WideSums& wide) { wide.s1 = wide.s2 = wide.l1 = fill(0.0); }

template <bool kMasked, class Real>
HOOKSTATS_INLINE void add(Sums<Real, kMasked>& sums, const Lanes<Real>& x, const Lanes<Real>& shift,
                          const Mask<Real>* valid = nullptr) {
  if (!kMasked && valid == nullptr) {
    const Lanes<Real> d = x - shift;
    sums.s1 = sums.s1 + d;
    sums.s2 = multiply_add(d, d, sums.s2);
    sums.l1 = sums.l1 + abs(x);
    sums.least = min(sums.least, x);
    sums.greatest = max(sums.greatest, x);
    count_zeros(sums.zero, x);
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
  const Lanes<Real> d = select(use, x - shift, fill(Real{0}));
  sums.s1 = sums.s1 + d;
  sums.s2 = multiply_add(d, d, sums.s2);
  sums.l1 = sums.l1 + select(use, abs(x), fill(Real{0}));
  sums.least = min(sums.least, select(use, x, fill(kInf)));
  sums.greatest = max(sums.greatest, select(use, x, fill(-kInf)));
  count_lanes(sums.zero, equal(x, fill(Real{0})) & use);
}

template <class Real>
HOOKSTATS_INLINE void join(Sums<Real, false>& into, const Sums<Real, false>& from) {
  into.s1 = into.s1 + from.s1;
  into.s2 = into.s2 + from.s2;
  into.l1 = into.l1 + from.l1;
  into.least = min(into.least, from.least);
  into.greatest = max(into.greatest, from.greatest);
  into.zero = into.zero + from.zero;
}

template <bool kMasked, class Real>
HOOKSTATS_INLINE void spill(Sums<Real, kMasked>& sums, WideSums& wide) {
  wide.s1 = wide.s1 + to_double(sums.s1);
  wide.s2 = wide.s2 + to_double(sums.s2);
  wide.l1 = wide.l1 + to_double(sums.l1);
  sums.s1 = sums.s2 = sums.l1 = fill(Real{0});
}

// --- from sums to channels ----------------------------------------------------------------------

// The sums of sixteen channels, a lane each.
struct ChannelSums {
  Lanes<double> shift, s1, s2, l1, least, greatest;
  Lanes<int64_t> seen, zero, nan, posinf, neginf;
};

template <class T>
inline void copy_lane(Lanes<T>& to, int lane, const Lanes<T>& from, int from_lane) {
  constexpr int kPerPart = Lanes<T>::kPerPart;
  to.part[lane / kPerPart][lane % kPerPart] = from.part[from_lane / kPerPart][from_lane % kPerPart];
}
inline void copy_lane(ChannelSums& to, int lane, const ChannelSums& from, int from_lane) {
  for (Lanes<double> ChannelSums::* each :
       {&ChannelSums::shift, &ChannelSums::s1, &ChannelSums::s2, &ChannelSums::l1,
        &ChannelSums::least, &ChannelSums::greatest}) {
    copy_lane(to.*each, lane, from.*each, from_lane);
  }
  for (Lanes<int64_t> ChannelSums::* each :
       {&ChannelSums::seen, &ChannelSums::zero, &ChannelSums::nan, &ChannelSums::posinf,
        &ChannelSums::neginf}) {
    copy_lane(to.*each, lane, from.*each, from_lane);
  }
}

// How many elements are finite.
HOOKSTATS_INLINE Lanes<int64_t> finite(const ChannelSums& sums) {
  return sums.seen - sums.nan - sums.posinf - sums.neginf;
}
HOOKSTATS_INLINE Lanes<double> mean(const ChannelSums& sums) {
  return sums.shift + sums.s1 / to_double(finite(sums));
}

// Can sums made in precision Real be trusted, or how are they to be made again?
enum Verdict : int64_t { kTrusted, kShiftAgain, kMask, kWiden };

template <class Real>
HOOKSTATS_INLINE Lanes<int64_t> judge(const ChannelSums& sums) {
  constexpr bool kSingle = sizeof(Real) == sizeof(float);
  const Lanes<double> inf = fill(std::numeric_limits<double>::infinity());
  const Lanes<double> n = to_double(finite(sums));
  // NaN and infinities poison the sums, that of magnitudes too; squares above the range of Real
  // that of squares.
  const Mask<double> clean = less(sums.l1, inf);
  const Mask<double> constant = equal(sums.s2, fill(0.0)) & equal(sums.least, sums.greatest);
  // Squares below the normal range of Real lose digits: 1e-30 leaves them 1e-8 of the sum.
  const Mask<double> normal =
      at_least(sums.s2, n * fill(kSingle ? 1e-30 : 0.0)) & less(sums.s2, inf);
  // A shift far from the mean costs digits: s2 is then much more than m2.
  const Lanes<double> off = sums.s1 * sums.s1 / n;
  const Mask<double> near = at_least(fill(kSingle ? 2.0 : 1e4) * (sums.s2 - off), off);
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
struct ChannelRows {
  int64_t count[kLanes], nan[kLanes], posinf[kLanes], neginf[kLanes], zero[kLanes];
  double mean[kLanes], m2[kLanes], min[kLanes], max[kLanes], l1[kLanes];

  HOOKSTATS_INLINE explicit ChannelRows(const ChannelSums& sums) {
    const Lanes<int64_t> counts = finite(sums);
    const Lanes<double> n = to_double(counts);
    const Mask<double> some = less(fill(0.0), n);
    const Lanes<double> offset = sums.s1 / n;
    const Lanes<double> spread = sums.s2 - sums.s1 * offset;
    // Rounding may leave m2 just below zero; fp64 squares that overflowed leave inf - inf.
    const Lanes<double> inf = fill(std::numeric_limits<double>::infinity());
    const Lanes<double> none = select(less(sums.s2, inf), fill(0.0), sums.s2);
    store(mean, select(some, sums.shift + offset, fill(0.0)));
    store(m2, select(some, select(less(fill(0.0), spread), spread, none), fill(0.0)));
    store(min, sums.least);
    store(max, sums.greatest);
    store(l1, sums.l1);
    store(count, counts);
    store(nan, sums.nan);
    store(posinf, sums.posinf);
    store(neginf, sums.neginf);
    store(zero, sums.zero);
  }

  HOOKSTATS_INLINE Channel at(int i) const {
    return {count[i], nan[i], posinf[i], neginf[i], zero[i], mean[i], m2[i], min[i], max[i], l1[i]};
  }
};
