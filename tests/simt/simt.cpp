// The emulator's scheduler: fibers, where they meet, and the memory they share.
#include "simt.h"

#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <string>
#include <tuple>
#include <vector>

#include "context.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace hookstats::simt {

namespace {

// --- fibers -------------------------------------------------------------------------------------

void fiber_main();

// Sanitized frames are several times larger; pages that are never touched cost nothing.
constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kPage = 4096;
constexpr uintptr_t kSector = 32;  // bytes that memory reads at least

char* map_pages(size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("simt: no memory");
  return static_cast<char*>(memory);
}

struct Fiber {
  Context context;
  char* stack = nullptr;  // its lowest address
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  int index = -1;
  const Site* waits_at = nullptr;
  Progress progress;
  // The basic block that waits for its turn, and the frame it is in, from the stack's lowest
  // address on; how many accesses the lane made in the block before.
  const void* block = nullptr;
  ptrdiff_t frame = 0;
  uint32_t accesses = 0;
  std::vector<std::pair<const char*, size_t>> local;  // memory, and how many bytes
};

// What waits in a kernel that failed is unwound by this.
struct Cancelled {};

// Where threads wait for each other.
struct Meeting {
  const Site* site = nullptr;  // of those that have come
  int arrived = 0;
  int turn = 0;  // the results of two turns are kept: some still read one as others bring the next
  bool any[2] = {};
  uint64_t brought[2][kLanes];
};

constexpr size_t kGuard = 64;
constexpr char kCanary = 0x5c;

struct SharedMemory {
  char* pages = nullptr;
  char* data = nullptr;
  size_t bytes = 0;
};

// splitmix64 (Steele, Lea, Flood 2014): an order is drawn at every switch, so it has to be quick.
struct Random {
  using result_type = uint64_t;
  uint64_t state = 0;

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return (*this)() % n; }
};

// The `turn`-th access of each lane at a basic block is by one instruction.
struct Accessed {
  Unit unit;
  uint32_t turn;
  uintptr_t address;
  auto operator<=>(const Accessed&) const = default;
};

struct Emulator {
  Random random;
  Fiber host;
  std::deque<Fiber> fibers;
  Fiber* current = &host;
  Fiber* previous = nullptr;
  std::vector<Fiber*> ready;
  int ended = 0;
  bool cancelling = false;
  std::exception_ptr fault;
  Body body{};
  Meeting block;
  std::vector<Meeting> warps;
  SharedMemory shared;
  std::vector<Fiber*> stopped;     // at basic blocks
  std::vector<Accessed> accesses;  // of the lanes at one basic block
};
Emulator emulator;

void arrived_on_stack() {
#if defined(__SANITIZE_ADDRESS__)
  Fiber& previous = *emulator.previous;
  const void* stack = nullptr;
  __sanitizer_finish_switch_fiber(emulator.current->fake_stack, &stack, &previous.stack_bytes);
  previous.stack = static_cast<char*>(const_cast<void*>(stack));
#endif
}

void switch_to(Fiber& to) {
  Emulator& e = emulator;
  if (&to == e.current) return;
  e.previous = e.current;
  e.current = &to;
  running.thread = to.index;
  running.progress = to.index < 0 ? nullptr : &to.progress;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&e.previous->fake_stack, to.stack, to.stack_bytes);
#endif
  Context::swap(e.previous->context, to.context);
  arrived_on_stack();
}

void make_fibers() {
  Emulator& e = emulator;
  while (e.fibers.size() < static_cast<size_t>(running.threads)) {
    Fiber& fiber = e.fibers.emplace_back();
    char* memory = map_pages(kPage + kStackBytes);
    if (mprotect(memory, kPage, PROT_NONE) != 0) throw std::runtime_error("simt: no guard page");
    fiber.stack = memory + kPage;
    fiber.stack_bytes = kStackBytes;
    fiber.index = static_cast<int>(e.fibers.size()) - 1;
    fiber.context.prepare(fiber.stack, kStackBytes, fiber_main);
  }
}

// --- scheduling ---------------------------------------------------------------------------------

std::string place(const Site& site) {
  return std::string(site.file_name()) + ":" + std::to_string(site.line());
}

bool same(const Site& a, const Site& b) {
  if (a.line() != b.line() || a.column() != b.column()) return false;
  return a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0;
}

