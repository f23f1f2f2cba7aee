// Sums of rows, of which each vector holds neighbouring channels.

// The sums of one vector of neighbouring channels.
template <class Source, class R, bool kMasked, bool kHigher>
struct RowSums {
  Sums<R, kMasked, kHigher> sums;
  WideSums<kHigher> wide;
  Frame<Lanes<R>, kHigher> frame;

  void reset() {
    clear(sums);
    clear(wide);
    frame = make_frame<kHigher>(fill(R{0}), fill(R{1}));
  }

  // `ahead` is the distance to the next group of rows: neighbours too far apart for the
  // processor's own prefetching.
  void add_rows(const Source* const* rows, int64_t count, int64_t column, int64_t lanes,
                bool narrow, int64_t ahead, Waiting* waiting) {
    Sums<R, kMasked, kHigher> local = sums;
    const Origin<R, kHigher> origin(frame);
    if (lanes == kLanes) {
      const auto add_row = [&](int64_t r) {
        prefetch(rows[r] + column, ahead);
        add(local, load<R, Source>(rows[r] + column), origin);
      };
      int64_t r = 0;
      for (Waiting::Increments some = Waiting::take(waiting, count, 1); r < some.vectors; ++r) {
        add_row(r);
        some.accompany<1>();
      }
      for (; r < count; ++r) add_row(r);
    } else if (!narrow) {  // the lanes left over belong to no channel
      for (int64_t r = 0; r < count; ++r) {
        add(local, load_first<R, Source>(rows[r] + column, lanes), origin);
      }
    } else {  // the lanes left over hold sums of wider rows
      const Mask<R> valid = first_lanes<R>(lanes);
      for (int64_t r = 0; r < count; ++r) {
        add(local, load_first<R, Source>(rows[r] + column, lanes), origin, &valid);
      }
    }
    sums = local;
  }
};

// Two vectors side by side, if registers allow: additions to one need not wait for those to the
// other. This takes 0.87 of the time with 64 channels per row.
template <class Source, class Real, bool kHigher>
void add_pair(RowSums<Source, Real, false, kHigher>& left,
              RowSums<Source, Real, false, kHigher>& right, const Source* const* rows,
              int64_t count, int64_t column, int64_t ahead, Waiting* waiting) {
  Sums<Real, false, kHigher> a = left.sums, b = right.sums;
  const Origin<Real, kHigher> of_a(left.frame), of_b(right.frame);
  const auto add_row = [&](int64_t r) {
    const Source* p = rows[r] + column;
    prefetch(p, ahead);
    if constexpr (sizeof(Source) > 2) prefetch(p + kLanes, ahead);
    add(a, load<Real, Source>(p), of_a);
    add(b, load<Real, Source>(p + kLanes), of_b);
  };
  int64_t r = 0;
  for (Waiting::Increments some = Waiting::take(waiting, 2 * count, 2); 2 * r < some.vectors; ++r) {
    add_row(r);
    some.accompany<2>();
  }
  for (; r < count; ++r) add_row(r);
  left.sums = a;
  right.sums = b;
}
