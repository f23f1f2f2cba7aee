// The kernel of one instruction set: runs a range of an update's tasks.
//
// Included once per instruction set, inside that target's namespace and under its target pragma,
// as are the other *-inl.h, each by this file alone.

// clang-format off: each builds on those above it
#include "cpu/simd-inl.h"
#include "cpu/sums-inl.h"
#include "cpu/count-inl.h"
#include "cpu/reader-inl.h"
#include "cpu/runs-inl.h"
#include "cpu/rows-inl.h"
// clang-format on

template <class Worker>
void run_with(const Job& job, int64_t begin, int64_t end) {
  Worker worker(job);
  const auto run = [&](TensorTable* table) {
    for (int64_t i = begin; i < end; ++i) worker.run(task_at(job.plan, job.params, i), table);
  };
  const Bins& bins = job.params.tensor_bins;
  const ChannelView& view = job.params.view;
  if (bins.kind == BinKind::kNone) return run(nullptr);
  if (view.repeat == 1 && end - begin == job.plan.tasks() && view.numel() < 4 * bins.slots()) {
    // The only thread, and few elements: clearing and adding a table would cost more.
    TensorTable direct{bins, job.params.tensor_counts, 1, 1};
    return run(&direct);
  }
  TensorTable table =
      cleared_table(thread_scratch().tensor_table, bins, 1, table_copies(bins, view.numel()));
  run(&table);
  table.add_to(job.params.tensor_counts, 0, view.repeat);
}

template <class Source, class Real>
void run_layout(const Job& job, int64_t begin, int64_t end) {
  if (job.plan.layout == Layout::kRuns) return run_with<Runs<Source, Real>>(job, begin, end);
  return run_with<Rows<Source, Real>>(job, begin, end);
}

void run_tasks(const Job& job, int64_t begin, int64_t end) {
  if (job.plan.packed) {
    if (job.packs_to_double) return run_layout<double, double>(job, begin, end);
    return run_layout<float, float>(job, begin, end);
  }
  switch (job.params.dtype) {
    case DType::kFloat64:
      return run_layout<double, double>(job, begin, end);
    case DType::kFloat16:
      return run_layout<Half, float>(job, begin, end);
    case DType::kBFloat16:
      return run_layout<BFloat16, float>(job, begin, end);
    default:
      return run_layout<float, float>(job, begin, end);
  }
}
