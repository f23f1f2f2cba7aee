// The host's part of the CUDA library, on a runtime of the tests' own: shared memory, workspaces
// and streams, from several threads; and what an update asks of the host.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "check.h"
#include "cuda/launch.h"
#include "cuda/streams.h"
#include "cuda/update.cu"  // to launch kernels that do nothing

// Not inlined: a compiler that inlines one of a pair alone warns of memory that another allocator
// frees.
static thread_local int allocations = 0;
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* const made = std::malloc(bytes)) return made;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace hookstats::cuda {

template <class Source, int kItems>
void does_nothing(const Table<kItems>) {}

template <class Source, int kItems>
void launch_agent(const Table<kItems>& table, AgentKind, const LaunchConfig& config) {
  cuda::launch(does_nothing<Source, kItems>, config, table);
}

}  // namespace hookstats::cuda

namespace {

using namespace hookstats::cuda;
using driver::run_kernel;

void small(int) {}
void large(int) {}

cudaStream_t stream(uintptr_t i) { return reinterpret_cast<cudaStream_t>(i * 16); }

LaunchConfig with_shared(size_t kilobytes) {
  return {1, 32, kilobytes * 1024, stream(1), 0, 227 * 1024};
}

// The attribute is set once a kernel and device, to the most, whatever a launch needs: another
// thread's launch, which needs less, comes between the attribute and the launch.
void test_shared_memory_of_other_threads() {
  driver::reset();
  driver::state.before_next = [] { std::thread([] { launch(small, with_shared(60), 0); }).join(); };
  bool launched = true;
  try {
    launch(small, with_shared(200), 0);
  } catch (const std::runtime_error&) {
    launched = false;
  }
  CHECK(launched, "a launch with 200 KB beside one with 60 KB");
  launch(small, with_shared(100), 0);
  CHECK(driver::state.set_attributes == 1, "%d attributes set", driver::state.set_attributes);
  launch(large, with_shared(20), 0);
  CHECK(driver::state.set_attributes == 1, "20 KB need no attribute");
}

void test_workspaces() {
  driver::reset();
  Streams streams;
  const Workspace first = streams.workspace(stream(1), 1000);
  CHECK(first.bytes >= 1000 && static_cast<char*>(first.data)[999] == 0, "zeroed memory");
  CHECK(streams.workspace(stream(1), 2000).data == first.data, "kept");
  CHECK(streams.workspace(stream(2), 1000).data != first.data, "one for each stream");
  const Workspace more = streams.workspace(stream(1), size_t{5} << 20);
  CHECK(more.bytes >= size_t{5} << 20 && more.data != first.data, "grown");
  CHECK(streams.workspace(stream(1), 1000).data == more.data, "the grown one serves");
  const size_t allocations = driver::state.allocated.size();
  CHECK(allocations == 3, "%zu allocations", allocations);

  // The per-thread default stream has one handle for as many streams as there are threads.
  const void* const mine = streams.workspace(cudaStreamPerThread, 8).data;
  const void* other = nullptr;
  std::thread([&] { other = streams.workspace(cudaStreamPerThread, 8).data; }).join();
  CHECK(mine != other, "per-thread streams share a workspace");
}

// A thread whose launch blocks, as its stream's queue is full, keeps nobody else from launching.
void test_a_full_queue_blocks_nobody_else() {
  driver::reset();
  Streams streams;
  streams.close(stream(1));
  std::mutex mutex;
  std::condition_variable changed;
  bool is_blocked = false, may_go_on = false;
  driver::state.before_next = [&] {
    std::unique_lock<std::mutex> lock(mutex);
    is_blocked = true;
    changed.notify_all();
    changed.wait(lock, [&] { return may_go_on; });
  };
  std::thread blocked([&] { streams.launched(stream(2)); });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return is_blocked; });
  }
  // Each of these would wait for ever, were a lock held.
  streams.workspace(stream(3), 100);
  streams.launched(stream(1));
  streams.launched(stream(3));
  streams.wait(stream(9));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    may_go_on = true;
  }
  changed.notify_all();
  blocked.join();
  CHECK(true, "nobody waited");
}

