// Channels first, rows, whole tensors: each vector holds elements of one channel.

template <class Source, class Real>
class Runs : Reader<Source> {
  using Base = Reader<Source>;
  using Base::p_, Base::plan_, Base::scratch_, Base::view_;

 public:
  static constexpr bool kFloats = std::is_same_v<Real, float>;
  static constexpr bool kCountsWithSums = kFloats && Histogram::kCountsWithSums;

  Runs(const Job& job, int64_t begin, int64_t end) : Base(job, begin, end) {}

  void run(const Task& task, Histogram* tensor) {
    const int channels = static_cast<int>(task.channel_end - task.channel_begin);
    RunSums<Real, false> sums[kLanes];  // plan.block is at most kLanes
    if (p_.channel_bins.kind == BinKind::kNone) {
      sum_runs(task, sums, tensor, nullptr);
    } else {
      const int64_t size = Histogram::counters(p_.channel_bins);
      uint16_t* counters = zero_counters(scratch_.channel_counters, size * channels);
      Histogram by_channel[kLanes];
      for (int c = 0; c < channels; ++c) {
        by_channel[c] = Histogram(p_.channel_bins, counters + c * size,
                                  this->channel_target(task, task.channel_begin + c), seen(task),
                                  plan_.channel_sample, kFloats);
      }
      sum_runs(task, sums, tensor, by_channel);
      for (int c = 0; c < channels; ++c) by_channel[c].empty();
    }
    Totals total = to_channels(task, channels, sums);
    if (any(judge<Real>(total))) sum_again(task, channels, total);
    this->put(task, task.channel_begin, channels, total);
  }

  void finish() {
    if constexpr (kCountsWithSums) whole_.finish();
  }

 private:
  using Totals = ChannelSums;

  template <class R, bool kMasked>
  struct RunSums {
    Sums<R, kMasked> sums;
    R shift;
    int pending;   // additions since the last spill
    bool spilled;  // into `wide`
    WideSums wide;

    void reset(R about) {
      clear(sums);
      shift = about;
      pending = 0;
      spilled = false;
    }

    HOOKSTATS_INLINE void spill_into_wide(Sums<R, kMasked>& from) {
      if (!spilled) clear(wide);
      spilled = true;
      spill(from, wide);
      pending = 0;
    }

    // Adds `runs` runs of `n` elements, `stride` apart, and prefetches those `ahead`.
    template <class Counting>
    void add_runs(const Source* p, int64_t n, int64_t runs, int64_t stride, int64_t ahead,
                  Counting& counting) {
      Sums<R, kMasked> local = sums;  // in registers
      const Lanes<R> about = set(shift);
      for (; runs > 0; --runs, p += stride) {
        int64_t i = 0;
        while (i + kLanes <= n) {
          if (pending == kSpill) spill_into_wide(local);
          const int64_t vectors = (n - i) / kLanes;
          const int64_t steps = vectors < kSpill - pending ? vectors : kSpill - pending;
          int64_t step = 0;
          // With one register per vector, every addition would wait for the one before: two sums
          // take turns, in 0.8 of the time. With more registers per vector, waits are short anyway.
          if constexpr (!kMasked && Lanes<R>::kParts == 1) {
            if (steps >= 4) {
              const auto add_all = [&](auto& some) __attribute__((always_inline)) {
                Sums<R, kMasked> one = local, other;
                clear(other);
                const auto add_two = [&](int64_t at) {
                  prefetch(p + at, ahead);
                  if constexpr (sizeof(Source) > 2) prefetch(p + at + kLanes, ahead);
                  const Lanes<R> x = load<R, Source>(p + at), y = load<R, Source>(p + at + kLanes);
                  add(one, x, about);
                  some.find(x);
                  add(other, y, about);
                  some.find(y);
                };
                for (; step < some.vectors; step += 2, i += 2 * kLanes) {
                  add_two(i);
                  some.template interleave<2>();
                }
                for (; step + 2 <= steps; step += 2, i += 2 * kLanes) add_two(i);
                join(one, other);
                local = one;
              };
              counting.with(steps / 2 * 2, 2, steps / 2 * 2 * kLanes, add_all);
            }
          }
          add_vectors(local, p + i, steps - step, about, ahead, counting);
          i += (steps - step) * kLanes;
          pending += static_cast<int>(steps);
        }
        if (i < n) {
          if (pending == kSpill) spill_into_wide(local);
          const Mask<R> valid = first_lanes<R>(n - i);
          const Lanes<R> x = load_first<R, Source>(p + i, n - i);
          add(local, x, about, &valid);
          counting.with(1, 1, n - i, [&](auto& some) __attribute__((always_inline)) {
            some.find(x, n - i);
            if (some.vectors > 0) some.template interleave<1>();
          });
          ++pending;
        }
      }
      sums = local;
    }
  };

