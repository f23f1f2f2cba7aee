// Channels last: each vector holds neighbouring channels.

template <class Source, class Real, bool kHigher>
class Rows : Reader<Source> {
  using Base = Reader<Source>;
  using Base::p_, Base::plan_, Base::scratch_, Base::view_;

 public:
  static constexpr bool kFloats = std::is_same_v<Real, float>;
  static constexpr bool kCountsWithSums = kFloats && Histogram::kCountsWithSums;

  Rows(const Job& job, int64_t begin, int64_t end)
      : Base(job, begin, end),
        tensor_units_(job.plan.tensor_sample),
        channel_units_(job.plan.channel_sample) {
    if (p_.channel_bins.kind == BinKind::kNone) return;
    by_channel_ =
        RowHistograms(p_.channel_bins,
                      zero_counters(scratch_.channel_counters,
                                    RowHistograms::counters(p_.channel_bins, plan_.block)),
                      plan_.channel_sample);
  }

  void run(const Task& task, Histogram* tensor) {
    const int64_t channels = task.channel_end - task.channel_begin;
    const int64_t vectors = ceil_div(channels, kLanes);
    SumsOf<Real, false> sums[kRowBlock / kLanes];
    for (int64_t v = 0; v < vectors; ++v) sums[v].reset();
    shift_rows(task, sums, vectors);
    RowHistograms* by_channel = nullptr;
    if (p_.channel_bins.kind != BinKind::kNone) {
      if (task.block != counted_.block) empty();
      counted_ = task;
      by_channel = &by_channel_;
    }
    sum_rows(task, sums, vectors, tensor, by_channel);
    for (int64_t v = 0; v < vectors; ++v) settle(task, v, sums[v]);
  }

  void finish() {
    if constexpr (kCountsWithSums) whole_.finish();
    if (p_.channel_bins.kind != BinKind::kNone) empty();
  }

 private:
  using Totals = ChannelSums<kHigher>;

  template <class R, bool kMasked>
  using SumsOf = RowSums<Source, R, kMasked, kHigher>;

  void empty() {
    by_channel_.empty(counted_.channel_end - counted_.channel_begin, [this](int64_t lane) {
      return this->channel_target(counted_, (counted_.channel_begin + lane) % view_.channels);
    });
  }

  // Whether what `count` rows from `row` on have, joined or not, follows each other.
  bool follow(int64_t row, int64_t count) const {
    if (view_.kept == nullptr) return true;
    const int64_t first = row * plan_.joined, left = view_.outer_size - first;
    return view_.follow_each_other(first,
                                   left < count * plan_.joined ? left : count * plan_.joined);
  }

  // The `n` lanes of a joined row from lane `first` on, or where a mask keeps rows that are apart,
  // a copy of them.
  const Source* read_joined(int64_t row, int64_t first, int64_t n, int64_t buffer_offset) {
    const int64_t channels = view_.channels, row_begin = row * plan_.joined;
    if (follow(row, 1)) {
      return this->read(view_.outer_offset(row_begin) + first, 1, n, buffer_offset);
    }
    int64_t m;
    for (int64_t lane = first; lane < first + n; lane += m) {
      const int64_t channel = lane % channels, left = first + n - lane;
      m = channels - channel < left ? channels - channel : left;
      this->gather(view_.outer_offset(row_begin + lane / channels) + channel, m,
                   buffer_offset + lane - first);
    }
    return reinterpret_cast<const Source*>(scratch_.packed.data()) + buffer_offset;
  }

  // The dimension along which rows follow each other.
  Dim last_dim() const {
    return view_.outer_dims > 0 ? view_.outer[view_.outer_dims - 1] : Dim{1, 0};
  }

