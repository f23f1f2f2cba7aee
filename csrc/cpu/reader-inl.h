// What the workers of both layouts share: where elements come from and where results go.

constexpr int64_t kSegment = 4096;  // elements summed, then counted, while in L1

constexpr int kRowGroup = 16;  // rows read side by side

// Source is the storage type of what is read: the tensor's own, or the packed buffer's.
template <class Source>
class Reader {
 protected:
  // For the tasks [begin, end).
  Reader(const Job& job, int64_t begin, int64_t end)
      : job_(job),
        begin_(begin),
        end_(end),
        p_(job.params),
        view_(job.params.view),
        plan_(job.plan),
        scratch_(thread_scratch()) {
    if (plan_.packed || (view_.kept != nullptr && plan_.joined > 1)) {
      const int64_t elements = plan_.layout == Layout::kRuns ? kSegment : kRowGroup * plan_.block;
      const size_t needed = static_cast<size_t>(elements) * sizeof(Source) / sizeof(double) + 1;
      if (scratch_.packed.size() < needed) scratch_.packed.resize(needed);
    }
    element_size_ = dispatch(p_.dtype, [](auto* type) { return int64_t{sizeof(*type)}; });
  }

  // Hands on the statistics of `count` channels from `first` on, one per lane.
  void put(const Task& task, int64_t first, int count, const ChannelSums& sums) {
    const ChannelRows rows(sums);
    if (!plan_.direct) {
      Channel* partials = job_.partials + task.split * plan_.width + first;
      for (int i = 0; i < count; ++i) partials[i] = rows.at(i);
      return;
    }
    for (int i = 0; i < count; ++i) accumulate_channel(p_, first + i, rows.at(i));
    if (!any(sums.nan | sums.posinf | sums.neginf)) return;
    // Perhaps before these elements are counted: threads add their counts when they end.
    int64_t nan = 0, posinf = 0, neginf = 0;
    for (int i = 0; i < count; ++i) {
      discount_channel(p_, plan_, first + i, rows.at(i));
      nan += rows.nan[i];
      posinf += rows.posinf[i];
      neginf += rows.neginf[i];
    }
    discount_tensor(p_, plan_, nan, posinf, neginf);
  }

  // The `count` elements from element `offset` on, `stride` apart.
  const Source* read(int64_t offset, int64_t stride, int64_t count, int64_t buffer_offset) {
    const char* address = static_cast<const char*>(p_.data) + offset * element_size_;
    if (!plan_.packed) return reinterpret_cast<const Source*>(address);
    Source* buffer = reinterpret_cast<Source*>(scratch_.packed.data()) + buffer_offset;
    job_.pack(address, stride, count, p_.scale, buffer);
    return buffer;
  }

  // Brings elements that are side by side into the buffer in any case.
  void gather(int64_t offset, int64_t count, int64_t buffer_offset) {
    Source* buffer = reinterpret_cast<Source*>(scratch_.packed.data()) + buffer_offset;
    const char* address = static_cast<const char*>(p_.data) + offset * element_size_;
    if (plan_.packed) {
      job_.pack(address, 1, count, p_.scale, buffer);
    } else {
      __builtin_memcpy(buffer, address, static_cast<size_t>(count) * sizeof(Source));
    }
  }

  // The position of outer index `row`'s first element (core/sample.h); 0 where nobody asks.
  int64_t position_of_row(int64_t row) const {
    return plan_.samples() ? view_.outer_index(row) * view_.channels * view_.inner.size : 0;
  }

  // Where the counts of a channel of the task go. The counts belong to this thread alone if all
  // tasks that add to them do.
  Target channel_target(const Task& task, int64_t channel) const {
    const int64_t first = task.block * plan_.splits();
    const bool whole_block = plan_.splits() == 1 || (plan_.block_major && begin_ <= first &&
                                                     first + plan_.splits() <= end_);
    const bool own =
        end_ - begin_ == plan_.tasks() || (whole_block && (plan_.joined == 1 || plan_.blocks == 1));
    return {p_.channel_counts + channel * p_.channel_bins.slots(), view_.repeat, !own};
  }

  const Job& job_;
  const int64_t begin_, end_;
  const UpdateParams& p_;
  const ChannelView& view_;
  const Plan& plan_;
  Scratch& scratch_;
  int64_t element_size_;
};
