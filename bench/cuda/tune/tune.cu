// Answers how long the kernels take: a line a request, a line an answer. Compiled once for each
// choice of the numbers that are compiled in, with the kernels that are tuned and no others; those
// of plans come with each request. Every result is checked before its time is taken.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cuda/kernels.cuh"
#include "cuda/plan.h"
#include "line.h"
#include "runtime.h"
#include "tensors.h"

namespace hookstats::cuda {

template <class Source, int kItems>
void launch_agent(const Table<kItems>& table, AgentKind agent, bool, const LaunchConfig& config) {
  constexpr bool kTuned =
      std::is_same_v<Source, Vectors<float>> || std::is_same_v<Source, Vectors<BFloat16>>;
  if constexpr (kTuned && kItems == 1) {
    const Common& common = table.common;
    const bool counts =
        common.tensor_bins.kind != BinKind::kNone || common.channel_bins.kind != BinKind::kNone;
    if (agent == AgentKind::kMaps) return launch_maps<Source>(table, counts, config);
    if (agent != AgentKind::kSkewedColumns) {
      return counts ? launch_one<Source, true, false>(table, agent, config)
                    : launch_one<Source, false, false>(table, agent, config);
    }
  }
  throw std::invalid_argument("no kernel for this case is compiled here");
}

}  // namespace hookstats::cuda

#include "cuda/update.cu"

namespace hookstats::tune {

// The numbers of policy.h, as requests call them.
constexpr struct {
  const char* name;
  int cuda::PlanPolicy::* number;
} kPlanNumbers[] = {
    {"pieces", &cuda::PlanPolicy::pieces},
    {"channel_pieces", &cuda::PlanPolicy::channel_pieces},
    {"least_tiles", &cuda::PlanPolicy::least_tiles},
    {"warp_slots", &cuda::PlanPolicy::warp_slots},
    {"warp_tiles", &cuda::PlanPolicy::warp_tiles},
    {"filling_warps", &cuda::PlanPolicy::filling_warps},
    {"column_pieces", &cuda::PlanPolicy::column_pieces},
    {"column_roots", &cuda::PlanPolicy::column_roots},
    {"column_bytes", &cuda::PlanPolicy::column_bytes},
    {"least_columns", &cuda::PlanPolicy::least_columns},
    {"least_rows", &cuda::PlanPolicy::least_rows},
    {"copies", &cuda::PlanPolicy::copies},
    {"most_copy_bytes", &cuda::PlanPolicy::most_copy_bytes},
    {"histogram_blocks", &cuda::PlanPolicy::histogram_blocks},
};
static_assert(sizeof(cuda::PlanPolicy) == std::size(kPlanNumbers) * sizeof(int));

cuda::PlanPolicy policy_of(const Request& request) {
  cuda::PlanPolicy policy;
  for (const auto& [name, number] : kPlanNumbers) {
    const int64_t value = request.number(name);
    if (value < 1 || value > 1 << 20) {
      throw std::invalid_argument(std::string(name) + "=" + std::to_string(value) +
                                  ": expected 1 to 2^20");
    }
    policy.*number = static_cast<int>(value);
  }
  if ((policy.copies & (policy.copies - 1)) != 0 || policy.copies > cuda::kWarp) {
    throw std::invalid_argument("copies=" + std::to_string(policy.copies) +
                                ": expected a power of two up to 32");
  }
  return policy;
}

// One for all launches of the stream; what it grew out of may be in a graph.
class Workspaces final : public cuda::Lender {
 public:
  cuda::Workspace lend(size_t bytes) override {
    if (all_.empty() || all_.back()->bytes() < bytes) {
      all_.push_back(std::make_unique<Memory>(2 * bytes));
    }
    return {all_.back()->data(), all_.back()->bytes()};
  }

 private:
  std::vector<std::unique_ptr<Memory>> all_;
};

class Tuner {
 public:
  explicit Tuner(size_t bytes) : inputs_(bytes) {}

  Answer hello() const {
    const Facts found = facts();
    Answer answer;
    answer.add("device", found.name)
        .add("capability", std::to_string(device_.major) + "." + std::to_string(device_.minor))
        .add("multiprocessors", device_.multiprocessors)
        .add("block", cuda::kBlock)
        .add("in_flight", cuda::kInFlight)
        .add("runs_blocks", cuda::kRunsBlocks)
        .add("columns_blocks", cuda::kColumnsBlocks);
    const cuda::PlanPolicy policy;
    for (const auto& [name, number] : kPlanNumbers) answer.add(name, policy.*number);
    return answer;
  }

