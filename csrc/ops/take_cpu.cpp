// hookstats::take_ on the CPU: check the blocks, allocate the results, move the rows.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/marks.h"
#include "core/state.h"
#include "cpu/take.h"
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

// Checks that every block of counts has a block of marks.
void check_marks(const std::vector<Tensor>& counts, const std::vector<Tensor>& marks) {
  STD_TORCH_CHECK(marks.size() == counts.size(), "marks has ", marks.size(), " blocks; expected ",
                  counts.size(), ", as many as counts");
  for (size_t i = 0; i < marks.size(); ++i) {
    const int64_t rows = counts[i].size(0), columns = mark_columns(counts[i].size(1));
    STD_TORCH_CHECK(marks[i].size(0) == rows && marks[i].size(1) == columns, "marks[", i, "] is ",
                    shape_of(marks[i]), "; expected [", rows, ", ", columns, "] for counts of ",
                    shape_of(counts[i]));
  }
}

// The first entries, without a copy: most of the remaining memory was never written to. Memory from
// the heap rather than the system stays with the result, at worst 16 times the entries.
Tensor first_of(Tensor tensor, int64_t length) {
  return torch::stable::narrow(tensor, 0, 0, length);
}

template <class T>
Tensor take_columns(const std::vector<Tensor>& blocks, int64_t rows, int64_t columns,
                    ScalarType dtype,
                    void (*take)(T* rows, int64_t count, T* columns, int64_t first,
                                 int64_t total)) {
  Tensor taken = torch::stable::new_empty(blocks.front(), {columns, rows}, dtype);
  int64_t first = 0;
  for (const Tensor& block : blocks) {
    take(static_cast<T*>(block.mutable_data_ptr()), block.size(0),
         static_cast<T*>(taken.mutable_data_ptr()), first, rows);
    first += block.size(0);
  }
  return taken;
}

struct Sparse {
  Tensor offsets, slots, counts;
};

// `marks` and `folds` are null where all counts must be looked at.
Sparse take_counts(const std::vector<Tensor>& blocks, const std::vector<Tensor>* marks,
                   const int64_t* folds, const Tensor& like) {
  std::vector<cpu::Histograms> histograms;
  std::vector<std::vector<int64_t>> own_marks(marks == nullptr ? blocks.size() : 0);
  int64_t rows = 0, most = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t count = blocks[i].size(0), width = blocks[i].size(1);
    if (marks == nullptr) own_marks[i].resize(static_cast<size_t>(count * mark_columns(width)));
    histograms.push_back({static_cast<int64_t*>(blocks[i].mutable_data_ptr()),
                          marks == nullptr ? own_marks[i].data()
                                           : static_cast<int64_t*>((*marks)[i].mutable_data_ptr()),
                          count, width});
    most += cpu::complete_marks(histograms[i], folds == nullptr ? nullptr : folds + rows);
    rows += count;
  }
  const Sparse sparse{torch::stable::new_empty(like, {rows + 1}, ScalarType::Long),
                      torch::stable::new_empty(like, {most}, ScalarType::Int),
                      torch::stable::new_empty(like, {most}, ScalarType::Long)};
  cpu::SparseCounts into{static_cast<int64_t*>(sparse.offsets.mutable_data_ptr()),
                         static_cast<int32_t*>(sparse.slots.mutable_data_ptr()),
                         static_cast<int64_t*>(sparse.counts.mutable_data_ptr())};
  into.offsets[0] = 0;
  for (const cpu::Histograms& each : histograms) cpu::take_counts(each, into);
  return {sparse.offsets, first_of(sparse.slots, into.entries),
          first_of(sparse.counts, into.entries)};
}

using Taken = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Taken take_cpu(std::vector<Tensor> moments, std::vector<Tensor> tallies, std::vector<Tensor> counts,
               std::vector<Tensor> marks, Tensor folds, std::vector<Tensor> channel_counts) {
  STD_TORCH_CHECK(!moments.empty(), "moments has no blocks; expected one or more");
  const bool higher = moments.front().dim() == 2 && moments.front().size(1) == kHigherColumns;
  const int64_t columns = higher ? kHigherColumns : kMomentColumns;
  const int64_t rows = check_blocks(moments, "moments", ScalarType::Double, columns);
  const int64_t others = check_blocks(tallies, "tallies", ScalarType::Long, kTallyColumns);
  STD_TORCH_CHECK(rows == others, "tallies have ", others, " rows; expected ", rows,
                  ", as many as moments");
  const int64_t histograms = check_blocks(counts, "counts", ScalarType::Long, -1);
  check_blocks(channel_counts, "channel_counts", ScalarType::Long, -1);
  check_blocks(marks, "marks", ScalarType::Long, -1);
  check_marks(counts, marks);
  STD_TORCH_CHECK(folds.is_cpu() && folds.scalar_type() == ScalarType::Long && folds.dim() == 1 &&
                      folds.is_contiguous() && (counts.empty() || folds.size(0) == histograms),
                  "folds is ", folds.scalar_type(), " ", shape_of(folds),
                  "; expected a contiguous CPU tensor of ", ScalarType::Long, " [", histograms,
                  "], one per histogram of counts");
  const Tensor& like = tallies.front();
  // First what allocates most, so that running out of memory loses least.
  const Sparse tensor =
      take_counts(counts, &marks, static_cast<const int64_t*>(folds.const_data_ptr()), like);
  const Sparse channel = take_counts(channel_counts, nullptr, nullptr, like);
  return {take_columns(moments, rows, columns, ScalarType::Double,
                       higher ? cpu::take_moments<HigherChannel> : cpu::take_moments<Channel>),
          take_columns(tallies, rows, kTallyColumns, ScalarType::Long, cpu::take_tallies),
          tensor.offsets,
          tensor.slots,
          tensor.counts,
          channel.offsets,
          channel.slots,
          channel.counts};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) { m.impl("take_", TORCH_BOX(&take_cpu)); }

}  // namespace hookstats