// The reading stream waits for every kernel that was launched before the step closed.
void test_a_step_waits_for_all_streams() {
  const auto launch_on = [](Streams& streams, uintptr_t i) {
    run_kernel(stream(i));
    streams.launched(stream(i));
  };
  constexpr uintptr_t kReader = 9;
  for (unsigned script = 0; script < 4096; ++script) {
    driver::reset();
    Streams streams;
    for (int step = 0, at = 0; step < 3; ++step) {
      const auto next = [&] { return uintptr_t{1} + (script >> (at++ % 12) & 1); };
      for (int kernel = 0; kernel < 3; ++kernel) launch_on(streams, next());
      const uintptr_t closing = next();
      std::map<cudaStream_t, int> needed = driver::state.kernels;
      // As the closing thread does: an event of its own on its stream, which the reader waits for.
      streams.close(stream(closing));
      driver::state.waits_for[stream(kReader)][stream(closing)] = needed[stream(closing)];
      launch_on(streams, next());  // of the next step, while the closed one is read
      streams.wait(stream(kReader));
      for (const auto& [of, kernels] : needed) {
        const int waited = driver::state.waits_for[stream(kReader)][of];
        CHECK(waited >= kernels, "script %u, step %d: %d of %d kernels of stream %zu", script, step,
              waited, kernels, reinterpret_cast<uintptr_t>(of) / 16);
      }
    }
  }
}

// Training on one stream, as nearly all does, records no event behind its kernels.
void test_one_stream_costs_no_events() {
  driver::reset();
  Streams streams;
  streams.close(stream(1));
  for (int i = 0; i < 10; ++i) streams.launched(stream(1));
  streams.close(stream(1));
  CHECK(driver::state.events.empty(), "%zu events", driver::state.events.size());
}

// The handle of the per-thread default stream means another stream in each thread: what a thread
// launched there, and closed steps on, is waited for although another thread closes the next one.
void test_per_thread_streams() {
  driver::reset();
  Streams streams;
  cudaStream_t theirs = nullptr;
  const auto launch = [&] {
    run_kernel(cudaStreamPerThread);
    streams.launched(cudaStreamPerThread);
  };
  std::thread([&] {
    launch();
    streams.close(cudaStreamPerThread);
    launch();
    theirs = driver::meant_by(cudaStreamPerThread);
  }).join();
  for (const cudaStream_t closing : {cudaStreamPerThread, stream(1)}) {
    streams.close(closing);
    streams.wait(stream(9));
    const int waited = driver::state.waits_for[stream(9)][theirs];
    CHECK(waited == 2, "%d of 2 kernels of another thread's own stream", waited);
  }
}

// Training goes on where the stream of its steps was destroyed; who reads waits for the device.
void test_a_destroyed_stream() {
  driver::reset();
  Streams streams;
  streams.close(stream(1));
  run_kernel(stream(1));
  streams.launched(stream(1));
  driver::state.destroyed.insert(stream(1));
  bool closed = true;
  try {
    streams.close(stream(2));
  } catch (const std::runtime_error&) {
    closed = false;
  }
  CHECK(closed, "a step is closed after the stream of the step before was destroyed");
  for (int i = 0; i < 2; ++i) streams.wait(stream(9));
  CHECK(driver::state.device_waits == 1, "waited %d times", driver::state.device_waits);
}

void test_threads() {
  driver::reset();
  Streams streams;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uintptr_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 500; ++i) {
        const size_t bytes = i * 10000;
        if (streams.workspace(stream(t % 2 + 1), bytes).bytes < bytes) ++wrong;
        streams.launched(stream(t));
        if (i % 10 == 0) streams.close(stream(1));
        streams.wait(stream(9));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0, "%d workspaces too small", wrong.load());
}

struct OfStreams final : Lender {
  Streams streams;
  int lent = 0;
  Workspace lend(size_t bytes) override {
    ++lent;
    return streams.workspace(stream(1), bytes);
  }
};

constexpr Device kH200{0, 132, 227 * 1024};
constexpr int64_t kSampling[] = {0, 8, 8};

struct Observed {
  const char* name;
  std::vector<int64_t> sizes, strides;
  int channel_dim, workspaces;

  hookstats::UpdateParams params(bool sampled) const {
    hookstats::UpdateParams params{};
    params.data = reinterpret_cast<const void*>(uintptr_t{1} << 20);
    params.tensor_bins = hookstats::log_bins(3, -127, 127);
    params.sampling = sampled ? kSampling : nullptr;
    params.view = hookstats::channel_view(sizes.data(), strides.data(),
                                          static_cast<int>(sizes.size()), channel_dim);
    return params;
  }
};

const Observed kObserved[] = {{"whole", {1 << 22}, {1}, -1, 1},
                              {"columns", {8192, 1024}, {1024, 1}, 1, 1},
                              {"odd columns", {8192, 50257}, {50257, 1}, 1, 0},
                              {"maps", {64, 256, 49}, {12544, 49, 1}, 1, 0}};

