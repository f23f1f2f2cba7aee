// hookstats::take_ on the CPU: check the blocks, size the results, move the rows.
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/stableivalue_conversions.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
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

// The results, in the order of `into`.
enum Result : size_t {
  kMoments,
  kTallies,
  kOffsets,
  kSlots,
  kCounts,
  kChannelOffsets,
  kChannelSlots,
  kChannelCounts
};
constexpr std::array kResultTypes{ScalarType::Double, ScalarType::Long, ScalarType::Long,
                                  ScalarType::Int,    ScalarType::Long, ScalarType::Long,
                                  ScalarType::Int,    ScalarType::Long};

// An attempt that failed may have left sizes, but not those of the offsets, which come last.
void check_into(const std::vector<Tensor>& into) {
  STD_TORCH_CHECK(into.size() == kResultTypes.size(), "into has ", into.size(),
                  " tensors; expected ", kResultTypes.size());
  for (size_t i = 0; i < into.size(); ++i) {
    STD_TORCH_CHECK(into[i].is_cpu() && into[i].scalar_type() == kResultTypes[i] &&
                        (i != kOffsets || into[i].numel() == 0),
                    "into[", i, "] is ", into[i].scalar_type(), " ", shape_of(into[i]),
                    "; expected ", i == kOffsets ? "an empty" : "a", " CPU tensor of ",
                    kResultTypes[i]);
  }
}

// Gives a result its size, and returns where its data are. A smaller size keeps the first entries,
// where they are: most of the remaining memory was never written to. Memory from the heap rather
// than the system stays with the result, at worst 16 times the entries.
template <class T>
T* resize(const Tensor& result, torch::headeronly::IntHeaderOnlyArrayRef sizes) {
  using torch::stable::detail::from;
  std::array stack{from(result), from(sizes), from(std::nullopt)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::resize_", "", stack.data(), TORCH_ABI_VERSION));
  (void)torch::stable::detail::to<Tensor>(stack[0]);  // owns what the call returned
  return static_cast<T*>(result.mutable_data_ptr());
}

template <class T>
void move_columns(const std::vector<Tensor>& blocks, T* columns, int64_t rows,
                  void (*take)(T* rows, int64_t count, T* columns, int64_t first, int64_t total)) {
  int64_t first = 0;
  for (const Tensor& block : blocks) {
    take(static_cast<T*>(block.mutable_data_ptr()), block.size(0), columns, first, rows);
    first += block.size(0);
  }
}

// Histograms whose marks are complete.
struct Dense {
  std::vector<cpu::Histograms> blocks;
  std::vector<std::vector<int64_t>> own_marks;
  int64_t rows = 0, most = 0;  // entries
};

// `marks` and `folds` are null where all counts must be looked at.
Dense marked(const std::vector<Tensor>& blocks, const std::vector<Tensor>* marks,
             const int64_t* folds) {
  Dense dense;
  dense.own_marks.resize(marks == nullptr ? blocks.size() : 0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t count = blocks[i].size(0), width = blocks[i].size(1);
    if (marks == nullptr)
      dense.own_marks[i].resize(static_cast<size_t>(count * mark_columns(width)));
    dense.blocks.push_back({static_cast<int64_t*>(blocks[i].mutable_data_ptr()),
                            marks == nullptr
                                ? dense.own_marks[i].data()
                                : static_cast<int64_t*>((*marks)[i].mutable_data_ptr()),
                            count, width});
    dense.most +=
        cpu::complete_marks(dense.blocks[i], folds == nullptr ? nullptr : folds + dense.rows);
    dense.rows += count;
  }
  return dense;
}

// Returns the number of entries.
int64_t move_counts(const Dense& dense, cpu::SparseCounts into) {
  into.offsets[0] = 0;
  for (const cpu::Histograms& each : dense.blocks) cpu::take_counts(each, into);
  return into.entries;
}

void take_cpu(std::vector<Tensor> moments, std::vector<Tensor> tallies, std::vector<Tensor> counts,
              std::vector<Tensor> marks, Tensor folds, std::vector<Tensor> channel_counts,
              std::vector<Tensor> into) {
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
  check_into(into);
  const Dense tensor = marked(counts, &marks, static_cast<const int64_t*>(folds.const_data_ptr()));
  const Dense channel = marked(channel_counts, nullptr, nullptr);
  // All memory comes before the first row is moved, so that running out of memory loses nothing.
  auto* const slots = resize<int32_t>(into[kSlots], {tensor.most});
  auto* const values = resize<int64_t>(into[kCounts], {tensor.most});
  auto* const channel_offsets = resize<int64_t>(into[kChannelOffsets], {channel.rows + 1});
  auto* const channel_slots = resize<int32_t>(into[kChannelSlots], {channel.most});
  auto* const channel_values = resize<int64_t>(into[kChannelCounts], {channel.most});
  auto* const moment_columns = resize<double>(into[kMoments], {columns, rows});
  auto* const tally_columns = resize<int64_t>(into[kTallies], {kTallyColumns, rows});
  auto* const offsets = resize<int64_t>(into[kOffsets], {tensor.rows + 1});  // says: it is taken
  move_columns(moments, moment_columns, rows,
               higher ? cpu::take_moments<HigherChannel> : cpu::take_moments<Channel>);
  move_columns(tallies, tally_columns, rows, cpu::take_tallies);
  const int64_t entries = move_counts(tensor, {offsets, slots, values});
  const int64_t channel_entries =
      move_counts(channel, {channel_offsets, channel_slots, channel_values});
  resize<int32_t>(into[kSlots], {entries});
  resize<int64_t>(into[kCounts], {entries});
  resize<int32_t>(into[kChannelSlots], {channel_entries});
  resize<int64_t>(into[kChannelCounts], {channel_entries});
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) { m.impl("take_", TORCH_BOX(&take_cpu)); }

}  // namespace hookstats
