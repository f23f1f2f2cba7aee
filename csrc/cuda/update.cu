// Launches: gathers the tensors that one launch can take, and gives each its part of the workspace.
#include "cuda/update.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/plan.h"

namespace hookstats::cuda {

namespace {

// What kernels know of a mask, which is of no use to them without flags.
RowFlags row_flags(const ChannelView& view) {
  RowFlags rows;
  if (view.flags == nullptr) return rows;
  rows = {view.flags, view.row_positions(), view.row_outer, {}};
  rows.by_row_outer = make_divisor(static_cast<uint32_t>(std::min(view.row_outer, kMostDivided)));
  return rows;
}

// The view of a masked tensor with outer dimensions joined where memory allows. Outer indices keep
// their order, and so the rows that they are of.
ChannelView with_joined_rows(const ChannelView& view) {
  ChannelView joined = view;
  joined.outer_dims = 0;
  for (int d = 0; d < view.outer_dims; ++d) {
    const Dim& dim = view.outer[d];
    Dim& last = joined.outer[joined.outer_dims > 0 ? joined.outer_dims - 1 : 0];
    if (joined.outer_dims > 0 && last.stride == dim.stride * dim.size) {
      last = {last.size * dim.size, dim.stride};
    } else {
      joined.outer[joined.outer_dims++] = dim;
    }
  }
  return joined;
}

constexpr size_t kCounterBytes = kBlockCounters * sizeof(uint32_t);

// The tensors of one launch, with one agent, one source and one set of bins: a table, and the
// memory that its tensors need together.
template <int kItems>
struct Batch {
  AgentKind agent;
  SourceKind source;
  int64_t partials, blocks;
  int32_t block_counters, scratch;
  Table<kItems> table;

  void begin(const UpdateParams& p, const Plan& plan) {
    agent = plan.agent;
    source = plan.source;
    partials = blocks = 0;
    block_counters = scratch = 0;
    table.common = {p.dtype,       static_cast<int32_t>(element_size(p.dtype)),
                    p.tensor_bins, p.channel_bins,
                    p.scale,       p.device_scale,
                    p.sampling,    p.recorded,
                    plan.shared,   row_flags(p.view)};
    table.count = 0;
  }

  bool takes(const UpdateParams& p, const Plan& plan) const {
    const Common& common = table.common;
    const auto same = [](const Bins& a, const Bins& b) {
      return a.kind == b.kind && a.bins == b.bins && a.edges == b.edges &&
             a.descriptor == b.descriptor && a.shift == b.shift && a.base == b.base;
    };
    return agent == plan.agent && source == plan.source && common.dtype == p.dtype &&
           same(common.tensor_bins, p.tensor_bins) && same(common.channel_bins, p.channel_bins) &&
           common.scale == p.scale && common.device_scale == p.device_scale &&
           common.sampling == p.sampling && common.recorded == p.recorded &&
           std::memcmp(&common.shared, &plan.shared, sizeof(Shared)) == 0;
  }

  bool has_room_for(const Plan& plan) const {
    constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
    return table.count < kItems && block_counters + plan.block_counters <= kBlockCounters &&
           blocks + plan.item.blocks <= kMostBlocks;
  }

  void add(const UpdateParams& p, const Plan& plan) {
    Item& item = table.items[table.count];
    item = plan.item;
    // From where the workspace begins, for now.
    item.block_counters =
        reinterpret_cast<uint32_t*>(static_cast<size_t>(block_counters) * sizeof(uint32_t));
    item.partials = reinterpret_cast<uint64_t*>(kCounterBytes +
                                                static_cast<size_t>(partials) * sizeof(Channel));
    item.first_block = static_cast<int32_t>(blocks);
    std::copy_n(p.view.outer, p.view.outer_dims, table.outer + table.count * table.kDims);
    ++table.count;
    partials += plan.partials;
    block_counters += plan.block_counters;
    blocks += plan.item.blocks;
    scratch = std::max(scratch, plan.scratch);
  }

