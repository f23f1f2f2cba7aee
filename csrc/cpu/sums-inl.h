// Shifted sums of sixteen lanes, and the channel statistics they amount to.
//
// A task sums its channels in fp32 around a shift close to their mean, spilling to fp64 every
// kSpill vectors, and tests nothing on the way: a NaN, an infinity, an overflow or a bad shift
// shows in the sums. Channels whose sums cannot be trusted are summed again: with a better shift,
// with masks over non-finite elements, or with masks in fp64. The task is in the cache by then.

constexpr int kSpill = 64;  // fp32 additions per lane, and a tree of 4: rounding below 68 * 2^-24

template <class Real>
struct PowerSums {
  Lanes<Real> s1, s2, l1, least, greatest;  // of x - shift, its square, |x|, x, x
  Mask<Real> zero;                          // a counter
};

template <class Real, bool kMasked>
struct Sums : PowerSums<Real> {};
template <class Real>
struct Sums<Real, true> : PowerSums<Real> {
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
  sums.s1 = sums.s2 = sums.l1 = set(Real{0});
  sums.least = set(kInf);
  sums.greatest = set(-kInf);
  sums.zero = set(Int{0});
  if constexpr (kMasked) sums.nan = sums.posinf = sums.neginf = set(Int{0});
}
HOOKSTATS_INLINE void clear(WideSums& wide) { wide.s1 = wide.s2 = wide.l1 = set(0.0); }

template <class Real>
HOOKSTATS_INLINE void add_powers(PowerSums<Real>& sums, const Lanes<Real>& deviation) {
  sums.s1 = sums.s1 + deviation;
  sums.s2 = multiply_add(deviation, deviation, sums.s2);
}

template <class Real, bool kMasked>
HOOKSTATS_INLINE void add(Sums<Real, kMasked>& sums, const Lanes<Real>& x, const Lanes<Real>& shift,
                          const Mask<Real>* valid = nullptr) {
  if (!kMasked && valid == nullptr) {
    add_powers(sums, x - shift);
    sums.l1 = sums.l1 + abs(x);
    sums.least = min(sums.least, x);
    sums.greatest = max(sums.greatest, x);
    count_zeros(sums.zero, x);
    return;
  }
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  Mask<Real> use;
  if constexpr (kMasked) {
    Mask<Real> nan = ne(x, x), posinf = eq(x, set(kInf)), neginf = eq(x, set(-kInf));
    use = lt(abs(x), set(kInf));
    if (valid != nullptr) use = use & *valid;  // lanes that are not valid hold zeros
    count_lanes(sums.nan, nan);
    count_lanes(sums.posinf, posinf);
    count_lanes(sums.neginf, neginf);
  } else {
    use = *valid;
  }
  add_powers(sums, select(use, x - shift, set(Real{0})));
  sums.l1 = sums.l1 + select(use, abs(x), set(Real{0}));
  sums.least = min(sums.least, select(use, x, set(kInf)));
  sums.greatest = max(sums.greatest, select(use, x, set(-kInf)));
  count_lanes(sums.zero, eq(x, set(Real{0})) & use);
}

// GCC would make two loops of one that adds to sums and increments counters.
HOOKSTATS_INLINE void keep_together() { __asm__ volatile(""); }

// What loops over sums are given where no histogram is counted while they add; `Whole` is the other
// kind.
struct SumsAlone {
  struct Increments {
    static constexpr bool kTakesLong = false;  // longer than memory does
    int64_t vectors = 0;                       // with how many there is something to interleave

    template <class Real>
    HOOKSTATS_INLINE void find(const Lanes<Real>&, int64_t = kLanes) {}
    template <int kVectors>
    HOOKSTATS_INLINE void interleave() {}
  };

  template <class F>
  HOOKSTATS_INLINE void with(int64_t, int64_t, int64_t, F&& f) const {
    Increments none;
    f(none);
  }
};

// Adds at most kSpill vectors, one after another.
template <class Real, bool kMasked, class Source, class Counting>
HOOKSTATS_INLINE void add_vectors(Sums<Real, kMasked>& sums, const Source* p, int64_t count,
                                  const Lanes<Real>& shift, int64_t ahead, Counting& counting) {
  counting.with(count, 1, count * kLanes, [&](auto& some) __attribute__((always_inline)) {
    Sums<Real, kMasked> local = sums;  // in registers
    const auto add_one = [&](int64_t i) {
      prefetch(p + i * kLanes, ahead);
      const Lanes<Real> x = load<Real, Source>(p + i * kLanes);
      add(local, x, shift);
      some.find(x);
    };
    int64_t i = 0;
    for (; i < some.vectors; ++i) {
      add_one(i);
      some.template interleave<1>();
    }
    for (; i < count; ++i) add_one(i);
    sums = local;
  });
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

template <class Real, bool kMasked>
HOOKSTATS_INLINE void spill(Sums<Real, kMasked>& sums, WideSums& wide) {
  wide.s1 = wide.s1 + to_double(sums.s1);
  wide.s2 = wide.s2 + to_double(sums.s2);
  wide.l1 = wide.l1 + to_double(sums.l1);
  sums.s1 = sums.s2 = sums.l1 = set(Real{0});
}

// --- from sums to channels ----------------------------------------------------------------------

// The sums of sixteen channels, one per lane.
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
  using Each = ChannelSums;
  for (Lanes<double> Each::* each :
       {&Each::shift, &Each::s1, &Each::s2, &Each::l1, &Each::least, &Each::greatest}) {
    copy_lane(to.*each, lane, from.*each, from_lane);
  }
  for (Lanes<int64_t> Each::* each :
       {&Each::seen, &Each::zero, &Each::nan, &Each::posinf, &Each::neginf}) {
    copy_lane(to.*each, lane, from.*each, from_lane);
  }
}

