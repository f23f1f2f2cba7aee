// Channels first, rows, whole tensors: each vector holds elements of one channel.

template <class Source, class Real>
class Runs : Reader<Source> {
  using Base = Reader<Source>;
  using Base::p_, Base::plan_, Base::scratch_, Base::view_;

 public:
  Runs(const Job& job, int64_t begin, int64_t end) : Base(job, begin, end) {}

  void run(const Task& task, Histogram* tensor) {
    const int64_t channels = task.channel_end - task.channel_begin;
    const int64_t seen = (task.row_end - task.row_begin) * (task.inner_end - task.inner_begin);
    RunSums<Real, false> sums[kLanes];  // plan.block is at most kLanes
    for (int64_t c = 0; c < channels; ++c) sums[c].reset();
    if (p_.channel_bins.kind == BinKind::kNone) {
      sum_runs(task, sums, tensor, nullptr);
    } else {
      const int64_t size = Histogram::counters(p_.channel_bins);
      uint16_t* counters = zero_counters(scratch_.channel_counters, size * channels);
      Histogram by_channel[kLanes];
      for (int64_t c = 0; c < channels; ++c) {
        by_channel[c] = Histogram(p_.channel_bins, counters + c * size,
                                  this->channel_target(task, task.channel_begin + c), seen);
      }
      sum_runs(task, sums, tensor, by_channel);
      for (int64_t c = 0; c < channels; ++c) by_channel[c].empty();
    }
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t channel = task.channel_begin + c;
      this->partial(task, channel) = settle(task, channel, sums[c].finish(seen));
    }
  }

  void finish() {}

 private:
  template <class R, bool kMasked>
  struct RunSums {
    Sums<R, kMasked> sums;
    WideSums wide;
    R shift;
    int pending;  // additions since the last spill

    void reset() {
      clear(sums);
      clear(wide);
      shift = R{0};
      pending = 0;
    }

    void add_run(const Source* p, int64_t n) {
      Sums<R, kMasked> local = sums;  // in registers
      const Lanes<R> k = fill(shift);
      int64_t i = 0;
      while (i + kLanes <= n) {
        const int64_t vectors = (n - i) / kLanes;
        const int64_t steps = vectors < kSpill - pending ? vectors : kSpill - pending;
        int64_t step = 0;
        // With one register a vector, every addition would wait for the one before: two sums take
        // turns, 0.8 of the time. With more of them, registers are few and waits are short.
        if constexpr (!kMasked && Lanes<R>::kParts == 1) {
          Sums<R, kMasked> other;
          clear(other);
          for (; step + 2 <= steps; step += 2, i += 2 * kLanes) {
            add<kMasked, R>(local, load<R, Source>(p + i), k);
            add<kMasked, R>(other, load<R, Source>(p + i + kLanes), k);
          }
          join(local, other);
        }
        for (; step < steps; ++step, i += kLanes) {
          add<kMasked, R>(local, load<R, Source>(p + i), k);
        }
        pending += static_cast<int>(steps);
        if (pending == kSpill) {
          spill(local, wide);
          pending = 0;
        }
      }
      if (i < n) {
        const Mask<R> valid = first_lanes<R>(n - i);
        add<kMasked, R>(local, load_first<R, Source>(p + i, n - i), k, &valid);
        if (++pending == kSpill) {
          spill(local, wide);
          pending = 0;
        }
      }
      sums = local;
    }

    ChannelSums finish(int64_t seen) {
      spill(sums, wide);
      ChannelSums r{};
      r.shift = static_cast<double>(shift);
      r.s1 = reduce_sum(wide.s1);
      r.s2 = reduce_sum(wide.s2);
      r.l1 = reduce_sum(wide.l1);
      r.least = static_cast<double>(reduce_min(sums.least));
      r.greatest = static_cast<double>(reduce_max(sums.greatest));
      r.seen = seen;
      r.zero = static_cast<int64_t>(reduce_sum(sums.zero));
      if constexpr (kMasked) {
        r.nan = static_cast<int64_t>(reduce_sum(sums.nan));
        r.posinf = static_cast<int64_t>(reduce_sum(sums.posinf));
        r.neginf = static_cast<int64_t>(reduce_sum(sums.neginf));
      }
      return r;
    }
  };

  // Mean of the first elements, by a tree: exact for a constant, and no worse than one standard
  // deviation off for nearly everything else.
  static Real first_shift(const Source* p, int64_t n) {
    if (n >= kLanes) return finite_or_zero(reduce_sum(load<Real, Source>(p)) * Real(1.0 / kLanes));
    const Lanes<Real> few = load_first<Real, Source>(p, n);
    return finite_or_zero(reduce_sum(few) / static_cast<Real>(n));
  }

  template <class R>
  static R finite_or_zero(R x) {
    return x - x == R{0} ? x : R{0};
  }

  // Sets `shift` to the first finite element, if there is one.
  static bool first_finite(const Source* p, int64_t n, double& shift) {
    for (int64_t i = 0; i < n; ++i) {
      const double x = static_cast<double>(widen(p[i]));
      if (x - x == 0.0) {
        shift = x;
        return true;
      }
    }
    return false;
  }

  // Calls f(p, n) on each piece of the channel's part of the task.
  template <class F>
  void each_segment(const Task& task, int64_t channel, int64_t row_offset, F&& f) {
    const int64_t start = row_offset + channel * view_.channel_stride;
    for (int64_t i = task.inner_begin; i < task.inner_end; i += kSegment) {
      const int64_t n = task.inner_end - i < kSegment ? task.inner_end - i : kSegment;
      f(this->read(start + i * view_.inner.stride, view_.inner.stride, n, 0), n);
    }
  }

  template <class R, bool kMasked>
  ChannelSums sum_again(const Task& task, int64_t channel, R shift) {
    RunSums<R, kMasked> sums;
    sums.reset();
    sums.shift = shift;
    bool shifted = !kMasked;
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      each_segment(task, channel, view_.outer_offset(row), [&](const Source* p, int64_t n) {
        if constexpr (kMasked) shifted = shifted || first_finite(p, n, sums.shift);
        sums.add_run(p, n);
      });
    }
    return sums.finish((task.row_end - task.row_begin) * (task.inner_end - task.inner_begin));
  }

  Channel settle(const Task& task, int64_t channel, ChannelSums sums) {
    Verdict verdict = judge<Real>(sums);
    if (verdict == Verdict::kShiftAgain) {
      const double mean = sums.shift + sums.s1 / static_cast<double>(sums.seen);
      sums = sum_again<Real, false>(task, channel, static_cast<Real>(mean));
      verdict = judge<Real>(sums);
    }
    if (verdict != Verdict::kTrusted) sums = sum_again<double, true>(task, channel, 0.0);
    return to_channel(sums);
  }

  void sum_runs(const Task& task, RunSums<Real, false>* sums, Histogram* tensor,
                Histogram* by_channel) {
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      const int64_t row_offset = view_.outer_offset(row);
      for (int64_t channel = task.channel_begin; channel < task.channel_end; ++channel) {
        const int64_t c = channel - task.channel_begin;
        bool first = row == task.row_begin;
        each_segment(task, channel, row_offset, [&](const Source* p, int64_t n) {
          if (first) sums[c].shift = first_shift(p, n);
          first = false;
          sums[c].add_run(p, n);
          if (tensor != nullptr) tensor->add<Real, Source>(p, n, kSegment);
          if (by_channel != nullptr) by_channel[c].add<Real, Source>(p, n, kSegment);
        });
      }
    }
  }
};