  // How far ahead counting prefetches: by a segment, read next. A sample does not read all of it.
  int64_t ahead() const { return plan_.packed || plan_.samples() ? 0 : kSegment; }

  static int64_t seen(const Task& task) {
    return (task.row_end - task.row_begin) * (task.inner_end - task.inner_begin);
  }

  // The first row of `task` with those after it that are part of the same run: rows that a mask
  // keeps of a tensor without channels, and that touch.
  Task run_of(const Task& task, int64_t row) const {
    Task run = task;
    run.row_begin = row;
    run.row_end = row + 1;
    const int64_t n = view_.inner.size;
    if (view_.kept == nullptr || view_.channels > 1 || view_.outer_dims != 1 ||
        plan_.inner_splits > 1 || view_.outer[0].stride != n * view_.inner.stride) {
      return run;
    }
    while (run.row_end < task.row_end && view_.follow_each_other(row, run.row_end + 1 - row)) {
      ++run.row_end;
    }
    run.inner_end = (run.row_end - row) * n;
    return run;
  }

  // The first element of the task in a channel, whose row begins at `row_offset`.
  int64_t start(const Task& task, int64_t channel, int64_t row_offset) const {
    return row_offset + channel * view_.channel_stride + task.inner_begin * view_.inner.stride;
  }

  // The position of that element, if `of_row` is that of the row's first.
  int64_t position(const Task& task, int64_t channel, int64_t of_row) const {
    return of_row + channel * view_.inner.size + task.inner_begin;
  }

  // Begins the sums of `count` channels of the task, from `first` on. The shift is the mean of the
  // channel's first elements, by a tree over a power of two of them: exact for a constant, and off
  // by at most one standard deviation for nearly everything else.
  void begin(const Task& task, int64_t first, int count, RunSums<Real, false>* sums) {
    const int64_t row_offset = view_.outer_offset(task.row_begin);
    const int64_t length = task.inner_end - task.inner_begin;
    int64_t n = kLanes;
    while (n > length) n /= 2;
    Lanes<Real> heads[kLanes];
    for (int c = 0; c < count; ++c) {
      const int64_t at = start(task, task.channel_begin + first + c, row_offset);
      const Source* const p = this->read(at, view_.inner.stride, n, 0);
      store(&heads[c], load_first<Real, Source>(p, n));
    }
    for (int c = count; c < kLanes; ++c) store(&heads[c], set(Real{0}));
    const Lanes<Real> sum = sum_each<Real>(count, [&](int c) -> const auto& { return heads[c]; });
    const Lanes<Real> mean = sum * set(Real{1} / static_cast<Real>(n));
    const Lanes<Real> shift = select(eq(mean - mean, set(Real{0})), mean, set(Real{0}));
    Real shifts[kLanes];
    store(shifts, shift);
    for (int c = 0; c < count; ++c) sums[first + c].reset(shifts[c]);
  }

  // Calls f(p, n, i) on each piece, from element i on, of the channel's part of the task.
  template <class F>
  void each_segment(const Task& task, int64_t channel, int64_t row_offset, F&& f) {
    const int64_t first = start(task, channel, row_offset);
    const int64_t length = task.inner_end - task.inner_begin;
    for (int64_t i = 0; i < length; i += kSegment) {
      const int64_t n = length - i < kSegment ? length - i : kSegment;
      f(this->read(first + i * view_.inner.stride, view_.inner.stride, n, 0), n, i);
    }
  }

  void sum_runs(const Task& task, RunSums<Real, false>* sums, Histogram* tensor,
                Histogram* by_channel) {
    if constexpr (kCountsWithSums) {
      if (plan_.by_key) {
        whole_.into(*tensor);
        return sum_runs(task, sums, nullptr, by_channel, whole_);
      }
    }
    sum_runs(task, sums, tensor, by_channel, nothing);
  }