  // What the plan of a case is made of: requests with equal ones launch the same.
  Answer plan(const Request& request) {
    const Case c(request);
    const cuda::Plan plan = cuda::make_plan(with(policy_of(request)), params(c, 0), true);
    const cuda::Item& item = plan.item;
    const cuda::Shared& shared = plan.shared;
    std::string text = plan.agent == cuda::AgentKind::kRuns   ? "runs"
                       : plan.agent == cuda::AgentKind::kMaps ? "maps"
                                                              : "columns";
    for (const int64_t number :
         {int64_t{item.blocks}, int64_t{item.teams}, item.row_step, item.inner_step,
          int64_t{item.slots.divisor}, int64_t{item.groups}, int64_t{shared.counters_size},
          int64_t{shared.tensor_copies}, int64_t{shared.channel_copies}, int64_t{shared.scratch}}) {
      text += " " + std::to_string(number);
    }
    return Answer().add("plan", text);
  }

  Answer time(const Request& request) {
    const Case c(request);
    const cuda::Device device = with(policy_of(request));
    const Counted& expected = expected_of(c);
    Filled state(c, bins_);
    update(device, c, state, 0);
    const std::string problem = state.counted().unlike(expected, c.tensor, c.channels);
    if (!problem.empty()) return Answer().add("wrong", problem);
    const int64_t launches = std::max(request.number("launches"), inputs_.windows(c));
    const int replays = static_cast<int>(request.number("replays"));
    const Times found = times(replays, static_cast<int>(launches), [&] {
      for (int64_t i = 0; i < launches; ++i) update(device, c, state, i);
    });
    const int64_t folded = (1 + (replays + 1) * launches) * c.elements();
    if (state.seen() != folded) {
      return Answer().add("wrong", std::to_string(state.seen()) + " elements seen; expected " +
                                       std::to_string(folded));
    }
    return Answer()
        .add("least", found.least)
        .add("median", found.median)
        .add("most", found.most)
        .add("launches", static_cast<double>(launches))
        .add("megahertz", megahertz());
  }

 private:
  cuda::Device with(const cuda::PlanPolicy& policy) const {
    cuda::Device device = device_;
    device.policy = policy;
    return device;
  }

  UpdateParams params(const Case& c, int64_t window) {
    UpdateParams p{};
    p.data = inputs_.window(c, window);
    p.dtype = c.dtype;
    p.view = c.view();
    if (c.tensor) p.tensor_bins = bins_.tensor();
    if (c.channels) p.channel_bins = bins_.channels();
    return p;
  }

  void update(const cuda::Device& device, const Case& c, const Filled& state, int64_t window) {
    UpdateParams p = params(c, window);
    const Integers integers = state.integers();
    p.moments = state.moments();
    p.tallies = integers.tallies;
    if (c.tensor) p.tensor_counts = integers.tensor_counts;
    if (c.channels) p.channel_counts = integers.channel_counts;
    cuda::update(device, p, workspaces_, stream());
  }

  const Counted& expected_of(const Case& c) {
    const auto [at, is_new] = expected_.try_emplace(c.key());
    if (!is_new) return at->second;
    const Filled naive(c, bins_);
    if (c.dtype == DType::kFloat32) {
      count<float>(c, naive);
    } else {
      count<BFloat16>(c, naive);
    }
    return at->second = naive.counted();
  }
  template <class T>
  void count(const Case& c, const Filled& into) {
    cuda::launch(count_naively<T>, blocks_of(c.elements()),
                 static_cast<const T*>(inputs_.window(c, 0)), c.elements(), c.channel_count(),
                 c.inner(), bins_.tensor(), bins_.naive_channels(), into.integers());
  }

  cuda::Device device_ = cuda::device(0);
  Inputs inputs_;
  BothBins bins_;
  Workspaces workspaces_;
  std::map<std::string, Counted> expected_;
};

}  // namespace hookstats::tune

int main(int count, char** given) {
  using namespace hookstats::tune;
  try {
    constexpr size_t kBytes = size_t{2} << 30;
    Tuner tuner(count > 1 ? std::stoull(given[1]) : kBytes);
    for (std::string line; std::getline(std::cin, line);) {
      try {
        const Request request(line);
        if (request.what() == "hello") {
          tuner.hello().send();
        } else if (request.what() == "plan") {
          tuner.plan(request).send();
        } else if (request.what() == "time") {
          tuner.time(request).send();
        } else {
          throw std::invalid_argument("'" + request.what() + "': expected hello, plan or time");
        }
      } catch (const std::invalid_argument& error) {
        Answer().add("error", error.what()).send();
      }
    }
  } catch (const std::exception& error) {  // after an error of CUDA nothing works any more
    std::fprintf(stderr, "tune: %s\n", error.what());
    return 1;
  }
}