void cancel(std::exception_ptr fault) {
  Emulator& e = emulator;
  if (e.fault == nullptr) e.fault = fault;
  e.cancelling = true;
  for (int i = 0; i < running.threads; ++i) {
    Fiber& fiber = e.fibers[static_cast<size_t>(i)];
    if (fiber.waits_at != nullptr) e.ready.push_back(&fiber);
    fiber.waits_at = nullptr;
  }
}

[[noreturn]] void fail(const std::string& problem) {
  throw Fault("block " + std::to_string(running.block) + ", thread " +
              std::to_string(running.thread) + ": " + problem);
}

[[gnu::noinline]] void cancel_stuck() {
  const Emulator& e = emulator;
  std::string text = "block " + std::to_string(running.block) +
                     ": threads wait for others: " + std::to_string(e.ended) + " of " +
                     std::to_string(running.threads) + " ended";
  const Site* last = nullptr;
  for (int i = 0; i < running.threads; ++i) {
    const Site* site = e.fibers[static_cast<size_t>(i)].waits_at;
    if (site == nullptr || (last != nullptr && same(*site, *last))) continue;
    text += ", thread " + std::to_string(i) + " waits at " + place(*site);
    last = site;
  }
  cancel(std::make_exception_ptr(Fault(text)));
}

// Adds up what the instructions of one basic block accessed.
void pay() {
  std::vector<Accessed>& all = emulator.accesses;
  std::sort(all.begin(), all.end());
  uint64_t alike = 0, most = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool again = i > 0 && all[i] == all[i - 1];
    if (all[i].unit != Unit::kCounter) {
      cost->sectors += again ? 0 : 1;
      const bool same_access =
          i > 0 && all[i].unit == all[i - 1].unit && all[i].turn == all[i - 1].turn;
      cost->accesses += all[i].unit == Unit::kSector && !same_access ? 1 : 0;
      continue;
    }
    alike = again ? alike + 1 : 1;
    most = std::max(most, alike);
    if (i + 1 == all.size() || all[i + 1].turn != all[i].turn) {
      cost->counts += most;
      most = 0;
    }
  }
  all.clear();
}

// Has lanes of a warp go on that are at the same basic block: those of the innermost call, there
// those of the first block in memory. Lanes that ran ahead of others are thus met by them.
void go_on_in_step() {
  Emulator& e = emulator;
  if (cost != nullptr) pay();
  const auto key = [](const Fiber* f) {
    return std::tuple(f->index / kLanes, f->frame, reinterpret_cast<uintptr_t>(f->block));
  };
  const auto first = key(*std::min_element(e.stopped.begin(), e.stopped.end(),
                                           [&](auto* a, auto* b) { return key(a) < key(b); }));
  const auto others = std::partition(e.stopped.begin(), e.stopped.end(),
                                     [&](const Fiber* f) { return key(f) != first; });
  e.ready.insert(e.ready.end(), others, e.stopped.end());
  e.stopped.erase(others, e.stopped.end());
  if (cost != nullptr) ++cost->blocks;
}

// Goes on with any thread that can; with the host once all have ended.
void next() {
  Emulator& e = emulator;
  if (e.ready.empty() && !e.stopped.empty()) go_on_in_step();
  if (e.ready.empty() && e.ended == running.threads) return switch_to(e.host);
  if (e.ready.empty()) cancel_stuck();
  const size_t pick = e.random.below(e.ready.size());
  Fiber* fiber = e.ready[pick];
  e.ready[pick] = e.ready.back();
  e.ready.pop_back();
  switch_to(*fiber);
}

void fiber_main() {
  arrived_on_stack();
  Emulator& e = emulator;
  for (;;) {
    try {
      if (!e.cancelling) e.body.run(e.body.arguments);
    } catch (const Cancelled&) {
    } catch (...) {
      cancel(std::current_exception());
    }
    ++e.ended;
    next();
  }
}

[[gnu::noinline]] void fail_meeting(const Site& site, const Site& others) {
  fail("waits at " + place(site) + " while others wait at " + place(others));
}

// Waits until `expected` threads from `first` on have come. Returns the turn, whose results can be
// read until the next meeting.
int meet(Meeting& meeting, int first, int expected, const Site& site) {
  Emulator& e = emulator;
  if (meeting.arrived > 0 && !same(*meeting.site, site)) fail_meeting(site, *meeting.site);
  const int turn = meeting.turn;
  meeting.site = &site;
  e.current->waits_at = &site;
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    meeting.turn = 1 - turn;
    meeting.any[1 - turn] = false;
    for (int i = first; i < first + expected; ++i) {
      Fiber& fiber = e.fibers[static_cast<size_t>(i)];
      fiber.waits_at = nullptr;
      e.ready.push_back(&fiber);
    }
  }
  next();
  if (e.cancelling) throw Cancelled{};
  return turn;
}