  // `counting` goes with the sums, the histograms before or after them.
  template <class Counting>
  void sum_runs(const Task& task, RunSums<Real, false>* sums, Histogram* tensor,
                Histogram* by_channel, Counting& counting) {
    const int64_t channels = task.channel_end - task.channel_begin;
    int64_t next;
    for (int64_t row = task.row_begin; row < task.row_end; row = next) {
      const Task run = run_of(task, row);
      next = run.row_end;
      const int64_t elements = channels * (run.inner_end - run.inner_begin);
      const int64_t row_offset = view_.outer_offset(row);
      const int64_t of_row = this->position_of_row(row);
      if (elements <= kSegment && !plan_.packed) {
        if (row == task.row_begin) begin(run, 0, static_cast<int>(channels), sums);
        if (view_.outer_dims == 1 && view_.kept == nullptr) next = row + kSegment / elements;
        if (next > task.row_end) next = task.row_end;
        const int64_t rows = view_.kept == nullptr ? next - row : 1;
        sum_short(run, row_offset, of_row, rows, sums, tensor, by_channel, counting);
        continue;
      }
      for (int64_t c = 0; c < channels; ++c) {
        // One by one: heads of all might not stay in L1. Takes 0.8 to 0.9 of the time.
        if (row == task.row_begin) begin(run, c, 1, sums);
        const int64_t channel = task.channel_begin + c, at = position(run, channel, of_row);
        each_segment(run, channel, row_offset, [&](const Source* p, int64_t n, int64_t i) {
          sums[c].add_runs(p, n, 1, 0, std::is_same_v<Counting, Whole> ? ahead() : 0, counting);
          if (tensor != nullptr) tensor->add<Real, Source>(p, n, ahead(), at + i);
          if (by_channel != nullptr) by_channel[c].add<Real, Source>(p, n, ahead(), at + i);
        });
      }
    }
  }

  // Some rows of runs so short that all of them are in L1: the runs of a channel are added at once.
  // With channels finished together, this takes 0.4 of the time for 4x4 maps. Whole histograms read
  // first, as they prefetch; a sample would wait for each of its units.
  template <class Counting>
  void sum_short(const Task& task, int64_t row_offset, int64_t of_row, int64_t rows,
                 RunSums<Real, false>* sums, Histogram* tensor, Histogram* by_channel,
                 Counting& counting) {
    const int64_t channels = task.channel_end - task.channel_begin;
    const int64_t n = task.inner_end - task.inner_begin;
    const int64_t row_stride = rows > 1 ? view_.outer[0].stride : 0;
    const Source* const first = this->read(start(task, task.channel_begin, row_offset), 1, n, 0);
    const bool samples = plan_.samples();
    const auto count = [&](auto* of_tensor) {
      count_short(task, first, of_row, rows, row_stride, of_tensor, by_channel);
    };
    const auto add = [&](auto& with) {
      const int64_t ahead = channels * view_.channel_stride;
      for (int64_t c = 0; c < channels; ++c) {
        sums[c].add_runs(first + c * view_.channel_stride, n, rows, row_stride, ahead, with);
      }
    };
    if constexpr (std::is_same_v<Counting, Whole>) {
      if (n < kShortRun) {
        count(&counting);
        return add(nothing);
      }
    }
    if (!samples) count(tensor);
    add(counting);
    if (samples) count(tensor);
  }

  // All channels of a row are counted at once if they touch.
  template <class OfTensor>
  void count_short(const Task& task, const Source* first, int64_t of_row, int64_t rows,
                   int64_t row_stride, OfTensor* tensor, Histogram* by_channel) {
    const int64_t channels = task.channel_end - task.channel_begin;
    const int64_t n = task.inner_end - task.inner_begin;
    const int64_t apart = view_.channel_stride;
    const bool touch = apart == n && (!plan_.samples() || view_.inner.size == n);
    const int64_t first_position = position(task, task.channel_begin, of_row);
    for (int64_t r = 0; r < rows; ++r) {
      const Source* const p = first + r * row_stride;
      const int64_t at = first_position + r * view_.channels * view_.inner.size;
      if (tensor != nullptr && touch) {
        tensor->template add<Real, Source>(p, channels * n, ahead(), at);
      }
      for (int64_t c = 0; c < channels; ++c) {
        const Source* const of_channel = p + c * apart;
        const int64_t at_channel = at + c * view_.inner.size;
        if (tensor != nullptr && !touch) {
          tensor->template add<Real, Source>(of_channel, n, ahead(), at_channel);
        }
        if (by_channel != nullptr) {
          by_channel[c].add<Real, Source>(of_channel, n, ahead(), at_channel);
        }
      }
    }
  }

