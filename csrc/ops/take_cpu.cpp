// hookstats::take_ on the CPU: check the blocks, allocate the results, move the rows.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/state.h"
#include "cpu/take.h"

namespace hookstats {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The number of rows of all blocks; each has to be contiguous, [rows, columns].
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

template <class T>
Tensor to_tensor(const std::vector<T>& values, ScalarType dtype, const Tensor& like) {
  Tensor tensor = torch::stable::new_empty(like, {static_cast<int64_t>(values.size())}, dtype);
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.mutable_data_ptr()));
  return tensor;
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

cpu::SparseCounts take_counts(const std::vector<Tensor>& blocks) {
  cpu::SparseCounts sparse;
  for (const Tensor& block : blocks) {
    cpu::take_counts(static_cast<int64_t*>(block.mutable_data_ptr()), block.size(0), block.size(1),
                     sparse);
  }
  return sparse;
}

using Taken = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Taken take_cpu(std::vector<Tensor> moments, std::vector<Tensor> tallies, std::vector<Tensor> counts,
               std::vector<Tensor> channel_counts) {
  STD_TORCH_CHECK(!moments.empty(), "moments has no block; expected one or more");
  const int64_t rows = check_blocks(moments, "moments", ScalarType::Double, kMomentColumns);
  const int64_t others = check_blocks(tallies, "tallies", ScalarType::Long, kTallyColumns);
  STD_TORCH_CHECK(rows == others, "tallies have ", others, " rows; expected ", rows,
                  ", as many as moments");
  check_blocks(counts, "counts", ScalarType::Long, -1);
  check_blocks(channel_counts, "channel_counts", ScalarType::Long, -1);
  const Tensor& like = tallies.front();
  // First what allocates most, so that running out of memory loses least.
  const cpu::SparseCounts tensor = take_counts(counts);
  const cpu::SparseCounts channel = take_counts(channel_counts);
  return {take_columns(moments, rows, kMomentColumns, ScalarType::Double, cpu::take_moments),
          take_columns(tallies, rows, kTallyColumns, ScalarType::Long, cpu::take_tallies),
          to_tensor(tensor.offsets, ScalarType::Long, like),
          to_tensor(tensor.slots, ScalarType::Int, like),
          to_tensor(tensor.counts, ScalarType::Long, like),
          to_tensor(channel.offsets, ScalarType::Long, like),
          to_tensor(channel.slots, ScalarType::Int, like),
          to_tensor(channel.counts, ScalarType::Long, like)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) { m.impl("take_", TORCH_BOX(&take_cpu)); }

}  // namespace hookstats
