// What bounds the kernels, each by itself: reading, copying, an empty launch, a launch behind
// another kernel, additions to shared memory and loads from it, and the merge by the block that
// comes last.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/bins.h"
#include "cuda/counting.cuh"
#include "cuda/fold.cuh"
#include "cuda/launch.h"
#include "cuda/update.h"
#include "line.h"
#include "naive.cuh"
#include "runtime.h"

namespace hookstats::tune {

constexpr int kInFlight = 4;

HOOKSTATS_KERNEL void nothing(int) {}

// 16 bytes a thread, four times at a time; what is read has to be of some use.
HOOKSTATS_KERNEL void read(const char* from, int64_t vectors, uint32_t* used) {
  const int64_t threads = int64_t{grid_blocks()} * block_threads();
  const int64_t first = int64_t{block_index()} * block_threads() + thread_index();
  uint32_t all = 0;
  for (int64_t at = first; at + (kInFlight - 1) * threads < vectors; at += kInFlight * threads) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const cuda::Bytes16 bytes = cuda::load16(from + (at + i * threads) * 16);
      all |= bytes.word[0] ^ bytes.word[1] ^ bytes.word[2] ^ bytes.word[3];
    }
  }
  if (all == 0x12345678u) *used = all;
}

HOOKSTATS_KERNEL void copy(const char* from, char* to, int64_t vectors) {
  const int64_t threads = int64_t{grid_blocks()} * block_threads();
  const int64_t first = int64_t{block_index()} * block_threads() + thread_index();
  for (int64_t at = first; at + (kInFlight - 1) * threads < vectors; at += kInFlight * threads) {
    cuda::Bytes16 bytes[kInFlight];
    HOOKSTATS_UNROLL
    for (int i = 0; i < kInFlight; ++i) bytes[i] = cuda::load16(from + (at + i * threads) * 16);
    HOOKSTATS_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      *reinterpret_cast<cuda::Bytes16*>(to + (at + i * threads) * 16) = bytes[i];
    }
  }
}

// Of a pattern, the words of shared memory that each lane takes, one after another.
constexpr int kPlaces = 16, kWords = 4096;

template <bool kAdds>
HOOKSTATS_KERNEL void use_shared(const int32_t* places, int rounds, uint32_t* used) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(cuda::shared_memory());
  cuda::clear(words, kWords);
  int32_t mine[kPlaces];
  HOOKSTATS_UNROLL
  for (int i = 0; i < kPlaces; ++i) mine[i] = places[i * block_threads() + thread_index()];
  cuda::sync_block();
  uint32_t all = 0;
  for (int round = 0; round < rounds; ++round) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      if constexpr (kAdds) {
        cuda::add_shared(words + mine[i], 1);
      } else {
        // What comes of a load is added to the next address, so that no load is left out.
        const uint32_t word = *const_cast<volatile uint32_t*>(words + mine[i]);
        mine[i] += static_cast<int32_t>(word);
        all += word;
      }
    }
  }
  cuda::sync_block();
  for (int i = thread_index(); i < kWords; i += block_threads()) all += words[i];
  add_global(reinterpret_cast<int64_t*>(used), all);
}

// What an observation can do before it reads: it has a histogram cleared.
HOOKSTATS_KERNEL void follow(int) {
  cuda::clear(reinterpret_cast<uint32_t*>(cuda::shared_memory()), kWords);
  await_kernel_before();
}

// `splits` pieces of `width` channels, of which the last block merges the results, or not.
HOOKSTATS_KERNEL void merge_last(cuda::Item item, int width, bool merges) {
  void* const scratch = cuda::shared_memory();
  Channel seen;
  seen.count = 1;
  seen.mean = static_cast<double>(thread_index());
  seen.min = seen.max = seen.mean;
  for (int c = thread_index(); c < width; c += block_threads()) {
    cuda::store_partial(item, block_index(), c, seen);
  }
  if (merges && cuda::last_of(item.tickets, item.splits())) {
    cuda::fold_partials<Channel>(item, 0, width, scratch);
  }
}