// How a tensor is cut, and so the bits of its moments, does not depend on what else a call updates,
// but for kernels that only a tensor alone has.
void test_cuts_are_those_of_one_alone() {
  std::vector<Observed> observed(std::begin(kObserved), std::end(kObserved));
  for (const int64_t rows : {1, 33, 600, 5000}) {
    for (const int64_t columns : {64, 1700, 5000, 100000}) {
      observed.push_back({"rows", {rows, columns}, {columns, 1}, 0, 0});
      observed.push_back({"columns", {rows, columns}, {columns, 1}, 1, 0});
    }
  }
  int compared = 0;
  for (const Observed& each : observed) {
    for (const bool counts : {false, true}) {
      hookstats::UpdateParams params = each.params(false);
      if (!counts) params.tensor_bins = {};
      const Plan alone = make_plan(kH200, params, true);
      const Plan beside = make_plan(kH200, params, false, int64_t{1} << 40);
      if (alone.agent != beside.agent) continue;
      ++compared;
      const Item &a = alone.item, &b = beside.item;
      CHECK(a.groups == b.groups && a.row_splits == b.row_splits &&
                a.inner_splits == b.inner_splits && a.row_step == b.row_step &&
                a.inner_step == b.inner_step && a.slots.divisor == b.slots.divisor,
            "%s, %zd by %zd: cut in another way beside others", each.name,
            static_cast<ssize_t>(each.sizes[0]), static_cast<ssize_t>(each.sizes.back()));
    }
  }
  CHECK(compared > 50, "%d cuts compared", compared);
}

// Once a stream has a workspace, an update is one call of the driver, and allocates nothing.
void test_an_update_is_one_launch() {
  driver::reset();
  OfStreams lender;
  for (const bool sampled : {false, true}) {
    for (const Observed& observed : kObserved) {
      const hookstats::UpdateParams params = observed.params(sampled);
      update(kH200, params, lender, stream(1));  // may be the first
      driver::state.kernels.clear();
      driver::run_kernel(stream(1));
      lender.lent = 0;
      const int before = allocations;
      update(kH200, params, lender, stream(1));
      CHECK(allocations == before, "%s: %d allocations", observed.name, allocations - before);
      CHECK(driver::state.kernels[stream(1)] == 2, "%s: one launch", observed.name);
      CHECK(lender.lent == observed.workspaces, "%s: %d workspaces", observed.name, lender.lent);
    }
  }
}

// The outputs of one call, of which docs/decisions.md says who would share a launch.
void test_one_launch_has_tensors_of_one_agent() {
  const Observed attention[] = {{"output", {2, 64, 768}, {49152, 768, 1}, 2, 0},
                                {"weights", {2, 12, 64, 64}, {49152, 4096, 64, 1}, 1, 0}};
  const Observed lstm[] = {{"output", {4, 32, 512}, {16384, 512, 1}, 2, 0},
                           {"h", {2, 4, 512}, {2048, 512, 1}, 2, 0},
                           {"c", {2, 4, 512}, {2048, 512, 1}, 2, 0}};
  const auto launches = [](const auto& outputs) {
    driver::reset();
    OfStreams lender;
    std::vector<hookstats::UpdateParams> params;
    for (const Observed& output : outputs) params.push_back(output.params(false));
    update_many(kH200, params.data(), std::ssize(params), lender, stream(1));
    return driver::state.kernels[stream(1)];
  };
  CHECK(launches(attention) == 2, "%d launches of an attention", launches(attention));
  CHECK(launches(lstm) == 1, "%d launches of an LSTM", launches(lstm));
}

// What an update takes of the host's time beside a bare launch, and what of it cuts the tensor; of
// a driver that does nothing. Of the fastest of many rounds: others may have the processor.
void print_times() {
  const auto microseconds = [](auto&& f) {
    constexpr int kTimes = 1000;
    double least = 1e9;
    for (int round = 0; round < 20; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kTimes; ++i) f();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      least = std::min(least, took.count() / kTimes);
    }
    return least;
  };
  driver::reset();
  OfStreams lender;
  const double bare = microseconds([] { launch(small, with_shared(20), 0); });
  for (const Observed& observed : kObserved) {
    const hookstats::UpdateParams params = observed.params(false);
    const double one = microseconds([&] { update(kH200, params, lender, stream(1)); });
    int32_t blocks = 0;
    const double cut = microseconds([&] { blocks += make_plan(kH200, params, true).item.blocks; });
    CHECK(blocks != 0, "%s: no blocks", observed.name);
    std::printf("%s: an update takes %.2f us of the host, its plan %.2f, a bare launch %.2f\n",
                observed.name, one, cut, bare);
  }
}

}  // namespace

int main() {
  test_shared_memory_of_other_threads();
  test_workspaces();
  test_a_full_queue_blocks_nobody_else();
  test_a_step_waits_for_all_streams();
  test_one_stream_costs_no_events();
  test_per_thread_streams();
  test_a_destroyed_stream();
  test_threads();
  test_cuts_are_those_of_one_alone();
  test_an_update_is_one_launch();
  test_one_launch_has_tensors_of_one_agent();
  print_times();
  return check::finish("test_host");
}
