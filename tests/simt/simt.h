// A GPU for g++: the words of csrc/cuda/primitives.cuh, with a block's threads as fibers of one CPU
// thread. What a GPU would leave undefined is an error here.
//
// A launch runs at once, its blocks one after another in random order. Threads run until they
// meet - at a barrier, a shuffle, a vote - and go on from there in random order, so that what
// depends on an order without a meeting differs from seed to seed. Faults: threads that wait at
// different places or never come, misaligned loads, and writes beyond shared memory, which starts
// as garbage and has exactly the size that was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda/launch_config.h"
#include "cuda/policy.h"

#define HOOKSTATS_KERNEL
#define HOOKSTATS_DEVICE inline

namespace hookstats::simt {

// What a kernel did wrong; thrown by `launch` once all of the block's threads have ended.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Site = std::source_location;

// The order of all blocks and threads from here on.
void seed(uint64_t value);

// The most dynamic shared memory a launch may ask for.
inline size_t shared_limit = 227 * 1024;

// How often a thread has met the others of its block, of its warp: what orders memory.
struct Progress {
  uint32_t block = 0, warp = 0;
};

struct Running {
  int thread, threads, block, blocks;
  uint64_t launch;
  const Progress* progress;  // the thread's; null on the host
};
inline Running running{};

constexpr int kLanes = 32;

// Sees every atomic addition, if there is one: races.cpp.
enum class Access : uint8_t { kRead, kWrite, kAtomic, kBlockCount };
inline void (*observer)(const void* address, size_t bytes, Access access, const void* at) = nullptr;

// What warps cost, in kernels whose compiler calls races.cpp at every basic block. Lanes then go on
// in step, and a warp pays once for a block that several of its lanes come to together.
struct Cost {
  uint64_t blocks = 0;    // basic blocks
  uint64_t sectors = 0;   // of 32 bytes, of global and local memory: of one load, each once
  uint64_t accesses = 0;  // of a warp to global memory: loads, and rarely others
  uint64_t counts = 0;    // additions to shared memory: of one, as many as are to one address

  uint64_t work() const { return blocks + counts; }
};
// Counted into while it is set.
inline Cost* cost = nullptr;

// The lane has come to the basic block at `at`, in a frame at `frame`: it waits for its turn.
void stop_at_block(const void* at, const void* frame);
enum class Unit : uint8_t { kSector, kLocal, kCounter };
// The lane accesses memory in its basic block.
void account(const void* address, size_t bytes, Unit unit);
// What kernels keep in a thread's local memory.
void keep_local(const void* address, size_t bytes);
bool is_local(const void* address);

void meet_block(const Site& site);
void meet_warp(const Site& site);
bool vote_block(bool yes, const Site& site);
bool vote_warp(bool yes, const Site& site);
// What `lane` of the warp brought to the same exchange.
uint64_t exchange(uint64_t brought, int lane, const Site& site);

char* shared_memory();
bool is_shared(const void* address, size_t bytes);
bool is_private(const void* address);  // a thread's stack, or the arguments of the kernel
void require_aligned(const void* address, size_t bytes, const Site& site);

void add_shared(uint32_t* counter, uint32_t n, const Site& site);
void add_global(int64_t* counter, int64_t n, const Site& site);
uint32_t count_block(uint32_t* counter, const Site& site);

// Makes the launch throw, once its block has ended.
void report(const std::string& problem);

struct Body {
  void (*run)(const void* arguments);
  const void* arguments;
  size_t bytes;
};
void run(int64_t blocks, int64_t threads, size_t shared_bytes, const Body& body);

template <class T>
T from_lane(T value, int lane, const Site& site) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  // Beyond the warp a lane reads itself, as the hardware has it for a shuffle of 32 lanes.
  const bool exists = lane >= 0 && lane < kLanes;
  word = exchange(word, exists ? lane : running.thread % kLanes, site);
  std::memcpy(&value, &word, sizeof value);
  return value;
}

}  // namespace hookstats::simt

namespace hookstats::cuda {

static_assert(kWarp == simt::kLanes);

inline int thread_index() { return simt::running.thread; }
inline int block_threads() { return simt::running.threads; }
inline int block_index() { return simt::running.block; }
inline int grid_blocks() { return simt::running.blocks; }
inline int lane() { return simt::running.thread % kWarp; }
inline int warp() { return simt::running.thread / kWarp; }

inline void sync_block(const simt::Site& site = simt::Site::current()) { simt::meet_block(site); }
inline void sync_warp(const simt::Site& site = simt::Site::current()) { simt::meet_warp(site); }
inline bool any_in_block(bool yes, const simt::Site& site = simt::Site::current()) {
  return simt::vote_block(yes, site);
}
inline bool any_in_warp(bool yes, const simt::Site& site = simt::Site::current()) {
  return simt::vote_warp(yes, site);
}

template <class T>
T shuffle_xor(T value, int mask, const simt::Site& site = simt::Site::current()) {
  return simt::from_lane(value, lane() ^ mask, site);
}
template <class T>
T shuffle_down(T value, int delta, const simt::Site& site = simt::Site::current()) {
  return simt::from_lane(value, lane() + delta, site);
}
template <class T>
T shuffle_from(T value, int source, const simt::Site& site = simt::Site::current()) {
  return simt::from_lane(value, source, site);
}

inline char* shared_memory() { return simt::shared_memory(); }

inline void add_shared(uint32_t* counter, uint32_t n,
                       const simt::Site& site = simt::Site::current()) {
  simt::add_shared(counter, n, site);
}
inline void add_global(int64_t* counter, int64_t n,
                       const simt::Site& site = simt::Site::current()) {
  simt::add_global(counter, n, site);
}
inline uint32_t count_block(uint32_t* counter, const simt::Site& site = simt::Site::current()) {
  return simt::count_block(counter, site);
}

struct alignas(16) Bytes16 {
  uint32_t word[4];
};
// What no kernel writes: the detector of races does not look here.
[[gnu::no_sanitize_thread]] inline Bytes16 load16(const void* address,
                                                  const simt::Site& site = simt::Site::current()) {
  simt::require_aligned(address, sizeof(Bytes16), site);
  simt::account(address, sizeof(Bytes16), simt::Unit::kSector);
  Bytes16 bytes;
  std::memcpy(&bytes, address, sizeof bytes);
  return bytes;
}
template <class T>
[[gnu::no_sanitize_thread]] T load(const T* address,
                                   const simt::Site& site = simt::Site::current()) {
  simt::require_aligned(address, sizeof(T), site);
  simt::account(address, sizeof(T), simt::Unit::kSector);
  return *address;
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& config, Arguments&&... arguments) {
  static_assert((0 + ... + sizeof(Parameters)) <= 32764, "CUDA's limit of a kernel's arguments");
  static_assert((std::is_trivially_copyable_v<Parameters> && ...));
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> parameters;
  } call{kernel, {std::forward<Arguments>(arguments)...}};
  const auto body = [](const void* arguments) {
    const Call& c = *static_cast<const Call*>(arguments);
    std::apply(c.kernel, c.parameters);
  };
  simt::run(config.grid, config.block, config.shared_bytes, {body, &call, sizeof call});
}

}  // namespace hookstats::cuda
