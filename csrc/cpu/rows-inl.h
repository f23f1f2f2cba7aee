// Channels last: each vector holds neighbouring channels.

template <class Source, class Real>
class Rows : Reader<Source> {
  using Base = Reader<Source>;
  using Base::p_, Base::plan_, Base::scratch_, Base::view_;

 public:
  static constexpr bool kFloats = std::is_same_v<Real, float>;
  static constexpr bool kCountsWithSums = kFloats && Histogram::kCountsWithSums;

  Rows(const Job& job, int64_t begin, int64_t end) : Base(job, begin, end) {
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
  using Totals = ChannelSums;

  template <class R, bool kMasked>
  using SumsOf = RowSums<Source, R, kMasked>;

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

  // Counts `count` rows from `row` on, of which `rows` has the first element of each.
  void count_rows(const Task& task, const Source* const* rows, int64_t count, int64_t width,
                  int64_t row, int64_t ahead, Histogram* tensor, RowHistograms* by_channel) {
    const auto position_of = [&](int64_t r) {
      return this->position_of_row(r * plan_.joined) + task.channel_begin;
    };
    const int64_t row_stride = view_.outer_dims == 1 ? view_.outer[0].stride * plan_.joined : 0;
    // Rows that touch are one run: takes 0.7 of the time with 64 channels per row.
    const bool together = follow(row, count);
    const bool touch = count == 1 || ((plan_.packed || (together && row_stride == width)) &&
                                      (!plan_.samples() || (together && plan_.width == width)));
    if (tensor != nullptr && touch) {
      const int64_t segment = plan_.packed ? 0 : kSegment;
      tensor->add<Real, Source>(rows[0], count * width, segment, position_of(row));
    }
    if (by_channel != nullptr && !by_channel->has_room(count)) empty();
    if (touch && by_channel == nullptr) return;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t position = position_of(row + r);
      if (tensor != nullptr && !touch) tensor->add<Real, Source>(rows[r], width, ahead, position);
      if (by_channel != nullptr) by_channel->add<Real, Source>(rows[r], width, ahead, position);
    }
  }

  // Sums the first `vectors` of the block, and counts.
  void sum_rows(const Task& task, SumsOf<Real, false>* sums, int64_t vectors, Histogram* tensor,
                RowHistograms* by_channel) {
    if constexpr (kCountsWithSums) {
      if (plan_.by_key) {
        whole_.into(*tensor);
        return sum_rows(task, sums, 0, vectors, nullptr, by_channel, whole_);
      }
    }
    sum_rows(task, sums, 0, vectors, tensor, by_channel, nothing);
  }

  // Sums the vectors [first, last) of the block, with which `counting` goes, and counts the
  // histograms while the rows are in L1.
  template <class R, bool kMasked, class Counting>
  void sum_rows(const Task& task, SumsOf<R, kMasked>* sums, int64_t first, int64_t last,
                Histogram* tensor, RowHistograms* by_channel, Counting& counting) {
    int pending = 0;
    const int64_t ahead = plan_.packed ? 0 : kRowGroup * last_dim().stride * plan_.joined;
    each_group(task, [&](const Source* const* rows, int64_t count, int64_t width, int64_t row) {
      if (tensor != nullptr || by_channel != nullptr) {
        count_rows(task, rows, count, width, row, ahead, tensor, by_channel);
      }
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
    });
    for (int64_t v = first; v < last; ++v) spill(sums[v - first].sums, sums[v - first].wide);
  }

  template <class R, bool kMasked>
  Totals to_channels(const Task& task, int64_t v, const SumsOf<R, kMasked>& row) const {
    const auto wide = [&](auto field) { return load_lanes<double>(&field(row.wide)); };
    const auto own = [&](auto field) -> const auto& { return field(row.sums); };
    Totals sums = channel_sums<kMasked>(wide, own, own, own);
    sums.shift = to_double(row.shift);
    // The last row may be narrower than the others.
    const int64_t rows = task.row_end - task.row_begin;
    const int64_t narrow = task.row_end == plan_.rows ? plan_.last_width : plan_.width;
    const int64_t first = task.channel_begin + v * kLanes;
    sums.seen = set(rows);
    if (first + kLanes > narrow) {
      sums.seen = sums.seen + ge(iota<int64_t>(), set(narrow - first));
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
      sums = sum_vector<Real, false>(task, v, shift_of<Real>(mean(sums)));
    } else if (!has(verdict, kWiden)) {
      sums = sum_vector<Real, true>(task, v, finite_shift<Real>(task, v));
      verdict = judge<Real>(sums);
      if (any(verdict) && !has(verdict, kMask) && !has(verdict, kWiden)) {
        sums = sum_vector<Real, true>(task, v, shift_of<Real>(mean(sums)));
      }
    }
    if (!any(judge<Real>(sums))) return;
    sums = sum_vector<double, true>(task, v, finite_shift<double>(task, v));
  }

  template <class R, bool kMasked>
  Totals sum_vector(const Task& task, int64_t v, const Lanes<R>& shift) {
    SumsOf<R, kMasked> sums;
    sums.reset();
    sums.shift = shift;
    sum_rows(task, &sums, v, v + 1, nullptr, nullptr, nothing);
    return to_channels(task, v, sums);
  }

  // The mean of each lane's first finite values, which one group of rows mostly has.
  template <class R>
  Lanes<R> finite_shift(const Task& task, int64_t v) {
    const Lanes<double> share = set(1.0 / kRowGroup);  // so that no sum overflows
    Lanes<double> sum = set(0.0), found = set(0.0);
    Mask<double> missing = set(int64_t{-1});
    each_group(task, [&](const Source* const* rows, int64_t count, int64_t width, int64_t) {
      const int64_t left = width - v * kLanes;
      if (left <= 0 || !any(missing)) return;
      for (int64_t r = 0; r < count; ++r) {
        const Source* p = rows[r] + v * kLanes;
        const Lanes<double> x = load_first<double, Source>(p, left < kLanes ? left : kLanes);
        const Mask<double> use = missing & eq(x - x, set(0.0));
        sum = sum + select(use, x * share, set(0.0));
        found = found + select(use, share, set(0.0));
      }
      missing = eq(found, set(0.0));
    });
    return shift_of<R>(select(missing, set(0.0), sum / found));
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
      const Lanes<Real> mean = tree[0] * set(share);
      sums[v].shift = select(eq(mean - mean, set(Real{0})), mean, set(Real{0}));
    }
  }

  static constexpr SumsAlone nothing{};

  RowHistograms by_channel_;
  std::conditional_t<kCountsWithSums, Whole, SumsAlone> whole_;
  Task counted_{};  // whose block's counts are in by_channel_
};
