// Sums of rows, of which each vector holds neighbouring channels.

// The sums of one vector of neighbouring channels.
template <class Source, class R, bool kMasked>
struct RowSums {
  Sums<R, kMasked> sums;
  WideSums wide;
  Lanes<R> shift;

  void reset() {
    clear(sums);
    clear(wide);
    shift = set(R{0});
  }

  // `ahead` is the distance to the next group of rows: neighbours too far apart for the
  // processor's own prefetching.
  template <class Counting>
  void add_rows(const Source* const* rows, int64_t count, int64_t column, int64_t lanes,
                bool narrow, int64_t ahead, Counting& counting) {
    const Lanes<R> about = shift;  // in registers
    if (lanes < kLanes) {
      // The lanes left over belong to no channel, or hold sums of wider rows.
      const Mask<R> valid = first_lanes<R>(lanes);
      counting.with(count, 1, count * lanes, [&](auto& some) {
        for (int64_t r = 0; r < count; ++r) {
          const Lanes<R> x = load_first<R, Source>(rows[r] + column, lanes);
          add(sums, x, about, narrow ? &valid : nullptr);
          some.find(x, lanes);
          if (r < some.vectors) some.template interleave<1>();
        }
      });
      return;
    }
    counting.with(count, 1, count * lanes, [&](auto& left_over) __attribute__((always_inline)) {
      Sums<R, kMasked> local = sums;  // in registers
      auto some = left_over;
      const auto add_one = [&](int64_t r) __attribute__((always_inline)) {
        prefetch(rows[r] + column, ahead);
        const Lanes<R> x = load<R, Source>(rows[r] + column);
        add(local, x, about);
        some.find(x);
      };
      const auto add_two = [&](int64_t r) __attribute__((always_inline)) {
        prefetch(rows[r] + column, ahead);
        prefetch(rows[r + 1] + column, ahead);
        const Lanes<R> x = load<R, Source>(rows[r] + column);
        const Lanes<R> y = load<R, Source>(rows[r + 1] + column);
        add(local, x, about);
        some.find(x);
        add(local, y, about);
        some.find(y);
      };
      int64_t r = 0;
      for (; r + 2 <= some.vectors; r += 2) {
        add_two(r);
        some.template interleave<2>();
      }
      if (r < some.vectors) {
        add_one(r++);
        some.template interleave<1>();
      }
      for (; r + 2 <= count; r += 2) add_two(r);
      if (r < count) add_one(r);
      sums = local;
      left_over = some;
    });
  }
};

// Two vectors side by side, if registers allow: additions to one need not wait for those to the
// other. This takes 0.87 of the time with 64 channels per row.
// `left_over` is what is left to interleave.
template <class Source, class Real, class Increments>
void add_pair(RowSums<Source, Real, false>& left, RowSums<Source, Real, false>& right,
              const Source* const* rows, int64_t count, int64_t column, int64_t ahead,
              Increments& left_over) {
  Sums<Real, false> a = left.sums, b = right.sums;
  Increments some = left_over;  // in registers
  const Lanes<Real> about_a = left.shift, about_b = right.shift;
  const auto add_row = [&](int64_t r) {
    const Source* p = rows[r] + column;
    prefetch(p, ahead);
    if constexpr (sizeof(Source) > 2) prefetch(p + kLanes, ahead);
    if constexpr (!Increments::kTakesLong) {  // else L2 is near enough
      prefetch<Use::kSoon>(p, 2 * kLanes);
      if constexpr (sizeof(Source) > 2) prefetch<Use::kSoon>(p + kLanes, 2 * kLanes);
    }
    const Lanes<Real> x = load<Real, Source>(p), y = load<Real, Source>(p + kLanes);
    add(a, x, about_a);
    some.find(x);
    add(b, y, about_b);
    some.find(y);
  };
  int64_t r = 0;
  for (; r < count && some.vectors > 0; ++r, some.vectors -= 2) {
    add_row(r);
    some.template interleave<2>();
  }
  for (; r < count; ++r) add_row(r);
  left.sums = a;
  right.sums = b;
  left_over = some;
}
