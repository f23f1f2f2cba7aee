// Shifted sums of sixteen lanes, and the channel statistics they amount to.
//
// A task sums its channels in fp32 around a shift close to their mean, spilling to fp64 every
// kSpill vectors, and tests nothing on the way: a NaN, an infinity, an overflow or a bad shift
// shows in the sums. What cannot be trusted is summed again with a better shift, or in fp64 with
// masks. The task is in the cache by then.

constexpr int kSpill = 64;  // fp32 additions a lane: rounding stays below 64 * 2^-24

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

// --- from sums to a channel ---------------------------------------------------------------------

enum class Verdict { kTrusted, kShiftAgain, kWiden };

struct ChannelSums {
  double shift, s1, s2, l1, least, greatest;
  int64_t seen, zero, nan, posinf, neginf;
};

inline Channel to_channel(const ChannelSums& sums) {
  Channel c;
  c.count = sums.seen - sums.nan - sums.posinf - sums.neginf;
  c.nan = sums.nan;
  c.posinf = sums.posinf;
  c.neginf = sums.neginf;
  c.zero = sums.zero;
  if (c.count == 0) return c;
  const double n = static_cast<double>(c.count);
  c.mean = sums.shift + sums.s1 / n;
  c.m2 = sums.s2 - sums.s1 * sums.s1 / n;
  // Rounding may leave m2 just below zero; fp64 squares that overflowed leave inf - inf.
  if (!(c.m2 > 0.0)) c.m2 = sums.s2 < std::numeric_limits<double>::infinity() ? 0.0 : sums.s2;
  c.min = sums.least;
  c.max = sums.greatest;
  c.l1 = sums.l1;
  return c;
}

// Can these sums, made without masks in precision Real, be trusted?
template <class Real>
inline Verdict judge(const ChannelSums& sums) {
  constexpr bool kSingle = sizeof(Real) == sizeof(float);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  // NaN and infinities poison the sums; so do squares above the range of Real.
  if (!(sums.s2 < kInf) || !(sums.l1 < kInf)) return Verdict::kWiden;
  if (sums.s2 == 0.0 && sums.least == sums.greatest) return Verdict::kTrusted;  // constant
  const double n = static_cast<double>(sums.seen);
  // Squares below the normal range of Real lose digits: 1e-30 leaves them 1e-8 of the sum.
  if (kSingle && sums.s2 < n * 1e-30) return Verdict::kWiden;
  // A shift far from the mean costs digits: s2 is then much more than m2.
  const double off = sums.s1 * sums.s1 / n;
  const double m2 = sums.s2 - off;
  return off <= (kSingle ? 2.0 : 1e4) * m2 ? Verdict::kTrusted : Verdict::kShiftAgain;
}
