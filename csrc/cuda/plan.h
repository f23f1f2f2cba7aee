// How one update is cut into splits, and how shared memory is laid out: by shape, alignment and
// Device alone, so that results do not depend on chance.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/state.h"
#include "cuda/kernels.h"
#include "cuda/policy.h"
#include "cuda/table.h"
#include "cuda/update.h"

namespace hookstats::cuda {

enum class SourceKind : uint8_t { kFloat32, kFloat16, kBFloat16, kScalars };

struct Plan {
  AgentKind agent;
  SourceKind source;
  Shared shared;
  Item item;  // but for first_block and its part of the workspace
  int64_t partials;
  int32_t block_counters;
  int32_t scratch;  // entries
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of an entry of a block's scratch memory.
constexpr size_t kEntryBytes = sizeof(Entry<Channel>);

// Entries of scratch memory that a block of columns needs: those of merges, or before these the
// totals of tiles and what is counted of infinities.
inline int64_t columns_entries(bool vectors) {
  constexpr int64_t kBytes = kTotalsBytes + 2 * kMostTallied * int64_t{sizeof(uint32_t)};
  const int64_t of_totals = ceil_div(kBytes, static_cast<int64_t>(kEntryBytes));
  return vectors ? std::max<int64_t>(kBlock, of_totals) : kBlock;
}

inline int64_t element_size(DType dtype) {
  return dispatch(dtype, [](auto* type) { return int64_t{sizeof(*type)}; });
}

// Whether all rows and channels begin at multiples of `bytes`.
inline bool aligned(const UpdateParams& p, int64_t bytes) {
  const int64_t size = element_size(p.dtype);
  if (reinterpret_cast<uintptr_t>(p.data) % static_cast<uintptr_t>(bytes) != 0) return false;
  for (int d = 0; d < p.view.outer_dims; ++d) {
    if (p.view.outer[d].stride * size % bytes != 0) return false;
  }
  return true;
}

// From one row to the next, where there are rows.
inline int64_t row_bytes(const UpdateParams& p) {
  return p.view.outer_dims == 0 ? 0 : p.view.outer[0].stride * element_size(p.dtype);
}

// Where the memory of a tensor ends; null for more dimensions than are read in vectors.
inline const void* end_of(const UpdateParams& p) {
  const ChannelView& view = p.view;
  if (view.outer_dims > 1) return nullptr;
  const int64_t rows = (view.outer_size - 1) * row_bytes(p);
  const int64_t row =
      (view.channels - 1) * view.channel_stride + (view.inner.size - 1) * view.inner.stride + 1;
  return static_cast<const char*>(p.data) + rows + row * element_size(p.dtype);
}

// Whether elements follow each other in memory as a view is walked.
inline bool is_dense(const ChannelView& view) {
  return (view.inner.size == 1 || view.inner.stride == 1) &&
         (view.channels == 1 || view.channel_stride == view.inner.size) &&
         (view.outer_size == 1 ||
          (view.outer_dims == 1 && view.outer[0].stride == view.channels * view.inner.size));
}

inline SourceKind vector_source(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return SourceKind::kFloat32;
    case DType::kFloat16:
      return SourceKind::kFloat16;
    case DType::kBFloat16:
      return SourceKind::kBFloat16;
    default:
      return SourceKind::kScalars;
  }
}

// Counters of a slot of a run's histogram.
inline int32_t copies(const Bins& bins) {
  const int64_t bytes = bins.slots() * kCopies * int64_t{sizeof(uint32_t)};
  return bytes <= kMostCopyBytes ? kCopies : 1;
}

// How many patterns fp32 values of the tensor are counted by instead of slots; 0 if by slots.
inline int32_t patterns(const UpdateParams& p, bool vectors) {
  const Bins& bins = p.tensor_bins;
  if (!vectors || bins.kind != BinKind::kLog) return 0;
  const int64_t n = int64_t{1} << (32 - bins.shift);
  return n <= kMostPatterns ? static_cast<int32_t>(n) : 0;
}

// `channel_counters` are those of a slot in all tables of channels, `scratch` the entries beside
// the tables. A histogram that has no room is counted in memory.
inline Shared plan_shared(const Device& device, const UpdateParams& p, bool vectors,
                          int64_t channel_counters, int64_t scratch = kBlock) {
  constexpr int64_t kBytes = sizeof(uint32_t);
  const int64_t room = static_cast<int64_t>(device.shared_bytes) -
                       scratch * static_cast<int64_t>(kEntryBytes) - kHistogramBytes;
  Shared shared;
  int64_t edges = 0, counters = 4;
  const auto add = [&](const Bins& bins, int64_t more, int32_t& edges_at, int32_t& table_at) {
    const int64_t more_edges = bins.kind == BinKind::kLinear ? bins.bins + 1 : 0;
    if ((edges + more_edges + counters + more) * kBytes > room) return;
    if (more_edges > 0) edges_at = static_cast<int32_t>(edges * kBytes);
    table_at = static_cast<int32_t>(counters * kBytes);  // from the first counter on, for now
    edges += more_edges;
    counters += more;
  };
  if (p.channel_bins.kind != BinKind::kNone) {
    shared.channel_copies = copies(p.channel_bins);
    add(p.channel_bins, p.channel_bins.slots() * channel_counters, shared.channel_edges,
        shared.channel_table);
  }
  if (p.tensor_bins.kind != BinKind::kNone) {
    const int32_t by_pattern = patterns(p, vectors);
    shared.tensor_copies = by_pattern > 0 ? 1 : copies(p.tensor_bins);
    const int64_t more = by_pattern > 0 ? by_pattern : p.tensor_bins.slots() * shared.tensor_copies;
    add(p.tensor_bins, more, shared.tensor_edges, shared.tensor_table);
    if (shared.tensor_table >= 0) shared.tensor_patterns = by_pattern;
  }
  shared.counters = static_cast<int32_t>(edges * kBytes);
  shared.counters_size = static_cast<int32_t>(counters);
  if (shared.channel_table >= 0) shared.channel_table += shared.counters;
  if (shared.tensor_table >= 0) shared.tensor_table += shared.counters;
  shared.histograms = static_cast<int32_t>(ceil_div((edges + counters) * kBytes, 16) * 16);
  shared.scratch = shared.histograms + static_cast<int32_t>(kHistogramBytes);
  return shared;
}

// Splits of about the same size, `wanted` of them if each is then worth `least`.
inline int64_t splits_of(int64_t size, int64_t wanted, int64_t least) {
  const int64_t needed = ceil_div(size, kMostSplit);
  return std::max(needed, std::clamp<int64_t>(size / std::max<int64_t>(least, 1), 1,
                                              std::max<int64_t>(wanted, 1)));
}

// Whether the rows of `slots` vectors are those of a few lanes each: where they are short, or not
// too few. What ends a row is then done for several rows of a warp together.
inline bool rows_of_lanes(const Device& device, const UpdateParams& p, int64_t slots) {
  const int64_t tables = kBlock / kLanes * p.channel_bins.slots() * int64_t{sizeof(uint32_t)};
  if (p.view.flags != nullptr || slots > kMostLaneSlots) return false;
  if (p.channel_bins.kind != BinKind::kNone && tables > kMostWarpTables) return false;
  return slots <= 4 * kLanes * kItemsPerThread || p.view.channels >= 4 * device.multiprocessors;
}

// Blocks of runs that are there at a time.
inline int64_t runs_together(const Device& device, const UpdateParams& p) {
  const bool counts = p.tensor_bins.kind != BinKind::kNone || p.channel_bins.kind != BinKind::kNone;
  return int64_t{device.multiprocessors} * (counts ? kCountingBlocks : kRunsBlocks);
}

// Bytes that a block with a table reads at least, of a tensor of `own` bytes in a call with `all`:
// the more there is for every multiprocessor, the fewer tables are cleared and added to memory.
inline int64_t least_counted(const Device& device, int64_t own, int64_t all) {
  const int64_t blocks = int64_t{device.multiprocessors} * kCountingBlocks * 8;
  return own >= all ? kLeastCounted : std::clamp(all / blocks, kLeastCounted, kMostCounted);
}

// Into how many splits each of `channels` channels of `slots` slots is cut, `most` at most: so that
// `together` blocks end at about the same time, in the first of their rounds or in a later one.
inline int64_t splits_by_rounds(int64_t slots, int64_t channels, int64_t together, int64_t most) {
  constexpr int64_t kEnd = 4 * kBlock * kItemsPerThread;  // slots that the end of a split is worth
  int64_t best = 1, least = ceil_div(channels, together) * (slots + kEnd);
  for (int64_t rounds = 1; rounds <= 4; ++rounds) {
    const int64_t splits = std::min(rounds * together / channels, most);
    if (splits <= 1) continue;
    const int64_t all = ceil_div(channels * splits, together) * (ceil_div(slots, splits) + kEnd);
    if (all < least) {
      least = all;
      best = splits;
    }
  }
  return best;
}

// A split of so many tiles that none but the last split ends within one.
inline int64_t whole_tiles(int64_t size, int64_t tile) { return ceil_div(size, tile) * tile; }

inline void plan_runs(const Device& device, const UpdateParams& p, bool vectors, Plan& plan) {
  const ChannelView& view = p.view;
  const int64_t size = element_size(p.dtype);
  const int64_t elements = vectors ? 16 / size : 1;
  const bool whole = aligned(p, 16) && (view.channels == 1 || view.channel_stride * size % 16 == 0);
  // A row that begins anywhere touches one vector more than one that begins where vectors do.
  const auto slots_of = [&](int64_t n) {
    return ceil_div(n + (whole ? 0 : elements - 1), elements);
  };
  const int64_t tile = kBlock * kItemsPerThread;
  const int64_t slots = view.outer_size * slots_of(view.inner.size);  // of a channel
  const int64_t warp_tables = kWarps * p.channel_bins.slots() * int64_t{sizeof(uint32_t)};
  const bool tables_fit = p.channel_bins.kind == BinKind::kNone || warp_tables <= kMostWarpTables;
  const bool many = view.channels >= int64_t{device.multiprocessors} * kFillingWarps;
  Item& item = plan.item;
  if (tables_fit && (slots <= kWarpSlots || (many && slots <= kWarpTiles * tile))) {
    item.groups = vectors && rows_of_lanes(device, p, slots) ? kBlock / kLanes : kWarps;
    item.row_splits = item.inner_splits = 1;
  } else {
    item.groups = 1;
    const int64_t units = device.multiprocessors;
    int64_t together = runs_together(device, p);
    if (p.tensor_bins.kind != BinKind::kNone) {
      together = std::min(together, ceil_div(view.numel() * size, kLeastCounted));
    }
    const int64_t most = std::min(
        {units * kSplits / view.channels, units * kChannelSplits, slots / (kLeastTiles * tile)});
    const int64_t wanted = splits_by_rounds(slots, view.channels, together, most);
    const int64_t splits = std::max(wanted, ceil_div(slots, kMostSplit));
    const int64_t row_splits = std::min(splits, view.outer_size);
    item.inner_splits =
        static_cast<int32_t>(row_splits < view.outer_size ? 1 : ceil_div(splits, row_splits));
    item.row_splits = static_cast<int32_t>(row_splits);
  }
  item.inner_step = whole_tiles(ceil_div(view.inner.size, item.inner_splits),
                                (item.inner_splits > 1 ? tile : 1) * elements);
  item.inner_splits = static_cast<int32_t>(ceil_div(view.inner.size, item.inner_step));
  item.row_step = ceil_div(view.outer_size, item.row_splits);
  item.row_splits = static_cast<int32_t>(ceil_div(view.outer_size, item.row_step));
  item.slots =
      make_divisor(static_cast<uint32_t>(slots_of(std::min(item.inner_step, view.inner.size))));
  item.channel_blocks = static_cast<int32_t>(view.channels);
  item.blocks = static_cast<int32_t>(ceil_div(view.channels * item.splits(), int64_t{item.groups}));
  const int64_t counters =
      std::max<int64_t>(item.groups, item.groups > 1 ? 1 : copies(p.channel_bins));
  plan.shared = plan_shared(device, p, vectors, counters);
  plan.scratch = item.splits() > 1 ? kBlock : kWarps;
}

// The rows of a thread in a tile, channels last.
inline int64_t rows_of_tile(const UpdateParams& p, bool vectors) {
  return vectors ? kItemsPerThread * 4 / element_size(p.dtype) : kItemsPerThread;
}

// Channels of a block, channels last: about twice the root of their number, say, a power of two.
// Blocks side by side then take fewer splits each, and of the splits of a channel, whose results
// the last block merges, each of its threads has about four.
inline int64_t side_by_side(int64_t channels) {
  const int64_t square = channels * kColumnRoots * kColumnRoots;
  int64_t width = kLeastColumns;
  while (width * width < square) width *= 2;
  return width;
}

// Threads side by side of rows that begin anywhere, of which one more than there are vectors reads
// a row: as many as give most threads something of their own to read.
inline int64_t across_skewed(int64_t threads, int64_t most, int64_t row_bytes, int64_t vector) {
  const int alike = rows_alike(row_bytes, static_cast<int>(vector));
  const int64_t fewest = ceil_div(threads, most - 1);
  int64_t best = 0, across = 0;
  for (int64_t blocks = fewest; blocks < fewest + 4; ++blocks) {
    const int64_t own = ceil_div(threads, blocks), down = kBlock / (own + 1) / alike * alike;
    const int64_t used = threads * down * kBlock / blocks;  // of a block's threads, in fractions
    if (used <= best) continue;
    best = used;
    across = own + 1;
  }
  return across;
}

inline void plan_columns(const Device& device, const UpdateParams& p, bool vectors, bool skewed,
                         Plan& plan) {
  const ChannelView& view = p.view;
  const int64_t vector = kOwned * element_size(p.dtype);
  // Fewer than wanted where the tables of more channels have no room. Of skewed rows twice as many,
  // as a thread in each row reads what is another block's but for one channel.
  const int64_t wanted_width = side_by_side(view.channels) / kOwned * (skewed ? 2 : 1);
  const int64_t widest = std::min(wanted_width, vectors ? kColumnBytes / vector : kWarp);
  int64_t most = widest;
  const int64_t scratch = columns_entries(vectors);
  plan.shared = plan_shared(device, p, vectors, most * kOwned, scratch);
  if (p.channel_bins.kind != BinKind::kNone) {
    constexpr int64_t kFewest = 4;
    for (most = std::min<int64_t>(widest, kWarp); most >= kFewest; most /= 2) {
      plan.shared = plan_shared(device, p, vectors, most * kOwned, scratch);
      if (plan.shared.channel_table >= 0) break;
    }
    most = std::max(most, kFewest);
  }
  const int64_t threads = ceil_div(view.channels, kOwned);
  const int64_t even = ceil_div(threads, ceil_div(threads, most));
  int64_t across = std::min(most, threads < 8 ? threads : ceil_div(even, 8) * 8);
  if (skewed) across = across_skewed(threads, most, row_bytes(p), vector);
  Item& item = plan.item;
  item.groups = 1;
  item.slots = make_divisor(static_cast<uint32_t>(across));
  item.channel_blocks = static_cast<int32_t>(ceil_div(threads, across - (skewed ? 1 : 0)));
  const int64_t down = kBlock / across;
  const int64_t wanted = int64_t{device.multiprocessors} * kColumnSplits / item.channel_blocks;
  const int64_t splits = splits_of(view.outer_size, wanted, down * kLeastRows);
  item.row_step = whole_tiles(ceil_div(view.outer_size, splits), down * rows_of_tile(p, vectors));
  item.row_splits = static_cast<int32_t>(ceil_div(view.outer_size, item.row_step));
  item.inner_splits = 1;
  item.inner_step = 1;
  item.blocks = static_cast<int32_t>(int64_t{item.channel_blocks} * item.row_splits);
  plan.scratch = static_cast<int32_t>(scratch);
}

// How many rows of a few channels are read as one, so that threads' elements begin where vectors do
// and no thread reads another's: 1 if they are not.
inline int64_t rows_joined(const UpdateParams& p) {
  const ChannelView& view = p.view;
  const int64_t joined = kOwned / std::gcd(view.channels, int64_t{kOwned});
  const auto bytes = static_cast<uintptr_t>(kOwned * element_size(p.dtype));
  const bool fit = view.channels < kJoinBelow && is_dense(view) && view.flags == nullptr &&
                   view.outer_size % joined == 0 &&
                   reinterpret_cast<uintptr_t>(p.data) % bytes == 0;
  return fit ? joined : 1;
}

// False, with nothing planned that is of use, where a block has no room for all of a joined row.
inline bool plan_joined(const Device& device, const UpdateParams& p, int64_t joined, Plan& plan) {
  UpdateParams rows = p;
  rows.view.channels *= joined;
  rows.view.outer_size /= joined;
  plan_columns(device, rows, true, false, plan);
  Item& item = plan.item;
  if (item.channel_blocks > 1) return false;
  item.outer_size = rows.view.outer_size;
  item.joined = static_cast<uint8_t>(joined);
  item.inner_splits = static_cast<int32_t>(joined);
  return true;
}

// Whether channels have maps that follow each other in memory, so that all of a row is side by
// side, and rows and maps begin where threads' elements may.
inline bool has_maps(const UpdateParams& p) {
  const ChannelView& view = p.view;
  return vector_source(p.dtype) != SourceKind::kScalars && view.channels > 1 &&
         view.outer_dims == 1 && view.inner.stride == 1 && view.inner.size >= kOwned &&
         view.channel_stride == view.inner.size && view.channels * view.inner.size % kOwned == 0 &&
         aligned(p, kOwned * element_size(p.dtype));
}

// Maps: a block is as narrow as leaves each thread `least_rows` rows, and takes whole maps, or a
// part of one. False, with nothing planned, where maps do not begin with a thread's elements.
inline bool plan_maps(const Device& device, const UpdateParams& p, Plan& plan) {
  const ChannelView& view = p.view;
  const int64_t size = view.inner.size, rows = view.outer_size;
  const int64_t down_at_most = std::clamp<int64_t>(rows / kLeastRows, 1, kBlock);
  const int64_t narrowest = std::max((kBlock / (down_at_most + 1) + 1) * kOwned,  // elements
                                     kLeastMapBytes / element_size(p.dtype));
  int64_t width = 0, parts = 1;
  if (size > narrowest && size % kOwned == 0) {
    // Where there are enough maps, a block has a whole one, as parts have to be merged.
    const bool whole = view.channels >= device.multiprocessors;
    const int64_t widest = kBlock * kOwned;
    parts = ceil_div(size, whole ? widest : std::min(2 * narrowest, widest));
    width = ceil_div(ceil_div(size, parts), kOwned) * kOwned;
  } else {
    const int64_t together = kOwned / std::gcd(size, int64_t{kOwned});
    width = std::min(ceil_div(narrowest, size * together) * together, view.channels) * size;
  }
  if (width % kOwned != 0 || width > kBlock * kOwned) return false;
  const int64_t maps = std::max<int64_t>(width / size, 1), across = width / kOwned;
  const int64_t down = kBlock / across;
  const int64_t entries =
      most_sharing(static_cast<int>(std::min(size, width)), kOwned) * down * maps;
  plan.scratch = static_cast<int32_t>(std::max(entries, columns_entries(true)));
  int32_t copies = kCopies;
  while (copies > 1 &&
         (maps * copies > 2 * kCopies || p.channel_bins.slots() * copies * 4 > kMostCopyBytes)) {
    copies /= 2;
  }
  plan.shared = plan_shared(device, p, true, maps * copies, plan.scratch);
  plan.shared.channel_copies = copies;
  if (p.channel_bins.kind != BinKind::kNone && plan.shared.channel_table < 0) return false;
  plan.agent = AgentKind::kMaps;
  Item& item = plan.item;
  item.groups = 1;
  item.slots = make_divisor(static_cast<uint32_t>(across));
  item.channel_blocks = static_cast<int32_t>(ceil_div(view.channels, maps));
  const int64_t wanted =
      int64_t{device.multiprocessors} * kColumnSplits / (item.channel_blocks * parts);
  const int64_t step = ceil_div(rows, splits_of(rows, wanted, down * kLeastRows));
  item.row_step = whole_tiles(step, down * rows_of_tile(p, true));
  item.row_splits = static_cast<int32_t>(ceil_div(rows, item.row_step));
  item.inner_splits = static_cast<int32_t>(ceil_div(size, width));
  item.inner_step = width;
  item.blocks = static_cast<int32_t>(int64_t{item.channel_blocks} * item.splits());
  return true;
}

// `alone`: of a launch of its own; `all`: the bytes of all tensors of the call, which decide on no
// bits, as integers alone depend on which block has a split.
inline Plan make_plan(const Device& device, const UpdateParams& p, bool alone, int64_t all = 0) {
  const ChannelView& view = p.view;
  Plan plan{};
  Item& item = plan.item;
  item.data = p.data;
  item.end = end_of(p);
  item.moments = p.moments;
  item.tallies = p.tallies;
  item.tensor_counts = p.tensor_counts;
  item.channel_counts = p.channel_counts;
  item.channels = view.channels;
  item.channel_stride = view.channel_stride;
  item.inner_size = view.inner.size;
  item.inner_stride = view.inner.stride;
  item.outer_size = view.outer_size;
  item.outer_dims = view.outer_dims;
  item.repeat = view.repeat;
  item.dense = is_dense(view);
  item.joined = 1;
  const SourceKind wide = vector_source(p.dtype);
  if (view.channels > 1 && view.inner.size == 1) {
    plan.agent = AgentKind::kColumns;
    const bool rows =
        wide != SourceKind::kScalars && view.channel_stride == 1 && view.outer_dims <= 1;
    const bool vectors =
        rows && view.channels % kOwned == 0 && aligned(p, kOwned * element_size(p.dtype));
    const int64_t joined = rows && !vectors ? rows_joined(p) : 1;
    const bool is_joined = joined > 1 && plan_joined(device, p, joined, plan);
    const bool skewed = rows && !vectors && !is_joined && alone && view.flags == nullptr;
    if (!is_joined) plan_columns(device, p, vectors || skewed, skewed, plan);
    if (skewed && p.channel_bins.kind != BinKind::kNone && plan.shared.channel_table < 0) {
      plan_columns(device, p, false, false, plan);
    } else if (skewed) {
      plan.agent = AgentKind::kSkewedColumns;
    }
    const bool wide_rows = vectors || is_joined || plan.agent == AgentKind::kSkewedColumns;
    plan.source = wide_rows ? wide : SourceKind::kScalars;
  } else {
    plan.agent = AgentKind::kRuns;
    const bool vectors = (view.inner.stride == 1 || view.inner.size == 1) && view.outer_dims <= 1;
    plan.source = vectors ? wide : SourceKind::kScalars;
    const bool maps =
        alone && view.flags == nullptr && has_maps(p) && 2 * view.outer_size >= kLeastRows;
    plan_runs(device, p, plan.source != SourceKind::kScalars, plan);
    if (maps && item.row_step > 1 && !plan_maps(device, p, plan)) {
      plan_runs(device, p, true, plan);
    }
  }
  if (item.splits() > 1) {
    plan.partials = item.splits() * view.channels;
    plan.block_counters = item.channel_blocks;
  }
  // A block with a table of the tensor's histogram has it for many splits.
  if (p.tensor_bins.kind != BinKind::kNone) {
    const int64_t of_each = view.channels == 1 ? kCountingBlocks : kHistogramBlocks;
    const int64_t own = item.elements() * element_size(p.dtype);
    const int64_t most =
        std::min(of_each * device.multiprocessors, ceil_div(own, least_counted(device, own, all)));
    item.blocks = static_cast<int32_t>(std::clamp<int64_t>(most, 1, item.blocks));
  }
  return plan;
}

}  // namespace hookstats::cuda
