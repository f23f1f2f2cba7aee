// hookstats::sparse_counts: dense counts on the CPU as sparse rows.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "cpu/sparse.h"

namespace hookstats {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
Tensor to_tensor(const std::vector<T>& values, ScalarType dtype, const Tensor& like) {
  Tensor tensor = torch::stable::new_empty(like, {static_cast<int64_t>(values.size())}, dtype);
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.mutable_data_ptr()));
  return tensor;
}

std::tuple<Tensor, Tensor, Tensor> sparse_counts_cpu(const Tensor& dense) {
  STD_TORCH_CHECK(
      dense.scalar_type() == ScalarType::Long && dense.dim() == 2 && dense.is_contiguous(),
      "dense is ", dense.scalar_type(), " of ", dense.dim(),
      " dimensions; expected a contiguous tensor of Long [rows, slots]");
  const cpu::SparseCounts sparse = cpu::sparse_counts(
      static_cast<const int64_t*>(dense.const_data_ptr()), dense.size(0), dense.size(1));
  return {to_tensor(sparse.offsets, ScalarType::Long, dense),
          to_tensor(sparse.slots, ScalarType::Int, dense),
          to_tensor(sparse.counts, ScalarType::Long, dense)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) {
  m.impl("sparse_counts", TORCH_BOX(&sparse_counts_cpu));
}

}  // namespace hookstats