class Bench {
 public:
  Bench(int64_t bytes, int rounds, int replays)
      : bytes_(bytes), rounds_(rounds), replays_(replays) {}

  void run() {
    constexpr int kLaunches = 100;
    report("empty launch",
           timed(kLaunches,
                 [](int) {
                   cuda::launch(nothing, LaunchConfig{1, kThreads, 0, stream(), 0, 0}, 0);
                 }).median *
               1e6,
           "us");
    reading();
    if (device_.major >= 9) following();
    shared("one address", [](int, int) { return 0; });
    shared("two addresses", [](int lane, int) { return lane % 2; });
    shared("a bank each", [](int lane, int i) { return lane + 32 * i; });
    shared("one bank", [](int lane, int i) { return (lane * 32 + i * 1024) % kWords; });
    shared("N(0, 1) by pattern", [this](int, int) { return pattern(); });
    shared("ReLU of it by pattern", [this](int, int) {
      const int found = pattern();
      return found >= kWords / 2 ? 0 : found;
    });
    shared("64 bins, one counter", [this](int, int) { return bin(); });
    shared("64 bins, 4 counters", [this](int lane, int) { return bin() * 4 + lane % 4; });
    shared("64 bins, 32 counters", [this](int lane, int) { return bin() * 32 + lane; });
    for (const auto& [splits, width] : {std::pair{66, 256}, {264, 64}, {264, 16}, {792, 1}}) {
      merging(splits, width);
    }
  }

 private:
  template <template <class> class Timed = Replay, class Launch>
  Times timed(int launches, Launch launch) {
    return times<Timed>(replays_, launches, [=] {
      for (int i = 0; i < launches; ++i) launch(i);
    });
  }

  void report(const std::string& what, double value, const std::string& unit) const {
    Answer()
        .add("what", what)
        .add("value", value)
        .add("unit", unit)
        .add("megahertz", megahertz())
        .send();
  }

  void reading() {
    constexpr int kWindows = 8;
    const Memory memory(static_cast<size_t>(kWindows * bytes_)), used(8);
    char* const data = static_cast<char*>(memory.data());
    uint32_t* const word = static_cast<uint32_t*>(used.data());
    const int64_t vectors = bytes_ / 16;
    const LaunchConfig config{device_.multiprocessors * 8, kThreads, 0, stream(), 0, 0};
    const auto window = [=, this](int i) { return data + i % kWindows * bytes_; };
    const double of_read =
        timed(20, [=](int i) { cuda::launch(read, config, window(i), vectors, word); }).median;
    const double of_copy = timed(20, [=](int i) {
                             cuda::launch(copy, config, window(i), window(i + 1), vectors);
                           }).median;
    report("read", static_cast<double>(bytes_) / of_read * 1e-12, "TB/s");
    report("copy", 2.0 * static_cast<double>(bytes_) / of_copy * 1e-12, "TB/s");
  }

  // Behind a copy, which takes some 10 us and, as torch's kernels, lets nothing begin before its
  // end.
  void following() {
    constexpr int kCopies = 100;
    const int64_t bytes = bytes_ / 16, vectors = bytes / 16;
    const Memory memory(static_cast<size_t>(2 * bytes));
    char* const data = static_cast<char*>(memory.data());
    const int blocks = device_.multiprocessors * 2;
    const LaunchConfig of_copy{blocks, kThreads, 0, stream(), 0, 0};
    const LaunchConfig config{blocks, kThreads, kWords * sizeof(uint32_t), stream(), 0, 0};
    const auto seconds = [&](auto launch) {
      return timed<Queued>(kCopies,
                           [=](int) {
                             cuda::launch(copy, of_copy, data, data + bytes, vectors);
                             launch();
                           })
          .median;
    };
    const double alone = seconds([] {});
    const double plain = seconds([=] { cuda::launch(follow, config, 0); });
    const double dependent = seconds([=] { launch_dependent(follow, config, 0); });
    report("launch behind a copy of 16 MB", (plain - alone) * 1e6, "us");
    report("a dependent launch saves of it", (plain - dependent) * 1e6, "us");
  }

