// Runs updates: picks the instruction set, runs the tasks, merges their results in order.
#include "cpu/update.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/accumulate.h"
#include "cpu/kernel.h"
#include "cpu/plan.h"

namespace hookstats::cpu {

namespace {

struct InstructionSet {
  const char* name;
  RunTasks run_tasks;
};

InstructionSet pick_instruction_set() {
#if defined(__x86_64__)
  const char* limit = std::getenv("ATEN_CPU_CAPABILITY");
  const auto allowed = [limit](const char* name) {
    return limit == nullptr || std::strcmp(limit, name) == 0;
  };
  // clang before 16 has no name for f16c.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512 && allowed("avx512")) return {"AVX512", avx512::run_tasks};
  if (avx2 && (allowed("avx2") || allowed("avx512"))) return {"AVX2", avx2::run_tasks};
#endif
  return {"DEFAULT", baseline::run_tasks};
}

const InstructionSet& instruction_set() {
  static const InstructionSet picked = pick_instruction_set();
  return picked;
}

// The gathering loop for one storage type, into float or double as core/dtype.h widens it.
template <class T, bool scaled>
void pack(const void* source, int64_t stride, int64_t count, float scale, void* target) {
  const T* from = static_cast<const T*>(source);
  auto* to = static_cast<decltype(widen(T{}))*>(target);
  for (int64_t i = 0; i < count; ++i) {
    const auto value = widen(from[i * stride]);
    to[i] = scaled ? value / scale : value;
  }
}

struct Merge {
  const UpdateParams& params;
  const Plan& plan;
  const Channel* partials;

  Channel total(int64_t channel) const {
    Channel total = partials[channel];
    for (int64_t split = 0; split < plan.splits(); ++split) {
      const Channel* row = partials + split * plan.width + channel;
      for (int64_t j = split == 0; j < plan.joined; ++j) {
        merge(total, row[j * params.view.channels]);
      }
    }
    repeat(total, params.view.repeat);
    return total;
  }

  void channels(int64_t begin, int64_t end) const {
    int64_t nan = 0, posinf = 0, neginf = 0;
    for (int64_t c = begin; c < end; ++c) {
      const Channel seen = total(c);
      accumulate_channel(params, c, seen);
      discount_channel(params, plan, c, seen);
      nan += seen.nan;
      posinf += seen.posinf;
      neginf += seen.neginf;
    }
    discount_tensor(params, plan, nan, posinf, neginf);
  }
};

}  // namespace

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

const char* capability() { return instruction_set().name; }

void update(const UpdateParams& params, ParallelFor parallel_for) {
  if (params.view.numel() == 0) return;
  std::vector<Channel>& partials = thread_scratch().partials;
  const Plan plan = make_plan(params);
  const size_t needed = plan.direct ? 0 : static_cast<size_t>(plan.splits() * plan.width);
  if (partials.size() < needed) partials.resize(needed);

  Job job{params, plan, nullptr, false, partials.data()};
  dispatch(params.dtype, [&job](auto* type) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    job.pack = job.params.scale == 1.0f ? pack<T, false> : pack<T, true>;
  });
  job.packs_to_double = !reads_floats(params.dtype);
  const auto run_tasks = [](int64_t begin, int64_t end, void* context) {
    instruction_set().run_tasks(*static_cast<const Job*>(context), begin, end);
  };
  // A task is a few microseconds of work: waking another thread for less than two does not pay.
  if (plan.tasks() == 1 || params.view.numel() < kRunTask) {
    run_tasks(0, plan.tasks(), &job);
  } else {
    parallel_for(plan.tasks(), run_tasks, &job);
  }

  if (plan.direct) return;
  const Merge merge{params, plan, partials.data()};
  constexpr int64_t kMergesATask = 4096;
  const int64_t step = std::max<int64_t>(1, kMergesATask / (plan.splits() * plan.joined));
  if (params.view.channels <= step) {
    merge.channels(0, params.view.channels);
    return;
  }
  struct Steps {
    const Merge& merge;
    int64_t step;
  } steps{merge, step};
  const auto run_steps = [](int64_t begin, int64_t end, void* context) {
    const Steps& s = *static_cast<const Steps*>(context);
    const int64_t channels = s.merge.params.view.channels;
    s.merge.channels(begin * s.step, std::min(channels, end * s.step));
  };
  parallel_for(ceil_div(params.view.channels, step), run_steps, &steps);
}

void update_many(const UpdateParams* params, int64_t count, ParallelFor parallel_for) {
  // From this many elements on, of one tensor or of many, other threads are worth waking.
  constexpr int64_t kShared = 16 * kRunTask;
  constexpr int64_t kOverhead = 1024;  // the cost of a tensor besides its elements, in elements
  std::vector<int64_t> starts;         // of ranges of tensors that cost about as much
  int64_t total = 0, cost = kRunTask;
  for (int64_t i = 0; i < count; ++i) {
    if (cost >= kRunTask) {
      starts.push_back(i);
      cost = 0;
    }
    const int64_t numel = params[i].view.numel();
    if (numel >= kShared) {
      update(params[i], parallel_for);
    } else {
      cost += kOverhead + numel;
      total += kOverhead + numel;
    }
  }
  starts.push_back(count);

  struct Ranges {
    const UpdateParams* params;
    const std::vector<int64_t>& starts;
  } ranges{params, starts};
  const auto run = [](int64_t begin, int64_t end, void* context) {
    const Ranges& r = *static_cast<const Ranges*>(context);
    const auto serial = [](int64_t tasks, void (*body)(int64_t, int64_t, void*), void* inner) {
      body(0, tasks, inner);
    };
    for (int64_t i = r.starts[begin]; i < r.starts[end]; ++i) {
      if (r.params[i].view.numel() < kShared) update(r.params[i], serial);
    }
  };
  const int64_t tasks = static_cast<int64_t>(starts.size()) - 1;
  if (total < kShared) {
    run(0, tasks, &ranges);
  } else {
    parallel_for(tasks, run, &ranges);
  }
}

}  // namespace hookstats::cpu
