// The histograms of neighbouring channels.

// Histograms side by side, one per lane, of rows of lanes.
class RowHistograms {
 public:
  static int64_t counters(const Bins& bins, int64_t lanes) { return bins.slots() * lanes; }

  RowHistograms() = default;
  RowHistograms(const Bins& bins, uint16_t* counters, const Sample& sample)
      : bins_(&bins), counters_(counters), sample_(sample) {}

  // `position` is that of p[0], in lane 0 (core/sample.h).
  template <class Real, class Source>
  void add(const Source* p, int64_t n, int64_t ahead, int64_t position) {
    if (!sample_.all()) return add_sample<Real>(p, n, position);
    const int32_t size = static_cast<int32_t>(bins_->slots());
    with_slots<Real>(*bins_, [&](const auto& slots) {
      alignas(64) uint32_t which[kRowBlock];
      Lanes<int32_t> offset = iota<int32_t>() * set(size);
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        store(which + i, slots(load<Real, Source>(p + i)) + offset);
        offset = offset + set(kLanes * size);
      }
      if (i < n) store(which + i, slots(load_first<Real, Source>(p + i, n - i)) + offset);
      count<1>(p, n, ahead, which, counters_);
    });
    ++counted_;
  }

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
  template <class Real, class Source>
  void add_sample(const Source* p, int64_t n, int64_t position) {
    const int32_t size = static_cast<int32_t>(bins_->slots());
    with_slots<Real>(*bins_, [&](const auto& slots) {
      const Lanes<int32_t> lane = iota<int32_t>() * set(size);
      each_sampled(sample_, position, n, [&](int64_t first, int64_t count) {
        alignas(64) uint32_t which[kLanes];
        const Lanes<Real> x = load_up_to<Real, Source>(p + first, count);
        const Lanes<int32_t> offset = lane + set(static_cast<int32_t>(first) * size);
        const int64_t found = keep_finite(x, slots(x) + offset, count, which);
        for (int64_t i = 0; i < found; ++i) ++counters_[which[i]];
      });
    });
    ++counted_;
  }

  const Bins* bins_ = nullptr;
  uint16_t* counters_ = nullptr;
  Sample sample_;
  int64_t counted_ = 0;  // rows, since the counters were empty
};