  // Clocks that an instruction of a warp takes of a multiprocessor, all of its warps at work.
  template <class Place>
  void shared(const std::string& pattern, Place place) {
    std::vector<int32_t> all(kPlaces * kThreads);
    for (int i = 0; i < kPlaces; ++i) {
      for (int thread = 0; thread < kThreads; ++thread) {
        all[static_cast<size_t>(i * kThreads + thread)] = place(thread % cuda::kWarp, i);
      }
    }
    const Memory places(all.size() * sizeof all[0]), used(8);
    copy_in(places.data(), all.data(), places.bytes());
    const auto* const from = static_cast<const int32_t*>(places.data());
    uint32_t* const into = static_cast<uint32_t*>(used.data());
    constexpr int kBlocks = 4;  // of a multiprocessor
    const LaunchConfig config{device_.multiprocessors * kBlocks,
                              kThreads,
                              kWords * sizeof(uint32_t),
                              stream(),
                              0,
                              device_.shared_bytes};
    const int rounds = rounds_;
    const double adding =
        timed(4, [=](int) { cuda::launch(use_shared<true>, config, from, rounds, into); }).median;
    const double loading =
        timed(4, [=](int) { cuda::launch(use_shared<false>, config, from, rounds, into); }).median;
    const double instructions = double{kPlaces} * rounds * kBlocks * kThreads / cuda::kWarp;
    const double clocks = megahertz() * 1e6 / instructions;
    report("additions to shared memory, " + pattern, adding * clocks, "clocks a warp");
    report("loads from shared memory, " + pattern, loading * clocks, "clocks a warp");
  }

  static double uniform() { return (std::rand() + 0.5) / (RAND_MAX + 1.0); }
  static float normal() {
    return static_cast<float>(std::sqrt(-2 * std::log(uniform())) *
                              std::cos(6.2831853 * uniform()));
  }
  static int pattern() { return static_cast<int>(bits_from_float(normal()) >> 20); }
  static int bin() {
    const int found = static_cast<int>((normal() + 4.0f) * 8.0f);
    return found < 0 ? 0 : found > 63 ? 63 : found;
  }

  void merging(int splits, int width) {
    cuda::Item item{};
    const auto of = [](int64_t n) { return static_cast<size_t>(n) * 8; };
    const Memory moments(of(width * kMomentColumns)), tallies(of(width * kTallyColumns));
    const Memory partials(static_cast<size_t>(splits) * static_cast<size_t>(width) *
                          sizeof(Channel));
    const Memory tickets(8);
    item.moments = static_cast<double*>(moments.data());
    item.tallies = static_cast<int64_t*>(tallies.data());
    item.partials = partials.data();
    item.tickets = static_cast<uint32_t*>(tickets.data());
    item.channels = width;
    item.repeat = 1;
    item.row_splits = splits;
    item.inner_splits = 1;
    const LaunchConfig config{splits,   kThreads, kThreads * sizeof(cuda::Entry<Channel>),
                              stream(), 0,        device_.shared_bytes};
    const auto seconds = [&](bool merges) {
      return timed(20, [=](int) { cuda::launch(merge_last, config, item, width, merges); }).median;
    };
    report("merge of " + std::to_string(splits) + " by " + std::to_string(width) + " channels",
           (seconds(true) - seconds(false)) * 1e6, "us");
  }

  int64_t bytes_;
  int rounds_, replays_;
  cuda::DeviceLimits limits_ = cuda::device_limits(0);
  cuda::Device device_{0, limits_.multiprocessors, static_cast<size_t>(limits_.shared_bytes),
                       limits_.major, limits_.minor};
};

}  // namespace hookstats::tune

int main(int count, char** given) {
  try {
    const int64_t bytes = count > 1 ? std::atoll(given[1]) : int64_t{256} << 20;
    const int rounds = count > 2 ? std::atoi(given[2]) : 500;
    const int replays = count > 3 ? std::atoi(given[3]) : 7;
    hookstats::tune::Bench(bytes, rounds, replays).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "micro: %s\n", error.what());
    return 1;
  }
}
