// The emulator itself: a correct reduction has one answer in every order, and each fault that it
// promises to see is seen in a kernel that has it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "simt.h"

using namespace hookstats;
using namespace hookstats::cuda;

namespace {

constexpr uint64_t kSeeds = 20;

// --- correct kernels ----------------------------------------------------------------------------

HOOKSTATS_DEVICE double sum_of_block(double x) {
  double* sums = reinterpret_cast<double*>(shared_memory());
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  if (lane() == 0) sums[warp()] = x;
  sync_block();
  x = 0.0;
  for (int w = 0; w < block_threads() / kWarp; ++w) x += sums[w];
  sync_block();
  return x;
}

// Every block's sum, and their sum in order by the block that comes last.
HOOKSTATS_KERNEL void sum(const float* data, int64_t n, double* partials, uint32_t* counter,
                          double* total) {
  double x = 0.0;
  const int64_t step = int64_t{grid_blocks()} * block_threads();
  for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < n; i += step) {
    x += load(data + i);
  }
  x = sum_of_block(x);
  bool last = false;
  if (thread_index() == 0) {
    partials[block_index()] = x;
    last = count_block(counter) + 1 == static_cast<uint32_t>(grid_blocks());
  }
  if (!any_in_block(last)) return;
  if (thread_index() == 0) {
    *total = 0.0;
    for (int b = 0; b < grid_blocks(); ++b) *total += partials[b];
    *counter = 0;
  }
}

HOOKSTATS_KERNEL void histogram(const uint8_t* data, int64_t n, int64_t* counts) {
  uint32_t* table = reinterpret_cast<uint32_t*>(shared_memory());
  for (int i = thread_index(); i < 256; i += block_threads()) table[i] = 0;
  sync_block();
  const int64_t step = int64_t{grid_blocks()} * block_threads();
  for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < n; i += step) {
    add_shared(&table[load(data + i)], 1);
  }
  sync_block();
  for (int i = thread_index(); i < 256; i += block_threads()) add_global(&counts[i], table[i]);
}

void test_correct_kernels() {
  for (const int64_t n : {0, 1, 31, 33, 997, 20000}) {
    std::vector<float> data(static_cast<size_t>(n));
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    std::vector<int64_t> expected(256);
    double plain = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const size_t at = static_cast<size_t>(i);
      data[at] = 1.0f / static_cast<float>(i + 1);
      bytes[at] = static_cast<uint8_t>(i * i % 251);
      plain += data[at];
      ++expected[bytes[at]];
    }
    for (const int block : {32, 96, 256, 1024}) {
      std::set<double> totals;
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        simt::seed(seed);
        constexpr int kGrid = 7;
        std::vector<double> partials(kGrid);
        std::vector<int64_t> counts(256);
        uint32_t counter = 0;
        double total = -1.0;
        launch(sum, {kGrid, block, static_cast<size_t>(block / kWarp) * sizeof(double)},
               data.data(), n, partials.data(), &counter, &total);
        totals.insert(total);
        CHECK(counter == 0 && total - plain <= 1e-12 && plain - total <= 1e-12, "%g", total);
        launch(histogram, {3, block, 1024}, bytes.data(), n, counts.data());
        CHECK(counts == expected, "histogram of %ld", static_cast<long>(n));
      }
      CHECK(totals.size() == 1, "%zu sums of the same", totals.size());
    }
  }
}

HOOKSTATS_KERNEL void exchange_lanes(bool* right) {
  const int t = thread_index(), l = lane(), base = t - l;
  bool ok = shuffle_xor(t, 5) == base + (l ^ 5);
  ok = ok && shuffle_from(static_cast<int64_t>(t) << 40, 9) == int64_t{base + 9} << 40;
  ok = ok && shuffle_down(static_cast<double>(t), 3) == (l + 3 < kWarp ? t + 3 : t);
  ok = ok && shuffle_down(static_cast<float>(t), 0) == static_cast<float>(t);
  ok = ok && any_in_warp(t == 40) == (warp() == 1) && any_in_block(t == 40);
  ok = ok && !any_in_block(t == -1);
  sync_warp();
  right[block_index() * block_threads() + t] = ok && l == t % 32 && warp() == t / 32;
}

void test_exchanges() {
  bool right[2 * 96] = {};
  launch(exchange_lanes, {2, 96, 0}, right);
  for (const bool ok : right) CHECK(ok, "exchanges between lanes");
}

// --- faults -------------------------------------------------------------------------------------

HOOKSTATS_KERNEL void some_leave_before_barrier() {
  if (thread_index() >= 40) return;
  sync_block();
}
HOOKSTATS_KERNEL void different_barriers() {
  if (thread_index() % 2 == 0) {
    sync_block();
  } else {
    sync_block();
  }
}
HOOKSTATS_KERNEL void barrier_in_loop_of_uneven_length() {
  for (int i = 0; i <= thread_index() % 2; ++i) sync_block();
}
HOOKSTATS_KERNEL void lane_missing_in_shuffle(int* out) {
  if (lane() == 3) return;
  *out = shuffle_xor(1, 1);
}
HOOKSTATS_KERNEL void lane_at_barrier_instead_of_shuffle(int* out) {
  if (lane() != 3) *out = shuffle_xor(1, 1);
  sync_block();
}
HOOKSTATS_KERNEL void lanes_at_different_votes(int* out) {
  *out = lane() < 16 ? any_in_warp(true) : any_in_warp(false);
}
HOOKSTATS_KERNEL void misaligned_load16(const char* data, int* out) {
  *out = static_cast<int>(load16(data + 4).word[0]);
}
HOOKSTATS_KERNEL void misaligned_load(const char* data, int* out) {
  *out = load(reinterpret_cast<const int*>(data + 2));
}
HOOKSTATS_KERNEL void counts_beyond_shared_memory() {
  add_shared(reinterpret_cast<uint32_t*>(shared_memory()) + 16, 1);
}
HOOKSTATS_KERNEL void counts_in_global_as_if_shared(uint32_t* counter) { add_shared(counter, 1); }
HOOKSTATS_KERNEL void throws() { throw std::logic_error("thrown by the kernel"); }