// The sums of sixteen channels of `kMasked` sums, but for their shifts and numbers: `add` takes a
// function from sums to a field, and adds up what the sums of each channel have there; `least` and
// `greatest` likewise. `wide` adds up sums that may have spilled to fp64.
template <bool kMasked, class Wide, class Add, class Least, class Greatest>
HOOKSTATS_INLINE ChannelSums channel_sums(Wide&& wide, Add&& add, Least&& least,
                                          Greatest&& greatest) {
  ChannelSums total;
  total.s1 = wide([](const auto& sums) -> const auto& { return sums.s1; });
  total.s2 = wide([](const auto& sums) -> const auto& { return sums.s2; });
  total.l1 = wide([](const auto& sums) -> const auto& { return sums.l1; });
  total.least = to_double(least([](const auto& sums) -> const auto& { return sums.least; }));
  total.greatest =
      to_double(greatest([](const auto& sums) -> const auto& { return sums.greatest; }));
  total.zero = to_int64(add([](const auto& sums) -> const auto& { return sums.zero; }));
  if constexpr (kMasked) {
    total.nan = to_int64(add([](const auto& sums) -> const auto& { return sums.nan; }));
    total.posinf = to_int64(add([](const auto& sums) -> const auto& { return sums.posinf; }));
    total.neginf = to_int64(add([](const auto& sums) -> const auto& { return sums.neginf; }));
  } else {
    total.nan = total.posinf = total.neginf = set(int64_t{0});
  }
  return total;
}

// How many elements are finite.
HOOKSTATS_INLINE Lanes<int64_t> finite(const ChannelSums& sums) {
  return sums.seen - sums.nan - sums.posinf - sums.neginf;
}
HOOKSTATS_INLINE Lanes<double> mean(const ChannelSums& sums) {
  return sums.shift + sums.s1 / to_double(finite(sums));
}

// The shift to sum around again: the mean, as far as sums tell it.
template <class Real>
Lanes<Real> shift_of(const Lanes<double>& mean) {
  double means[kLanes];
  Real shift[kLanes];
  store(means, mean);
  for (int i = 0; i < kLanes; ++i) shift[i] = static_cast<Real>(means[i]);
  return load_lanes<Real>(shift);
}

// Whether sums in precision Real can be trusted, or else how to make them again.
enum Verdict : int64_t { kTrusted, kShiftAgain, kMask, kWiden };

template <class Real>
HOOKSTATS_INLINE Lanes<int64_t> judge(const ChannelSums& sums) {
  constexpr bool kSingle = sizeof(Real) == sizeof(float);
  const Lanes<double> inf = set(std::numeric_limits<double>::infinity());
  const Lanes<double> n = to_double(finite(sums));
  // NaN and infinities poison the sums, that of magnitudes too; squares above the range of Real
  // that of squares.
  const Mask<double> clean = lt(sums.l1, inf);
  const Mask<double> constant = eq(sums.s2, set(0.0)) & eq(sums.least, sums.greatest);
  // Squares below the normal range of Real lose digits: 1e-30 leaves them 1e-8 of the sum.
  const Lanes<double> least = n * set(kSingle ? 1e-30 : 0.0);
  const Mask<double> normal = ge(sums.s2, least) & lt(sums.s2, inf);
  // A shift far from the mean costs digits: s2 is then much more than m2.
  const Lanes<double> off = sums.s1 * sums.s1 / n;
  const Mask<double> near = ge(set(kSingle ? 2.0 : 1e4) * (sums.s2 - off), off);
  Lanes<int64_t> verdict = select(clean & normal, set(int64_t{kShiftAgain}), set(int64_t{kWiden}));
  verdict = select(clean, verdict, set(int64_t{kMask}));
  const Mask<double> trusted = constant | (normal & near) | eq(n, set(0.0));
  return select(clean & trusted, set(int64_t{kTrusted}), verdict);
}
HOOKSTATS_INLINE bool has(const Lanes<int64_t>& verdict, Verdict which) {
  return any(eq(verdict, set(int64_t{which})));
}

// The channels that the lanes amount to. In one struct: GCC would hold the address of each array.
struct ChannelRows {
  int64_t count[kLanes], nan[kLanes], posinf[kLanes], neginf[kLanes], zero[kLanes];
  double mean[kLanes], m2[kLanes], min[kLanes], max[kLanes], l1[kLanes];

  HOOKSTATS_INLINE explicit ChannelRows(const ChannelSums& sums) {
    const Lanes<int64_t> counts = finite(sums);
    const Lanes<double> offset = sums.s1 / to_double(counts);
    const Lanes<double> spread = sums.s2 - sums.s1 * offset;
    // Rounding may leave m2 just below zero; fp64 squares that overflowed leave inf - inf.
    const Lanes<double> inf = set(std::numeric_limits<double>::infinity());
    const Lanes<double> none = select(lt(sums.s2, inf), set(0.0), sums.s2);
    const Lanes<double> squares = select(lt(set(0.0), spread), spread, none);
    const Mask<double> some = lt(set(0.0), to_double(counts));
    store(mean, select(some, sums.shift + offset, set(0.0)));
    store(m2, select(some, squares, set(0.0)));
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
    Channel c;
#define HOOKSTATS_TAKE(field, column) c.field = field[i];
    HOOKSTATS_MOMENTS(HOOKSTATS_TAKE)
    HOOKSTATS_TALLIES(HOOKSTATS_TAKE)
#undef HOOKSTATS_TAKE
    return c;
  }
};