  // Calls f(rows, count, width, row) on groups of rows from `row` on; each pointer is at the
  // block's first channel. The last row may be narrower than the others: it comes alone.
  template <class F>
  void each_group(const Task& task, F&& f) {
    const int64_t width = task.channel_end - task.channel_begin;
    const Dim run = last_dim();
    const Source* rows[kRowGroup];
    int64_t count = 0, offset = 0, left = 0;
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      const bool narrow = row == plan_.rows - 1 && plan_.last_width < plan_.width;
      if (narrow && count > 0) {
        f(rows, count, width, row - count);
        count = 0;
      }
      const int64_t valid = narrow ? plan_.last_width - task.channel_begin : width;
      if (valid <= 0) continue;
      const int64_t n = width < valid ? width : valid;
      if (plan_.joined > 1) {
        rows[count] = read_joined(row, task.channel_begin, n, count * width);
      } else {
        if (left == 0 || view_.kept != nullptr) {  // the divisions of each row would show
          offset = view_.outer_offset(row) + task.channel_begin * view_.channel_stride;
          left = run.size - row % run.size;
        }
        rows[count] = this->read(offset, view_.channel_stride, n, count * width);
        offset += run.stride;
        --left;
      }
      ++count;
      if (count == kRowGroup || row + 1 == task.row_end) {
        f(rows, count, width < valid ? width : valid, row + 1 - count);
        count = 0;
      }
    }
    if (count > 0) f(rows, count, width, task.row_end - count);
  }

  // Some rows of a task, and where the first element of each is.
  struct Group {
    const Source* const* rows;
    int64_t count, width, row;
  };

  // Those that are counted; each may be null.
  struct Histograms {
    Histogram* tensor;
    RowHistograms* by_channel;

    bool some() const { return tensor != nullptr || by_channel != nullptr; }
  };

  // Counts along rows.
  void count_rows(const Task& task, const Group& group, int64_t ahead, const Histograms& into) {
    const Source* const* const rows = group.rows;
    const int64_t count = group.count, width = group.width, row = group.row;
    Histogram* const tensor = into.tensor;
    RowHistograms* const by_channel = into.by_channel;
    const auto place_of = [&](int64_t r) {
      return (plan_.joined == 1 ? this->place_of_row(r) : r * plan_.width) + task.channel_begin;
    };
    const int64_t row_stride = view_.outer_dims == 1 ? view_.outer[0].stride * plan_.joined : 0;
    const int64_t place_stride = view_.outer_dims == 1 ? view_.outer_place[0] * plan_.joined : 0;
    // Rows that touch are one run: takes 0.7 of the time with 64 channels per row.
    const bool together = follow(row, count);
    const bool touch = count == 1 || ((plan_.packed || (together && row_stride == width)) &&
                                      (!plan_.samples() || (together && place_stride == width)));
    if (tensor != nullptr && touch) {
      const int64_t segment = plan_.packed ? 0 : kSegment;
      tensor->add<Real, Source>(rows[0], count * width, segment, place_of(row), waiting_);
    }
    if (by_channel != nullptr && !by_channel->has_room(count)) empty();
    if (touch && by_channel == nullptr) return;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t place = place_of(row + r);
      if (tensor != nullptr && !touch) {
        tensor->add<Real, Source>(rows[r], width, ahead, place, waiting_);
      }
      if (by_channel != nullptr) by_channel->add<Real, Source>(rows[r], width, ahead, place);
    }
  }

  // Calls f(p, stride, n, column) on what a sample has of some rows, of which only the first is at
  // hand: n <= kLanes elements of one column of the block, `stride` apart.
  template <class F>
  void each_across(const Task& task, UnitsAcross& units, const Group& group, F&& f) {
    const Dim run = last_dim();
    const int64_t stride = plan_.packed ? group.width : run.stride;
    const int64_t offset = view_.outer_offset(group.row), end = group.row + group.count;
    int64_t n;
    for (int64_t row = group.row; row < end; row += n) {
      const int64_t behind = row % run.size, left = run.size - behind;
      n = end - row < left ? end - row : left;
      const Source* const p = group.rows[0] + (plan_.packed ? (row - group.row) * stride
                                                            : view_.outer_offset(row) - offset);
      // Of what is packed, only these rows can be read.
      const int64_t of_task = row - task.row_begin;
      const int64_t before = plan_.packed ? 0 : behind < of_task ? behind : of_task;
      const bool goes_on = !plan_.packed && n < left && row + n < task.row_end;
      const int64_t place = this->place_of_row(row) + task.channel_begin * view_.channel_place;
      units.each({place, view_.channel_place, group.width, n, before, goes_on},
                 [&](int64_t column, int64_t i, int64_t m) {
                   f(p + i * stride + column, stride, m, column);
                 });
    }
  }

  // Counts what samples have of some rows, of which only the first is at hand, where logical order
  // goes from row to row.
  void count_columns(const Task& task, const Group& group, const Histograms& into) {
    if (into.tensor != nullptr) {
      Source values[kCountBlock];
      int64_t found = 0;
      each_across(task, tensor_units_, group,
                  [&](const Source* p, int64_t stride, int64_t n, int64_t) {
                    if (found > kCountBlock - kLanes) {
                      into.tensor->template add_kept<Real, Source>(values, found, waiting_);
                      found = 0;
                    }
                    copy_apart(p, stride, n, values + found);
                    found += n;
                  });
      into.tensor->template add_kept<Real, Source>(values, found, waiting_);
    }
    if (into.by_channel == nullptr) return;
    if (!into.by_channel->has_room(group.count)) empty();
    into.by_channel->count_rows(group.count);
    each_across(task, channel_units_, group,
                [&](const Source* p, int64_t stride, int64_t n, int64_t column) {
                  Source values[kLanes];
                  copy_apart(p, stride, n, values);
                  into.by_channel->template add_kept<Real, Source>(values, n, column);
                });
  }

  // Sums the first `vectors` of the block, and counts.
  void sum_rows(const Task& task, SumsOf<Real, false>* sums, int64_t vectors, Histogram* tensor,
                RowHistograms* by_channel) {
    if constexpr (kCountsWithSums) {
      if (plan_.by_key) {
        whole_.into(*tensor, this->elements());
        return sum_rows(task, sums, 0, vectors, nullptr, by_channel, whole_);
      }
    }
    const WithSample sample{plan_.samples() ? &waiting_ : nullptr};
    sum_rows(task, sums, 0, vectors, tensor, by_channel, sample);
  }

  // Sums the vectors [first, last) of the block, with which `counting` goes, and counts the
  // histograms while the rows are in L1.
  template <class R, bool kMasked, class Counting>
  void sum_rows(const Task& task, SumsOf<R, kMasked>* sums, int64_t first, int64_t last,
                Histogram* tensor, RowHistograms* by_channel, Counting& counting) {
    int pending = 0;
    const int64_t ahead = plan_.packed ? 0 : kRowGroup * last_dim().stride * plan_.joined;
    const bool tensor_across = plan_.across && !plan_.tensor_sample.all();
    const bool channels_across = plan_.across && !plan_.channel_sample.all();
    const Histograms in_rows{tensor_across ? nullptr : tensor,
                             channels_across ? nullptr : by_channel};
    const Histograms in_columns{tensor_across ? tensor : nullptr,
                                channels_across ? by_channel : nullptr};
    const Source* uncounted = nullptr;
    int64_t uncounted_rows = 0;
    each_group(task, [&](const Source* const* rows, int64_t count, int64_t width, int64_t row) {
      if (in_rows.some()) count_rows(task, {rows, count, width, row}, ahead, in_rows);
      const bool narrow = width < task.channel_end - task.channel_begin;
      int64_t v = first;
      if constexpr (!kMasked && std::is_same_v<R, Real> && Lanes<R>::kParts == 1) {
        constexpr int64_t kAtOnce = kSpill / kRowGroup;
        const int64_t whole = width / kLanes < last ? width / kLanes : last;
        // Where rows are pages apart, along the rows, and from their ends to the next group: twice
        // as many pages at once, of two groups, take up to 1.15 times as long.
        constexpr int64_t kAhead = 16, kApart = kRowGroup * 16384 / int64_t{sizeof(Source)};
        const bool along = ahead >= kApart && whole - first > kAhead;
        const auto ahead_of = [&](int64_t at) {
          if (!along) return ahead;
          return at + kAhead < whole ? kAhead * kLanes : ahead - (whole - first - kAhead) * kLanes;
        };
        // Rows that are not aligned end in one line more.
        for (int64_t r = 0; r < count && whole > first; ++r) {
          prefetch(rows[r] + whole * kLanes - 1, ahead);
        }
        while (v + 2 <= whole) {
          const int64_t pairs = (whole - v < kAtOnce ? whole - v : kAtOnce) / 2;
          const int64_t vectors = 2 * pairs * count;
          counting.with(vectors, 2, vectors * kLanes, [&](auto& some) {
            for (int64_t i = 0; i < pairs; ++i, v += 2) {
              add_pair(sums[v - first], sums[v - first + 1], rows, count, v * kLanes, ahead_of(v),
                       some);
            }
          });
        }
      }
      for (; v < last; ++v) {
        const int64_t column = v * kLanes;
        const int64_t lanes = width - column < kLanes ? width - column : kLanes;
        if (lanes <= 0) continue;
        sums[v - first].add_rows(rows, count, column, lanes, narrow, ahead, counting);
      }
      pending += kRowGroup;
      if (pending >= kSpill) {
        for (int64_t v = first; v < last; ++v) spill(sums[v - first].sums, sums[v - first].wide);
        pending = 0;
      }
      if (!in_columns.some()) return;
      if (uncounted_rows == 0) uncounted = rows[0];
      uncounted_rows += count;
      // Some rows later: fewer units are cut in two, and more channels have one at once.
      const int64_t end = row + count;
      const bool waits = end < task.row_end && (uncounted_rows + count) * width <= kRunTask;
      if (waits && !plan_.packed) return;
      // Rows of a map that goes on are left for the next time.
      const bool by_maps = plan_.map_rows > 0 && !plan_.packed && end < task.row_end;
      const int64_t left = by_maps ? end % plan_.map_rows : 0;
      if (left >= uncounted_rows) return;
      count_columns(task, {&uncounted, uncounted_rows - left, width, end - uncounted_rows},
                    in_columns);
      uncounted_rows = left;
      if (left > 0) uncounted = rows[0] + view_.outer_offset(end - left) - view_.outer_offset(row);
    });
    for (int64_t v = first; v < last; ++v) spill(sums[v - first].sums, sums[v - first].wide);
    waiting_.finish();
  }

  template <class R, bool kMasked>
  Totals to_channels(const Task& task, int64_t v, const SumsOf<R, kMasked>& row) const {
    Totals sums;
    sums.shift = to_double(row.frame.shift);
    sums.s1 = lanes_at<double>(&row.wide.s1);
    sums.s2 = lanes_at<double>(&row.wide.s2);
    sums.l1 = lanes_at<double>(&row.wide.l1);
    if constexpr (kHigher) {
      sums.unit = fill(1.0) / to_double(row.frame.inverse);
      sums.s3 = lanes_at<double>(&row.wide.s3);
      sums.s4 = lanes_at<double>(&row.wide.s4);
    }
    sums.least = to_double(row.sums.least);
    sums.greatest = to_double(row.sums.greatest);
    sums.zero = to_int64(row.sums.zero);
    if constexpr (kMasked) {
      sums.nan = to_int64(row.sums.nan);
      sums.posinf = to_int64(row.sums.posinf);
      sums.neginf = to_int64(row.sums.neginf);
    } else {
      sums.nan = sums.posinf = sums.neginf = fill(int64_t{0});
    }
    // The last row may be narrower than the others.
    const int64_t rows = task.row_end - task.row_begin;
    const int64_t narrow = task.row_end == plan_.rows ? plan_.last_width : plan_.width;
    const int64_t first = task.channel_begin + v * kLanes;
    sums.seen = fill(rows);
    if (first + kLanes > narrow) {
      sums.seen = sums.seen + at_least(iota<int64_t>(), fill(narrow - first));
    }
    return sums;
  }

  void settle(const Task& task, int64_t v, const SumsOf<Real, false>& row) {
    const int64_t first = task.channel_begin + v * kLanes;
    const int64_t left = task.channel_end - first;
    const int lanes = static_cast<int>(left < kLanes ? left : kLanes);
    Totals sums = to_channels(task, v, row);
    if (any(judge<Real>(sums))) sum_again(task, v, sums);
    this->put(task, first, lanes, sums);
  }

  void sum_again(const Task& task, int64_t v, Totals& sums) {
    Lanes<int64_t> verdict = judge<Real>(sums);
    if (!has(verdict, kMask) && !has(verdict, kWiden)) {
      sums = sum_vector<Real, false>(task, v, frame_of<Real>(sums));
    } else if (!has(verdict, kWiden)) {
      sums = sum_vector<Real, true>(task, v, frame_finite<Real>(task, v));
      verdict = judge<Real>(sums);
      if (any(verdict) && !has(verdict, kMask) && !has(verdict, kWiden)) {
        sums = sum_vector<Real, true>(task, v, frame_of<Real>(sums));
      }
    }
    if (!any(judge<Real>(sums))) return;
    sums = sum_vector<double, true>(task, v, frame_finite<double>(task, v));
  }

  template <class R, bool kMasked>
  Totals sum_vector(const Task& task, int64_t v, const Frame<Lanes<R>, kHigher>& frame) {
    SumsOf<R, kMasked> sums;
    sums.reset();
    sums.frame = frame;
    const WithSample nothing;
    sum_rows(task, &sums, v, v + 1, nullptr, nullptr, nothing);
    return to_channels(task, v, sums);
  }

  // The frame of each lane's first finite values, which one group of rows has as a rule.
  template <class R>
  Frame<Lanes<R>, kHigher> frame_finite(const Task& task, int64_t v) {
    const Lanes<double> share = fill(1.0 / kRowGroup);  // so that no sum overflows
    Lanes<double> sum = fill(0.0), squares = fill(0.0), found = fill(0.0);
    Mask<double> missing = fill(int64_t{-1});
    each_group(task, [&](const Source* const* rows, int64_t count, int64_t width, int64_t) {
      const int64_t left = width - v * kLanes;
      if (left <= 0 || !any(missing)) return;
      for (int64_t r = 0; r < count; ++r) {
        const Source* p = rows[r] + v * kLanes;
        const Lanes<double> x = load_first<double, Source>(p, left < kLanes ? left : kLanes);
        const Mask<double> use = missing & equal(x - x, fill(0.0));
        sum = sum + select(use, x * share, fill(0.0));
        if constexpr (kHigher) squares = squares + select(use, x * x * share, fill(0.0));
        found = found + select(use, share, fill(0.0));
      }
      missing = equal(found, fill(0.0));
    });
    const Lanes<double> mean = select(missing, fill(0.0), sum / found);
    return frame_of<R, kHigher>(mean, squares / found - mean * mean);
  }

  // The mean of a few rows: one row alone would be more than a standard deviation off for one
  // channel in six. They are spread over the task, since neighbours are alike in sequences: the
  // first eight rows of GPT-2's were so far off in 5 % of the channels, in half of all vectors.
  // They are not evenly apart, as sequences of one length would have them at few of their places. A
  // tree over a power of two of them is exact for a constant.
  void shift_rows(const Task& task, SumsOf<Real, false>* sums, int64_t vectors) {
    constexpr int64_t kMost = 8;
    const bool is_last = task.row_end == plan_.rows && plan_.last_width < plan_.width;
    const int64_t full = task.row_end - task.row_begin - is_last;  // rows that have all channels
    int64_t few = 1;
    while (few < kMost && 2 * few <= full) few *= 2;
    Lanes<Real> heads[kMost][kRowBlock / kLanes];
    for (int64_t r = 0; r < few; ++r) {
      Task head = task;
      head.row_begin = task.row_begin + (kMost * r + (5 * r + 3) % kMost) * full / (kMost * few);
      head.row_end = head.row_begin + 1;
      each_group(head, [&](const Source* const* rows, int64_t, int64_t width, int64_t) {
        for (int64_t v = 0; v < vectors; ++v) {
          const int64_t left = width - v * kLanes;
          const int64_t lanes = left < 0 ? 0 : left < kLanes ? left : kLanes;
          store(&heads[r][v], load_first<Real, Source>(rows[0] + v * kLanes, lanes));
        }
      });
    }
    const Real share = Real{1} / static_cast<Real>(few);
    for (int64_t v = 0; v < vectors; ++v) {
      Lanes<Real> tree[kMost];
      for (int64_t r = 0; r < few; ++r) tree[r] = heads[r][v];
      for (int64_t half = few / 2; half > 0; half /= 2) {
        for (int64_t r = 0; r < half; ++r) tree[r] = tree[r] + tree[r + half];
      }
      const Lanes<Real> mean = tree[0] * fill(share);
      const Lanes<Real> shift = select(equal(mean - mean, fill(Real{0})), mean, fill(Real{0}));
      Lanes<Real> size = fill(Real{0});
      if constexpr (kHigher) {
        for (int64_t r = 0; r < few; ++r) size = max(size, abs(heads[r][v] - shift));
      }
      sums[v].frame = make_frame<kHigher>(shift, inverse_unit(size));
    }
  }

  UnitsAcross tensor_units_, channel_units_;
  RowHistograms by_channel_;
  Waiting waiting_;  // for the tensor's histogram
  std::conditional_t<kCountsWithSums, Whole, WithSample> whole_;
  Task counted_{};  // whose block's counts are in by_channel_
};
