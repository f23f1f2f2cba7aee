// What the workers of both layouts share: where elements come from and where results go.

constexpr int64_t kSegment = 4096;  // elements summed, then counted, while in L1

// Source is the storage type of what is read: the tensor's own, or the packed buffer's.
template <class Source>
class Reader {
 protected:
  explicit Reader(const Job& job)
      : job_(job),
        p_(job.params),
        view_(job.params.view),
        plan_(job.plan),
        scratch_(thread_scratch()) {
    if (plan_.packed) {
      const int64_t elements = plan_.layout == Layout::kRuns ? kSegment : kRowGroup * plan_.block;
      const size_t needed = static_cast<size_t>(elements) * sizeof(Source) / sizeof(double) + 1;
      if (scratch_.packed.size() < needed) scratch_.packed.resize(needed);
    }
    element_size_ = dispatch(p_.dtype, [](auto* type) { return int64_t{sizeof(*type)}; });
  }

  Channel& partial(const Task& task, int64_t channel) {
    return job_.partials[task.split * plan_.width + channel];
  }

  // The `count` elements from element `offset` on, `stride` apart.
  const Source* read(int64_t offset, int64_t stride, int64_t count, int64_t buffer_offset) {
    const char* address = static_cast<const char*>(p_.data) + offset * element_size_;
    if (!plan_.packed) return reinterpret_cast<const Source*>(address);
    Source* buffer = reinterpret_cast<Source*>(scratch_.packed.data()) + buffer_offset;
    job_.pack(address, stride, count, p_.scale, buffer);
    return buffer;
  }

  const Job& job_;
  const UpdateParams& p_;
  const ChannelView& view_;
  const Plan& plan_;
  Scratch& scratch_;
  int64_t element_size_;
};