std::string fault_of(const std::function<void()>& faulty) {
  try {
    faulty();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void test_faults() {
  alignas(16) char data[32] = {};
  int out = 0;
  uint32_t counter = 0;
  struct {
    const char* said;
    std::function<void()> faulty;
  } const cases[] = {
      {"24 of 64 ended", [] { launch(some_leave_before_barrier, {1, 64}); }},
      {"while others wait at", [] { launch(different_barriers, {1, 64}); }},
      {"threads wait for others", [] { launch(barrier_in_loop_of_uneven_length, {1, 64}); }},
      {"2 of 64 ended", [&] { launch(lane_missing_in_shuffle, {1, 64}, &out); }},
      {"threads wait for others",
       [&] { launch(lane_at_barrier_instead_of_shuffle, {1, 64}, &out); }},
      {"while others wait at", [&] { launch(lanes_at_different_votes, {1, 64}, &out); }},
      {"not a multiple of 16", [&] { launch(misaligned_load16, {1, 32}, data, &out); }},
      {"not a multiple of 4", [&] { launch(misaligned_load, {1, 32}, data, &out); }},
      {"beyond the shared memory of 64", [] { launch(counts_beyond_shared_memory, {1, 32, 64}); }},
      {"beyond the shared memory of 0",
       [&] { launch(counts_in_global_as_if_shared, {1, 32, 0}, &counter); }},
      {"thrown by the kernel", [] { launch(throws, {3, 64}); }},
      {"cannot launch 0 blocks", [&] { launch(histogram, {0, 32, 0}, nullptr, 0, nullptr); }},
      {"blocks of 48 threads", [] { launch(throws, {1, 48}); }},
      {"blocks of 1056 threads", [] { launch(throws, {1, 1056}); }},
      {"bytes of shared memory", [] { launch(throws, {1, 32, simt::shared_limit + 1}); }},
  };
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    simt::seed(seed);
    for (const auto& c : cases) {
      const std::string fault = fault_of(c.faulty);
      CHECK(contains(fault, c.said), "expected: %s, said: %s", c.said, fault.c_str());
    }
    test_exchanges();  // what stopped half way leaves nothing behind
  }
}

// Memory errors end a process under AddressSanitizer: each has a process of its own.
bool ends_badly(const std::function<void()>& faulty) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    _exit(fault_of(faulty).empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

HOOKSTATS_KERNEL void writes_shared(int at) {
  if (thread_index() == 0) *(static_cast<volatile char*>(shared_memory()) + at) = 0;
}

void test_shared_memory_bounds() {
  for (const int bytes : {0, 1, 24, 1000}) {
    for (const int at : {-1, bytes}) {
      CHECK(ends_badly([&] { launch(writes_shared, {1, 32, static_cast<size_t>(bytes)}, at); }),
            "written at %d of %d", at, bytes);
    }
    for (const int at : {0, bytes - 1}) {
      if (bytes == 0) continue;
      CHECK(!ends_badly([&] { launch(writes_shared, {1, 32, static_cast<size_t>(bytes)}, at); }),
            "written at %d of %d", at, bytes);
    }
  }
}

// --- what an order decides differs between orders -----------------------------------------------

HOOKSTATS_KERNEL void barrier_missing(int* out) {
  int* shared = reinterpret_cast<int*>(shared_memory());
  shared[thread_index()] = thread_index();
  out[thread_index()] = shared[block_threads() - 1 - thread_index()];
}
HOOKSTATS_KERNEL void second_barrier_missing(int* out) {
  int* shared = reinterpret_cast<int*>(shared_memory());
  for (int round = 0; round < 2; ++round) {
    shared[thread_index()] = round;
    sync_block();
    out[thread_index()] += shared[block_threads() - 1 - thread_index()];
  }
}
HOOKSTATS_KERNEL void last_block_wins(int* out) { *out = block_index(); }
HOOKSTATS_KERNEL void adds_floats_in_block_order(float* out) {
  if (thread_index() == 0) *out += 1.0f / static_cast<float>(1 + 3 * block_index());
}
HOOKSTATS_KERNEL void counters_not_cleared(int* out) {
  *out = *reinterpret_cast<int*>(shared_memory());
}

template <class T>
size_t answers(void (*kernel)(T*), LaunchConfig config, size_t size) {
  std::set<std::vector<T>> different;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    simt::seed(seed);
    std::vector<T> out(size);
    launch(kernel, config, out.data());
    different.insert(out);
  }
  return different.size();
}

void test_orders() {
  CHECK(answers(barrier_missing, {1, 64, 256}, 64) > 1, "a missing barrier");
  CHECK(answers(second_barrier_missing, {1, 64, 256}, 64) > 1, "a missing barrier in a loop");
  CHECK(answers(last_block_wins, {5, 32}, 1) > 1, "which block comes last");
  CHECK(answers(adds_floats_in_block_order, {50, 32}, 1) > 1, "sums in the order of blocks");
  CHECK(answers(counters_not_cleared, {1, 32, 4}, 1) > 1, "shared memory starts as garbage");
}

}  // namespace

int main() {
  test_correct_kernels();
  test_exchanges();
  test_faults();
  test_shared_memory_bounds();
  test_orders();
  return check::finish("simt");
}