Meeting& own_warp() { return emulator.warps[static_cast<size_t>(running.thread / kLanes)]; }

int meet_own_warp(const Site& site) {
  return meet(own_warp(), running.thread / kLanes * kLanes, kLanes, site);
}

void observe(const void* address, size_t bytes, Access access) {
  if (observer != nullptr) observer(address, bytes, access, nullptr);
}

// --- shared memory ------------------------------------------------------------------------------

void map_shared(size_t bytes) {
  SharedMemory& s = emulator.shared;
  constexpr size_t kMost = 256 * 1024;
  if (shared_limit + 3 * kGuard > kMost)
    throw std::runtime_error("simt: shared_limit is too large");
  if (s.pages == nullptr) s.pages = map_pages(kMost);
#if defined(__SANITIZE_ADDRESS__)
  if (s.data != nullptr) ASAN_UNPOISON_MEMORY_REGION(s.data - kGuard, s.bytes + 2 * kGuard);
#endif
  // CUDA aligns dynamic shared memory to 16 bytes: no more is given.
  s.data = s.pages + kGuard + 16;
  s.bytes = bytes;
  std::memset(s.data - kGuard, kCanary, kGuard);
  std::memset(s.data, static_cast<int>(1 + emulator.random.below(254)), s.bytes);
  std::memset(s.data + s.bytes, kCanary, kGuard);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(s.data - kGuard, kGuard);
  ASAN_POISON_MEMORY_REGION(s.data + s.bytes, kGuard);
#endif
}

[[gnu::no_sanitize_address]] void check_guards() {
  const SharedMemory& s = emulator.shared;
  for (size_t i = 0; i < kGuard; ++i) {
    const bool below = s.data[static_cast<ptrdiff_t>(i - kGuard)] != kCanary;
    if (below || s.data[s.bytes + i] != kCanary) {
      throw Fault("block " + std::to_string(running.block) + " wrote " +
                  (below ? "below" : "above") + " its shared memory of " + std::to_string(s.bytes) +
                  " bytes");
    }
  }
}

void run_block(int64_t block, size_t shared_bytes) {
  Emulator& e = emulator;
  running.block = static_cast<int>(block);
  map_shared(shared_bytes);
  make_fibers();
  e.ended = 0;
  e.cancelling = false;
  e.fault = nullptr;
  e.block = Meeting{};
  for (Meeting& warp : e.warps) warp = Meeting{};
  e.ready.clear();
  e.stopped.clear();
  for (int i = 0; i < running.threads; ++i) {
    Fiber& fiber = e.fibers[static_cast<size_t>(i)];
    fiber.progress = Progress{};
    fiber.local.clear();
    e.ready.push_back(&fiber);
  }
  next();
  if (e.fault != nullptr) std::rethrow_exception(e.fault);
  check_guards();
}

}  // namespace

void seed(uint64_t value) { emulator.random.state = value; }

char* shared_memory() { return emulator.shared.data; }

bool is_shared(const void* address, size_t bytes) {
  const SharedMemory& s = emulator.shared;
  const uintptr_t first = reinterpret_cast<uintptr_t>(address);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(s.data);
  return first >= begin && first + bytes <= begin + s.bytes;
}

bool is_private(const void* address) {
  const auto within = [address](const void* begin, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(begin) < bytes;
  };
  return within(emulator.current->stack, kStackBytes) ||
         within(emulator.body.arguments, emulator.body.bytes) || within(&running, sizeof running);
}

void require_aligned(const void* address, size_t bytes, const Site& site) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    fail(place(site) + ": an address that is not a multiple of " + std::to_string(bytes));
  }
}

void add_shared(uint32_t* counter, uint32_t n, const Site& site) {
  if (!is_shared(counter, sizeof *counter)) {
    fail(place(site) + ": an address beyond the shared memory of " +
         std::to_string(emulator.shared.bytes) + " bytes");
  }
  require_aligned(counter, sizeof *counter, site);
  observe(counter, sizeof *counter, Access::kAtomic);
  account(counter, sizeof *counter, Unit::kCounter);
  *counter += n;
}

