// The histograms of neighbouring channels.

// Histograms side by side, one per lane, of rows of lanes.
class RowHistograms {
 public:
  static int64_t counters(const Bins& bins, int64_t lanes) { return bins.slots() * lanes; }

  RowHistograms() = default;
  RowHistograms(const Bins& bins, uint16_t* counters, const Sample& sample)
      : bins_(&bins), counters_(counters), units_(sample) {}

  // `place` is that of p[0], in lane 0, in logical order.
  template <class Real, class Source>
  void add(const Source* p, int64_t n, int64_t ahead, int64_t place) {
    if (units_.every() > 1) return add_chosen<Real>(p, n, place);
    const int32_t size = static_cast<int32_t>(bins_->slots());
    with_slots<Real>(*bins_, [&](const auto& slots) {
      alignas(64) uint32_t which[kRowBlock];
      Lanes<int32_t> offset = iota<int32_t>() * fill(size);
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        store(which + i, slots(load<Real, Source>(p + i)) + offset);
        offset = offset + fill(kLanes * size);
      }
      if (i < n) store(which + i, slots(load_first<Real, Source>(p + i, n - i)) + offset);
      count<1>(p, n, ahead, which, counters_);
    });
    ++counted_;
  }

  template <class Real, class Source>
  void add_chosen(const Source* p, int64_t n, int64_t place) {
    const int32_t size = static_cast<int32_t>(bins_->slots());
    with_slots<Real>(*bins_, [&](const auto& slots) {
      const Lanes<int32_t> lane = iota<int32_t>() * fill(size);
      const auto part = [&](int64_t first, int64_t count) {
        alignas(64) uint32_t which[kLanes];
        const Lanes<Real> x = load_up_to<Real, Source>(p + first, count);
        const Lanes<int32_t> offset = lane + fill(static_cast<int32_t>(first) * size);
        const int64_t found = keep_finite(x, slots(x) + offset, count, which);
        for (int64_t i = 0; i < found; ++i) ++counters_[which[i]];
      };
      units_.each(place, n, [&](int64_t first) { part(first, kLanes); }, part);
    });
    ++counted_;
  }

  // Counts the finite ones of `n` <= kLanes elements of one lane; `count_rows` has counted the
  // rows.
  template <class Real, class Source>
  void add_kept(const Source* p, int64_t n, int64_t lane) {
    const Lanes<int32_t> offset = fill(static_cast<int32_t>(lane * bins_->slots()));
    with_slots<Real>(*bins_, [&](const auto& slots) {
      alignas(64) uint32_t which[kLanes];
      const Lanes<Real> x = load_first<Real, Source>(p, n);
      const int64_t found = keep_finite(x, slots(x) + offset, n, which);
      for (int64_t i = 0; i < found; ++i) ++counters_[which[i]];
    });
  }
  void count_rows(int64_t rows) { counted_ += rows; }

  // Can this many rows more be counted?
  bool has_room(int64_t rows) const { return counted_ + rows <= kMostCounted; }

  // `target_of(lane)` says where each lane's counts go.
  template <class TargetOf>
  void empty(int64_t lanes, TargetOf&& target_of) {
    if (counted_ == 0) return;
    const int64_t slots = bins_->slots();
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const Target target = target_of(lane);
      const uint16_t* row = counters_ + lane * slots;
      int64_t slot = 0;
      for (; slot + kLanes <= slots; slot += kLanes) {
        target.add_lanes(slot, slots, convert_halves<uint64_t>(row + slot));
      }
      for (; slot < slots; ++slot) {
        if (row[slot] != 0) target.add(slot, row[slot]);
      }
    }
    __builtin_memset(counters_, 0, static_cast<size_t>(counters(*bins_, lanes)) * sizeof(uint16_t));
    counted_ = 0;
  }

 private:
  const Bins* bins_ = nullptr;
  uint16_t* counters_ = nullptr;
  Units units_;
  int64_t counted_ = 0;  // rows, since the counters were empty
};
