// hookstats::drain_ on the CPU: check the blocks, allocate the results, move the rows, merge them.
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/stableivalue_conversions.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/occupancy.h"
#include "core/state.h"
#include "cpu/drain.h"
#include "cpu/wholes.h"
#include "ops/arguments.h"

namespace hookstats {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The number of rows of all blocks; each block must be contiguous, [rows, columns].
int64_t check_blocks(const std::vector<Tensor>& blocks, const char* name, ScalarType dtype,
                     int64_t columns) {
  int64_t rows = 0;
  for (const Tensor& block : blocks) {
    STD_TORCH_CHECK(block.is_cpu() && block.scalar_type() == dtype && block.dim() == 2 &&
                        block.is_contiguous() && (columns < 0 || block.size(1) == columns),
                    name, " has a block of ", block.scalar_type(), " with ", block.dim(),
                    " dimensions; expected contiguous CPU tensors of ", dtype, " [rows, ",
                    columns < 0 ? "slots" : std::to_string(columns), "]");
    rows += block.size(0);
  }
  return rows;
}

// Checks that every block of counts has a block of occupancy.
void check_occupancy(const std::vector<Tensor>& counts, const std::vector<Tensor>& occupancy) {
  STD_TORCH_CHECK(occupancy.size() == counts.size(), "occupancy has ", occupancy.size(),
                  " blocks; expected ", counts.size(), ", as many as counts");
  for (size_t i = 0; i < occupancy.size(); ++i) {
    const int64_t rows = counts[i].size(0), columns = mark_columns(counts[i].size(1));
    STD_TORCH_CHECK(occupancy[i].size(0) == rows && occupancy[i].size(1) == columns, "occupancy[",
                    i, "] is ", shape_of(occupancy[i]), "; expected [", rows, ", ", columns,
                    "] for counts of ", shape_of(counts[i]));
  }
}

// Checks that x is a contiguous vector, whose size the message calls `size`.
void check_flat(const Tensor& x, const char* name, ScalarType dtype, const char* size) {
  STD_TORCH_CHECK(x.is_cpu() && x.scalar_type() == dtype && x.dim() == 1 && x.is_contiguous(), name,
                  " is ", x.scalar_type(), " ", shape_of(x),
                  "; expected a contiguous CPU tensor of ", dtype, " [", size, "]");
}

// Keeps the first entries of a tensor, where they are: most of the memory behind them was never
// written to. Memory from the heap rather than the system stays with the tensor, at worst 16 times
// the entries.
void shrink(const Tensor& x, int64_t size) {
  using torch::stable::detail::from;
  const torch::headeronly::IntHeaderOnlyArrayRef sizes(&size, 1);
  std::array stack{from(x), from(sizes), from(std::nullopt)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::resize_", "", stack.data(), TORCH_ABI_VERSION));
  (void)torch::stable::detail::to<Tensor>(stack[0]);  // owns what the call returned
}

// A CPU tensor, whatever it has in it.
Tensor new_empty(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType dtype) {
  return torch::stable::new_empty(like, {sizes.begin(), sizes.size()}, dtype);
}

// The rows of each tensor of a step: of tensor t, offsets[t] to offsets[t + 1] of all blocks.
class TensorRows {
 public:
  // The rows of a tensor are in one block.
  TensorRows(const Tensor& offsets, const std::vector<Tensor>& blocks, int64_t rows) {
    check_flat(offsets, "offsets", ScalarType::Long, "tensors + 1");
    STD_TORCH_CHECK(offsets.size(0) > 0, "offsets is ", shape_of(offsets),
                    "; expected [tensors + 1]");
    offsets_ = static_cast<const int64_t*>(offsets.const_data_ptr());
    count_ = offsets.size(0) - 1;
    STD_TORCH_CHECK(std::is_sorted(offsets_, offsets_ + count_ + 1) && offsets_[0] == 0 &&
                        offsets_[count_] == rows,
                    "offsets are no ascending numbers from 0 to ", rows, ", the number of rows");
    int64_t end = 0, tensor = 0;
    firsts_.push_back(tensor);
    for (const Tensor& block : blocks) {
      end += block.size(0);
      while (tensor < count_ && offsets_[tensor + 1] <= end) ++tensor;
      STD_TORCH_CHECK(offsets_[tensor] == end, "offsets have a tensor of rows ", offsets_[tensor],
                      " to ", offsets_[tensor + 1], "; expected none beyond row ", end,
                      ", where a block ends");
      firsts_.push_back(tensor);
    }
  }

  int64_t count() const { return count_; }

  // Calls f(tensor, first row, last row) for each tensor of a block.
  template <class F>
  void each_of(size_t block, F&& f) const {
    for (int64_t t = firsts_[block]; t < firsts_[block + 1]; ++t)
      f(t, offsets_[t], offsets_[t + 1]);
  }

 private:
  const int64_t* offsets_;
  int64_t count_;
  std::vector<int64_t> firsts_;  // the first tensor of each block, and of none
};

// Histograms whose occupancy is complete.
struct Dense {
  std::vector<cpu::Histograms> blocks;
  std::vector<std::vector<int64_t>> own_occupancy;
  int64_t rows = 0, most = 0;  // entries
};

// `occupancy` and `accumulated` are null where all counts must be looked at.
Dense marked(const std::vector<Tensor>& blocks, const std::vector<Tensor>* occupancy,
             const int64_t* accumulated) {
  Dense dense;
  dense.own_occupancy.resize(occupancy == nullptr ? blocks.size() : 0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t count = blocks[i].size(0), width = blocks[i].size(1);
    if (occupancy == nullptr)
      dense.own_occupancy[i].resize(static_cast<size_t>(count * mark_columns(width)));
    dense.blocks.push_back({static_cast<int64_t*>(blocks[i].mutable_data_ptr()),
                            occupancy == nullptr
                                ? dense.own_occupancy[i].data()
                                : static_cast<int64_t*>((*occupancy)[i].mutable_data_ptr()),
                            count, width});
    dense.most += cpu::complete_occupancy(
        dense.blocks[i], accumulated == nullptr ? nullptr : accumulated + dense.rows);
    dense.rows += count;
  }
  return dense;
}

// What a step gives: moments and tallies by column, those of channels and those of whole tensors.
struct Columns {
  Tensor moments, tallies;

  Columns(const Tensor& like, int64_t entries)
      : moments(new_empty(like, {kMomentColumns, entries}, ScalarType::Double)),
        tallies(new_empty(like, {kTallyColumns, entries}, ScalarType::Long)) {}

  double* moments_data() const { return static_cast<double*>(moments.mutable_data_ptr()); }
  int64_t* tallies_data() const { return static_cast<int64_t*>(tallies.mutable_data_ptr()); }
};

// Moves the rows of a block, of which the first is row `first`, and merges them, tensor by tensor,
// while they are in the caches.
void move_rows(const Tensor& moments, const Tensor& tallies, int64_t first,
               const TensorRows& tensors, size_t block, int64_t total, const Columns& channels,
               const Columns& merged) {
  double* const into = channels.moments_data();
  int64_t* const tallies_into = channels.tallies_data();
  double* const merged_into = merged.moments_data();
  int64_t* const merged_tallies_into = merged.tallies_data();
  cpu::drain_moments(static_cast<double*>(moments.mutable_data_ptr()), moments.size(0), into, first,
                     total);
  cpu::drain_tallies(static_cast<int64_t*>(tallies.mutable_data_ptr()), tallies.size(0),
                     tallies_into, first, total);
  tensors.each_of(block, [&](int64_t tensor, int64_t begin, int64_t end) {
    double row[kMomentColumns];
    int64_t tally_row[kTallyColumns];
    cpu::merge_rows(into, tallies_into, begin, end, total, row, tally_row);
    for (int64_t c = 0; c < kMomentColumns; ++c) merged_into[c * tensors.count() + tensor] = row[c];
    for (int64_t c = 0; c < kTallyColumns; ++c)
      merged_tallies_into[c * tensors.count() + tensor] = tally_row[c];
  });
}

// Histograms as sparse rows (cpu/drain.h).
struct Sparse {
  Tensor offsets, slots, counts;

  Sparse(const Tensor& like, const Dense& dense)
      : offsets(new_empty(like, {dense.rows + 1}, ScalarType::Long)),
        slots(new_empty(like, {dense.most}, ScalarType::Int)),
        counts(new_empty(like, {dense.most}, ScalarType::Long)) {}

  void fill(const Dense& dense) {
    cpu::SparseCounts into{static_cast<int64_t*>(offsets.mutable_data_ptr()),
                           static_cast<int32_t*>(slots.mutable_data_ptr()),
                           static_cast<int64_t*>(counts.mutable_data_ptr())};
    into.offsets[0] = 0;
    for (const cpu::Histograms& each : dense.blocks) cpu::drain_counts(each, into);
    shrink(slots, into.entries);
    shrink(counts, into.entries);
  }
};

using Drained =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Drained drain_cpu(std::vector<Tensor> moments, std::vector<Tensor> tallies,
                  std::vector<Tensor> counts, std::vector<Tensor> occupancy, Tensor accumulated,
                  std::vector<Tensor> channel_counts, Tensor offsets) {
  STD_TORCH_CHECK(!moments.empty(), "moments has no blocks; expected one or more");
  const int64_t rows = check_blocks(moments, "moments", ScalarType::Double, kMomentColumns);
  const int64_t others = check_blocks(tallies, "tallies", ScalarType::Long, kTallyColumns);
  STD_TORCH_CHECK(rows == others, "tallies have ", others, " rows; expected ", rows,
                  ", as many as moments");
  for (size_t i = 0; i < moments.size(); ++i) {
    STD_TORCH_CHECK(i < tallies.size() && moments[i].size(0) == tallies[i].size(0), "moments[", i,
                    "] has ", moments[i].size(0), " rows; expected as many as tallies[", i, "]");
  }
  const TensorRows tensors(offsets, moments, rows);
  const int64_t histograms = check_blocks(counts, "counts", ScalarType::Long, -1);
  check_blocks(channel_counts, "channel_counts", ScalarType::Long, -1);
  check_blocks(occupancy, "occupancy", ScalarType::Long, -1);
  check_occupancy(counts, occupancy);
  STD_TORCH_CHECK(accumulated.is_cpu() && accumulated.scalar_type() == ScalarType::Long &&
                      accumulated.dim() == 1 && accumulated.is_contiguous() &&
                      (counts.empty() || accumulated.size(0) == histograms),
                  "accumulated is ", accumulated.scalar_type(), " ", shape_of(accumulated),
                  "; expected a contiguous CPU tensor of ", ScalarType::Long, " [", histograms,
                  "], one per histogram of counts");
  const Dense tensor =
      marked(counts, &occupancy, static_cast<const int64_t*>(accumulated.const_data_ptr()));
  const Dense channel = marked(channel_counts, nullptr, nullptr);
  // All memory comes before the first row is moved, so that running out of memory loses nothing.
  const Tensor& like = moments.front();
  const Columns channels(like, rows), merged(like, tensors.count());
  Sparse hist(like, tensor), channel_hist(like, channel);
  int64_t first = 0;
  for (size_t i = 0; i < moments.size(); ++i) {
    move_rows(moments[i], tallies[i], first, tensors, i, rows, channels, merged);
    first += moments[i].size(0);
  }
  hist.fill(tensor);
  channel_hist.fill(channel);
  return {channels.moments,   channels.tallies,   merged.moments, merged.tallies,
          hist.offsets,       hist.slots,         hist.counts,    channel_hist.offsets,
          channel_hist.slots, channel_hist.counts};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) { m.impl("drain_", TORCH_BOX(&drain_cpu)); }

}  // namespace hookstats