void add_global(int64_t* counter, int64_t n, const Site& site) {
  require_aligned(counter, sizeof *counter, site);
  observe(counter, sizeof *counter, Access::kAtomic);
  account(counter, sizeof *counter, Unit::kSector);
  *counter += n;
}

uint32_t count_block(uint32_t* counter, const Site& site) {
  require_aligned(counter, sizeof *counter, site);
  observe(counter, sizeof *counter, Access::kBlockCount);
  return (*counter)++;
}

void stop_at_block(const void* at, const void* frame) {
  Emulator& e = emulator;
  if (cost == nullptr || e.current == &e.host || e.cancelling) return;
  Fiber& fiber = *e.current;
  fiber.block = at;
  fiber.frame = static_cast<const char*>(frame) - fiber.stack;
  e.stopped.push_back(&fiber);
  next();
  fiber.accesses = 0;
}

void account(const void* address, size_t bytes, Unit unit) {
  Emulator& e = emulator;
  if (cost == nullptr || e.current == &e.host) return;
  Fiber& fiber = *e.current;
  const uint32_t turn = fiber.accesses++;
  const auto lane = static_cast<uintptr_t>(fiber.index % kLanes);
  const auto at = static_cast<const char*>(address);
  if (unit == Unit::kCounter) bytes = 1;
  for (size_t byte = 0; byte < bytes; byte += 4) {
    uintptr_t place = reinterpret_cast<uintptr_t>(at + byte);
    if (unit == Unit::kSector) place /= kSector;
    // Words of local memory lie side by side for the lanes.
    if (unit == Unit::kLocal) {
      const auto word = static_cast<uintptr_t>(at + byte - fiber.stack) / 4;
      place = (word * kLanes + lane) * 4 / kSector;
    }
    e.accesses.push_back({unit, turn, place});
  }
}

void keep_local(const void* address, size_t bytes) {
  emulator.current->local.emplace_back(static_cast<const char*>(address), bytes);
}

bool is_local(const void* address) {
  for (const auto& [begin, bytes] : emulator.current->local) {
    if (static_cast<size_t>(static_cast<const char*>(address) - begin) < bytes) return true;
  }
  return false;
}

void report(const std::string& problem) {
  if (emulator.fault == nullptr) emulator.fault = std::make_exception_ptr(Fault(problem));
}

bool vote_block(bool yes, const Site& site) {
  Meeting& meeting = emulator.block;
  meeting.any[meeting.turn] |= yes;
  const int turn = meet(meeting, 0, running.threads, site);
  ++emulator.current->progress.block;
  return meeting.any[turn];
}

void meet_block(const Site& site) { vote_block(false, site); }

void meet_warp(const Site& site) {
  meet_own_warp(site);
  ++emulator.current->progress.warp;
}

// Votes and shuffles order no memory, as CUDA's do not.
bool vote_warp(bool yes, const Site& site) {
  Meeting& meeting = own_warp();
  meeting.any[meeting.turn] |= yes;
  const int turn = meet_own_warp(site);
  return meeting.any[turn];
}

uint64_t exchange(uint64_t brought, int lane, const Site& site) {
  Meeting& meeting = own_warp();
  meeting.brought[meeting.turn][running.thread % kLanes] = brought;
  const int turn = meet_own_warp(site);
  return meeting.brought[turn][lane];
}

void run(int64_t blocks, int64_t threads, size_t shared_bytes, const Body& body) {
  Emulator& e = emulator;
  if (e.current != &e.host) throw std::runtime_error("simt: a kernel cannot launch another");
  if (blocks < 1 || blocks > INT32_MAX || threads < 1 || threads > 1024 || threads % kLanes != 0 ||
      shared_bytes > shared_limit) {
    throw std::runtime_error("simt: cannot launch " + std::to_string(blocks) + " blocks of " +
                             std::to_string(threads) + " threads with " +
                             std::to_string(shared_bytes) + " bytes of shared memory");
  }
  e.ready.reserve(static_cast<size_t>(threads));
  e.warps.resize(static_cast<size_t>(threads / kLanes));
  e.body = body;
  running.threads = static_cast<int>(threads);
  running.blocks = static_cast<int>(blocks);
  ++running.launch;
  std::vector<int64_t> order(static_cast<size_t>(blocks));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::shuffle(order.begin(), order.end(), e.random);
  for (const int64_t block : order) run_block(block, shared_bytes);
}

}  // namespace hookstats::simt