  // The batch has to begin again after that.
  void launch(const Device& device, Lender& lender, Stream stream) {
    if (partials > 0) place(lender);
    const size_t shared = static_cast<size_t>(table.common.shared.scratch) +
                          static_cast<size_t>(scratch) * kEntryBytes;
    const LaunchConfig config{blocks, kBlock, shared, stream, device.index, device.shared_bytes};
    switch (source) {
      case SourceKind::kFloat32:
        return launch_agent<Vectors<float>>(table, agent, config);
      case SourceKind::kFloat16:
        return launch_agent<Vectors<Half>>(table, agent, config);
      case SourceKind::kBFloat16:
        return launch_agent<Vectors<BFloat16>>(table, agent, config);
      case SourceKind::kScalars:
        return launch_agent<Scalars>(table, agent, config);
    }
  }

 private:
  void place(Lender& lender) {
    const size_t bytes = kCounterBytes + static_cast<size_t>(partials) * sizeof(Channel);
    const Workspace workspace = lender.lend(bytes);
    if (workspace.bytes < bytes) {
      throw std::invalid_argument("workspace has " + std::to_string(workspace.bytes) +
                                  " bytes; expected " + std::to_string(bytes));
    }
    const uintptr_t memory = reinterpret_cast<uintptr_t>(workspace.data);
    for (int32_t i = 0; i < table.count; ++i) {
      Item& item = table.items[i];
      item.block_counters =
          reinterpret_cast<uint32_t*>(memory + reinterpret_cast<uintptr_t>(item.block_counters));
      item.partials =
          reinterpret_cast<uint64_t*>(memory + reinterpret_cast<uintptr_t>(item.partials));
    }
  }
};

// Calls f(batch) on batches that hold all tensors, of one or of many.
template <class F>
void each_batch(const Device& device, const UpdateParams* params, int64_t count, F&& f) {
  std::vector<std::unique_ptr<Batch<kMany>>> open;
  Batch<1> single;
  int64_t all = 0;
  if (count > 1) {
    for (int64_t i = 0; i < count; ++i) {
      all += params[i].view.numel() * element_size(params[i].dtype);
    }
  }
  const auto take = [&](const UpdateParams& p) {
    const bool alone =
        count == 1 || p.view.outer_dims > Table<kMany>::kDims || p.view.flags != nullptr;
    const Plan plan = make_plan(device, p, alone, all);
    if (alone) {
      single.begin(p, plan);
      single.add(p, plan);
      f(single);
      return;
    }
    auto batch =
        std::find_if(open.begin(), open.end(), [&](const auto& b) { return b->takes(p, plan); });
    if (batch == open.end()) {
      open.push_back(std::unique_ptr<Batch<kMany>>(new Batch<kMany>));
      batch = open.end() - 1;
      (*batch)->begin(p, plan);
    } else if (!(*batch)->has_room_for(plan)) {
      f(**batch);
      (*batch)->begin(p, plan);
    }
    (*batch)->add(p, plan);
  };
  for (int64_t i = 0; i < count; ++i) {
    if (params[i].view.numel() == 0) continue;
    if (params[i].view.flags == nullptr) {
      take(params[i]);
      continue;
    }
    UpdateParams p = params[i];
    p.view = with_joined_rows(p.view);
    take(p);
  }
  for (const auto& batch : open) f(*batch);
}

}  // namespace

Device device(int index) {
  const DeviceLimits limits = device_limits(index);
  return {index, limits.multiprocessors, static_cast<size_t>(limits.shared_bytes)};
}

void update_many(const Device& device, const UpdateParams* params, int64_t count, Lender& lender,
                 Stream stream) {
  each_batch(device, params, count, [&](auto& batch) { batch.launch(device, lender, stream); });
}

void update(const Device& device, const UpdateParams& params, Lender& lender, Stream stream) {
  update_many(device, &params, 1, lender, stream);
}

}  // namespace hookstats::cuda
