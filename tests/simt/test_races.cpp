// The race detector: kernels that are in order pass, and each kind of missing order is seen.
// Compiled, as the kernels are for it, with -fsanitize=thread.
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "check.h"
#include "simt.h"

using namespace hookstats;
using namespace hookstats::cuda;

namespace {

int* shared_ints() { return reinterpret_cast<int*>(shared_memory()); }

HOOKSTATS_KERNEL void in_order(int64_t* counts, int* partials, uint32_t* counter, int* total) {
  int* const shared = shared_ints();
  uint32_t* const counters = reinterpret_cast<uint32_t*>(shared + block_threads());
  if (thread_index() < 4) counters[thread_index()] = 0;
  sync_block();
  for (int round = 0; round < 3; ++round) {
    shared[thread_index()] = round;
    sync_warp();
    const int neighbour = shared[thread_index() ^ 1];
    sync_block();
    add_shared(&counters[neighbour % 4], 1);
    if (shared[block_threads() - 1 - thread_index()] != round) ++shared[thread_index()];
    sync_block();
  }
  if (thread_index() < 4) add_global(&counts[thread_index()], counters[thread_index()]);
  if (thread_index() == 0) partials[block_index()] = shared[5];
  sync_block();
  bool last = false;
  if (thread_index() == 0) {
    last = count_block(counter) + 1 == static_cast<uint32_t>(grid_blocks());
    if (last) *counter = 0;
  }
  if (!any_in_block(last)) return;
  if (thread_index() < grid_blocks()) shared[thread_index()] = partials[thread_index()];
  sync_block();
  if (thread_index() != 0) return;
  *total = 0;
  for (int b = 0; b < grid_blocks(); ++b) *total += shared[b];
}

HOOKSTATS_KERNEL void barrier_missing(int* out) {
  shared_ints()[thread_index()] = 1;
  out[thread_index()] = shared_ints()[thread_index() ^ 32];
}
HOOKSTATS_KERNEL void barrier_missing_before_write(int* out) {
  shared_ints()[thread_index()] = 1;
  sync_block();
  out[thread_index()] = shared_ints()[thread_index() ^ 32];
  shared_ints()[thread_index()] = 2;
}
HOOKSTATS_KERNEL void shuffle_in_the_place_of_a_barrier(int* out) {
  shared_ints()[thread_index()] = 1;
  shuffle_xor(1, 1);
  out[thread_index()] = shared_ints()[thread_index() ^ 1];
}
HOOKSTATS_KERNEL void warps_own_barrier_for_all(int* out) {
  shared_ints()[thread_index()] = 1;
  sync_warp();
  out[thread_index()] = shared_ints()[thread_index() ^ 32];
}
HOOKSTATS_KERNEL void counts_without_atomics(int*) {
  if (thread_index() == 0) shared_ints()[0] = 0;
  sync_block();
  ++shared_ints()[0];
}
HOOKSTATS_KERNEL void clears_while_others_count(int*) {
  if (thread_index() == 0) shared_ints()[0] = 0;
  add_shared(reinterpret_cast<uint32_t*>(shared_ints()), 1);
}
HOOKSTATS_KERNEL void blocks_add_without_atomics(int* out) {
  if (thread_index() == 0) ++out[0];
}
HOOKSTATS_KERNEL void partials_without_a_counter(int* out) {
  if (thread_index() != 0) return;
  out[block_index()] = 1;
  if (block_index() == 0) out[2] = out[1];
  if (block_index() == 1) out[3] = out[0];
}
HOOKSTATS_KERNEL void count_before_the_partial(int* out) {
  if (thread_index() != 0) return;
  const uint32_t taken = count_block(reinterpret_cast<uint32_t*>(out));
  out[1 + block_index()] = 1;
  if (taken == 1) out[3] = out[1] + out[2];
}
HOOKSTATS_KERNEL void count_before_others_have_written(int* out) {
  if (thread_index() == 40) out[1 + block_index()] = 1;
  bool last = false;
  if (thread_index() == 0) last = count_block(reinterpret_cast<uint32_t*>(out)) == 1;
  if (any_in_block(last) && thread_index() == 0) out[3] = out[1] + out[2];
}

std::string fault_of(void (*kernel)(int*)) {
  std::vector<int> out(64);
  try {
    launch(kernel, {2, 64, 256}, out.data());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

int main() {
  CHECK(simt::observer != nullptr, "compiled with -fsanitize=thread");
  const struct {
    const char* name;
    void (*kernel)(int*);
  } faulty[] = {
      {"barrier_missing", barrier_missing},
      {"barrier_missing_before_write", barrier_missing_before_write},
      {"shuffle_in_the_place_of_a_barrier", shuffle_in_the_place_of_a_barrier},
      {"warps_own_barrier_for_all", warps_own_barrier_for_all},
      {"counts_without_atomics", counts_without_atomics},
      {"clears_while_others_count", clears_while_others_count},
      {"blocks_add_without_atomics", blocks_add_without_atomics},
      {"partials_without_a_counter", partials_without_a_counter},
      {"count_before_the_partial", count_before_the_partial},
      {"count_before_others_have_written", count_before_others_have_written},
  };
  for (uint64_t seed = 0; seed < 50; ++seed) {
    simt::seed(seed);
    for (const auto& f : faulty) {
      const std::string fault = fault_of(f.kernel);
      CHECK(fault.find("a race in") == 0, "%s, order %lu: %s", f.name,
            static_cast<unsigned long>(seed), fault.c_str());
    }
    std::vector<int64_t> counts(4);
    std::vector<int> partials(5);
    uint32_t counter = 0;
    int total = 0;
    try {
      launch(in_order, {5, 96, 100 * 4}, counts.data(), partials.data(), &counter, &total);
    } catch (const std::exception& error) {
      CHECK(false, "in order: %s", error.what());
    }
    CHECK(total == 10 && counts == (std::vector<int64_t>{480, 480, 480, 0}), "in order: %d", total);
  }
  return check::finish("races");
}