  // A function from a channel to `field` of its sums.
  template <class R, bool kMasked, class Field>
  static auto of_each(const RunSums<R, kMasked>* sums, Field field) {
    return [=](int c) -> const auto& { return field(sums[c].sums); };
  }

  template <class R, bool kMasked>
  Totals to_channels(const Task& task, int channels, RunSums<R, kMasked>* sums) const {
    using Int = typename MaskOf<R>::type;
    const bool spilled = sums[0].spilled;  // then all are: their runs are as long
    for (int c = 0; spilled && c < channels; ++c) sums[c].spill_into_wide(sums[c].sums);
    const auto wide = [&](auto field) {
      if (!spilled) return to_double(sum_each<R>(channels, of_each(sums, field)));
      return sum_each<double>(channels, [&](int c) -> const auto& { return field(sums[c].wide); });
    };
    Totals total = channel_sums<kMasked>(
        wide, [&](auto field) { return sum_each<Int>(channels, of_each(sums, field)); },
        [&](auto field) { return min_each<R>(channels, of_each(sums, field)); },
        [&](auto field) { return max_each<R>(channels, of_each(sums, field)); });
    R shifts[kLanes];
    for (int c = 0; c < kLanes; ++c) shifts[c] = sums[c < channels ? c : 0].shift;
    total.shift = to_double(load_lanes<R>(shifts));
    total.seen = set(seen(task));
    return total;
  }

  void sum_again(const Task& task, int channels, Totals& total) {
    int64_t verdict[kLanes];
    store(verdict, judge<Real>(total));
    Real shifts[kLanes];
    store(shifts, shift_of<Real>(mean(total)));
    for (int c = 0; c < channels; ++c) {
      const int64_t channel = task.channel_begin + c;
      if (verdict[c] == kShiftAgain) {
        copy_lane(total, c, sum_channel<Real, false>(task, channel, &shifts[c]), 0);
      } else if (verdict[c] == kMask) {
        copy_lane(total, c, sum_finite(task, channel), 0);
      }
    }
    store(verdict, judge<Real>(total));
    for (int c = 0; c < channels; ++c) {
      if (verdict[c] == kTrusted) continue;
      copy_lane(total, c, sum_channel<double, true>(task, task.channel_begin + c, nullptr), 0);
    }
  }

  // A channel with non-finite elements, in lane 0.
  Totals sum_finite(const Task& task, int64_t channel) {
    const Totals sums = sum_channel<Real, true>(task, channel, nullptr);
    if (!has(judge<Real>(sums), kShiftAgain)) return sums;
    Real shifts[kLanes];
    store(shifts, shift_of<Real>(mean(sums)));
    return sum_channel<Real, true>(task, channel, &shifts[0]);
  }

  // One channel, in lane 0; `shift` may be null where there are masks.
  template <class R, bool kMasked>
  Totals sum_channel(const Task& task, int64_t channel, const R* shift) {
    RunSums<R, kMasked> sums;
    sums.reset(shift != nullptr ? *shift : R{0});
    bool has_shift = shift != nullptr;
    int64_t next;
    for (int64_t row = task.row_begin; row < task.row_end; row = next) {
      const Task run = run_of(task, row);
      next = run.row_end;
      each_segment(run, channel, view_.outer_offset(row), [&](const Source* p, int64_t n, int64_t) {
        if (kMasked && !has_shift) has_shift = find_shift(p, n, sums.shift);
        sums.add_runs(p, n, 1, 0, 0, nothing);
      });
    }
    return to_channels(task, 1, &sums);
  }

  // Sets `shift` to the mean of the first finite elements, if there are any.
  template <class R>
  static bool find_shift(const Source* p, int64_t n, R& shift) {
    R few[kLanes];
    int count = 0;
    for (int64_t i = 0; i < n && count < kLanes; ++i) {
      few[count] = static_cast<R>(widen(p[i]));
      count += few[count] - few[count] == R{0};
    }
    R mean = 0;
    for (int i = 0; i < count; ++i) mean += few[i] / static_cast<R>(count);  // no sum overflows
    if (count > 0) shift = mean;
    return count > 0;
  }

  // Runs of fewer elements are counted together, before they are summed one by one: 8x8 maps take
  // 0.86 of the time.
  static constexpr int64_t kShortRun = 256;
  static constexpr SumsAlone nothing{};

  std::conditional_t<kCountsWithSums, Whole, SumsAlone> whole_;
};
