// The kernel of one instruction set: runs a range of an update's tasks.
//
// Included once per instruction set, inside that target's namespace and under its target pragma,
// as are the other *-inl.h, each by this file alone.

// clang-format off: each builds on those above it
#include "cpu/simd-inl.h"
#include "cpu/load-inl.h"
#include "cpu/reduce-inl.h"
#include "cpu/sums-inl.h"
#include "cpu/slots-inl.h"
#include "cpu/target-inl.h"
#include "cpu/count-inl.h"
#include "cpu/whole-inl.h"
#include "cpu/row-histograms-inl.h"
#include "cpu/reader-inl.h"
#include "cpu/runs-inl.h"
#include "cpu/row-sums-inl.h"
#include "cpu/rows-inl.h"
// clang-format on

template <class Worker>
void run_with(const Job& job, int64_t begin, int64_t end) {
  Worker worker(job, begin, end);
  const auto run = [&](Histogram* histogram) {
    for (int64_t i = begin; i < end; ++i) worker.run(task_at(job.plan, job.params, i), histogram);
    worker.finish();
  };
  const UpdateParams& p = job.params;
  if (p.tensor_bins.kind == BinKind::kNone) return run(nullptr);
  const bool shared = end - begin < job.plan.tasks();
  uint16_t* counters =
      zero_counters(thread_scratch().tensor_counters, Histogram::counters(p.tensor_bins));
  Histogram histogram(p.tensor_bins, counters,
                      {p.tensor_counts, p.view.repeat, shared, p.tensor_occupancy}, p.view.numel(),
                      job.plan.tensor_sample, Worker::kFloats, job.plan.by_key);
  run(&histogram);
  histogram.empty();
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
