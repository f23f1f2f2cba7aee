// Histograms: bins as a block holds them, the slot of a value, and the tables it is counted in.
#pragma once

#include "core/bins.h"
#include "cuda/primitives.cuh"
#include "cuda/sums.cuh"
#include "cuda/table.h"

namespace hookstats::cuda {

// How values are counted: not at all, by their top bits, by slots of a table that take no search,
// or by any slots, perhaps in the state itself.
enum class Way : int32_t { kNone, kPatterns, kLog, kUniform, kAny };

// One histogram, of the tensor or of each channel. Its table is in shared memory if there is room:
// 32-bit counters, `pitch` of them per slot; else values are counted in the state itself.
struct Histogram {
  Bins bins;
  const float* edges = nullptr;  // bins.edges where they are in shared memory
  uint32_t* table = nullptr;
  int32_t pitch = 1;
  uint32_t* unread = nullptr;  // a counter of no slot; the next is of all zeros, for patterns
  Way way = Way::kNone;        // asked once, not once a value

  HOOKSTATS_DEVICE bool on() const { return way != Way::kNone; }
  HOOKSTATS_DEVICE bool patterns() const { return way == Way::kPatterns; }
};

// Those of a block, in its shared memory: the tensor's and the channels'. Loops have copies, as far
// as they use them.
HOOKSTATS_DEVICE Histogram* block_histograms(const Common& common) {
  return reinterpret_cast<Histogram*>(shared_memory() + common.shared.histograms);
}

static_assert(2 * sizeof(Histogram) <= kHistogramBytes);

HOOKSTATS_DEVICE Way way_of(const Bins& bins, bool has_table, bool patterns) {
  if (bins.kind == BinKind::kNone) return Way::kNone;
  if (!has_table) return Way::kAny;
  if (patterns) return Way::kPatterns;
  if (bins.kind == BinKind::kLog) return Way::kLog;
  return bins.uniform ? Way::kUniform : Way::kAny;
}

HOOKSTATS_DEVICE float next_float(float x) {
  const uint32_t bits = bits_from_float(x);
  if ((bits & 0x7fffffffu) == 0) return float_from_bits(1);
  return float_from_bits(bits >> 31 == 0 ? bits + 1 : bits - 1);
}

// The bins of a block, with the edges in its shared memory if they have room there; all threads
// call it. Without room `edges` stays null, and `slot_in_memory` looks them up.
HOOKSTATS_DEVICE Bins block_bins(const Bins& given, float* edges) {
  Bins b = given;
  if (b.kind != BinKind::kLinear) return b;
  // Edges that the host read have their last one moved up already; see core/bins.h.
  const bool moved = b.descriptor == nullptr;
  const float* const source = moved ? b.edges : b.descriptor;
  b.edges = edges;
  b.lo = load(source);
  if (!moved) b.hi = load(source + b.bins);
  if (edges == nullptr) {
    b.edges = source;
    return b;
  }
  const double width = (static_cast<double>(b.hi) - b.lo) / static_cast<double>(b.bins);
  b.scale = static_cast<float>(1.0 / width);
  // What `nearest_edge` multiplies by has to be a normal number, and its product with an edge one
  // that fp32 has to an eighth of a bin.
  const double farthest = std::fmax(std::fabs(b.lo), std::fabs(b.hi));
  bool off = !(b.scale > 1e-30f && b.scale < 1e30f && farthest * b.scale < 1 << 20);
  for (int i = thread_index(); i <= b.bins; i += block_threads()) {
    const bool last = i == b.bins;
    const float edge = last ? b.hi : load(source + i);
    off |= !(std::fabs(edge - (b.lo + width * i)) < 0.25 * width);
    edges[i] = last ? next_float(b.hi) : edge;
  }
  b.uniform = !any_in_block(off) && b.bins < (1 << 20);
  return b;
}

// See core/bins.h for what the nearest edge settles. In fp32 it takes no comparisons, as the unit
// that makes them has more to do: adding kMagic, 1.5 * 2^23, rounds to an integer, which is the low
// bits of the sum. `edge_bits` are all of them.
constexpr float kMagic = 12582912.0f;
constexpr uint32_t kMagicBits = 0x4b400000u;

HOOKSTATS_DEVICE uint32_t edge_bits(const Bins& b, float x) {
  const float bins = static_cast<float>(static_cast<int32_t>(b.bins));
  const float share_a_unit = b.scale / bins;
  const float share = saturate(std::fma(x, share_a_unit, -b.lo * share_a_unit));
  return bits_from_float(std::fma(share, bins, kMagic));
}
HOOKSTATS_DEVICE int32_t nearest_edge(const Bins& b, float x) {
  return static_cast<int32_t>(edge_bits(b, x) - kMagicBits);
}
HOOKSTATS_DEVICE int32_t nearest_edge(const Bins& b, double x) {
  const double guess = (x - static_cast<double>(b.lo)) * static_cast<double>(b.scale) + 0.5;
  return static_cast<int32_t>(std::fmin(std::fmax(guess, 0.0), static_cast<double>(b.bins)));
}

template <class Real>
HOOKSTATS_DEVICE int32_t uniform_slot(const Bins& b, const float* edges, Real x) {
  const int32_t edge = nearest_edge(b, x);
  return edge + (x >= static_cast<Real>(edges[edge]) ? 1 : 0);
}

// core's `log_slot` without branches, from the slot of zero on.
HOOKSTATS_DEVICE int32_t log_slot_from_zero(const Bins& b, float x) {
  const int32_t bits = static_cast<int32_t>(bits_from_float(x));
  int32_t m = ((bits & 0x7fffffff) >> b.shift) - b.base + (b.base > 0 ? 1 : 0);
  m = m < 0 ? 0 : m;
  m = (m > b.magnitudes ? b.magnitudes : m) + 1;
  const int32_t signed_m = bits < 0 ? -m : m;
  return x == 0.0f ? 0 : signed_m;
}

template <class Real>
HOOKSTATS_DEVICE int64_t block_slot(const Bins& b, Real x) {
  if (b.kind == BinKind::kLog || !b.uniform) return slot(b, x);
  if (x > static_cast<Real>(b.hi)) return b.bins + 1;
  return uniform_slot(b, b.edges, x);
}

// The same by the edges of the tensor that describes them, whose last edge is not moved up.
template <class Real>
HOOKSTATS_DEVICE int64_t slot_in_memory(const Bins& b, Real x) {
  if (b.kind == BinKind::kLog) return slot(b, x);
  if (x > static_cast<Real>(b.hi)) return b.bins + 1;
  int64_t low = 0, high = b.bins;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (x >= static_cast<Real>(load(b.edges + middle))) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// By edges of either kind: those `in_memory` are as they were given.
template <class Real>
HOOKSTATS_DEVICE int64_t slot_of_any(const Bins& b, bool in_memory, Real x) {
  return in_memory ? slot_in_memory(b, x) : block_slot(b, x);
}

struct Once {
  HOOKSTATS_DEVICE uint32_t operator()(int) const { return 1; }
};

// Counts the finite ones of N values, if not all are known to be `kFinite`, in a way that is not
// kAny. Value i goes to counter `offsets[i % M]` of its slot; patterns are the tensor's alone.
// Non-finite values are counted too, by patterns that `add_patterns` passes over, or in a counter
// that nobody reads: a select costs less than a branch. Value i counts n(i) times.
template <bool kFinite, bool kTensor, int N, int M, class Times = Once>
HOOKSTATS_DEVICE void count_quickly(const Histogram& h, const float (&x)[N],
                                    const int32_t (&offsets)[M], Times&& n = {}) {
  const uint32_t table = shared_place(h.table), row = static_cast<uint32_t>(h.pitch) * 4;
  if (kTensor && h.patterns()) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < N; ++i) {  // zeros have the pattern of +0
      add_at(table + (bits_from_float(x[i] + 0.0f) >> h.bins.shift) * 4, n(i));
    }
    return;
  }
  const auto add = [&](int i, uint32_t at) {
    add_at(kFinite || is_finite(x[i]) ? at : shared_place(h.unread), n(i));
  };
  // The places of slot 0 of a log histogram are those of zero; else those of the slot whose bits
  // are 0, which are kMagicBits off.
  const bool is_log = h.way == Way::kLog;
  const uint32_t first_edge = is_log ? 0 : edge_bits(h.bins, h.bins.lo);
  const uint32_t slot = is_log ? static_cast<uint32_t>(h.bins.magnitudes + 1) : 0 - first_edge;
  uint32_t from[M];
  HOOKSTATS_UNROLL
  for (int i = 0; i < M; ++i) {
    from[i] = table + static_cast<uint32_t>(offsets[i]) * 4 + slot * row;
    hide(from[i]);  // the compiler would add each part of it to each place
  }
  if (is_log) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < N; ++i) {
      add(i, from[i % M] + static_cast<uint32_t>(log_slot_from_zero(h.bins, x[i])) * row);
    }
    return;
  }
  uint32_t edges = shared_place(h.edges) - first_edge * 4;
  hide(edges);
  constexpr int kTogether = N < 4 ? N : 4;  // loads of edges that are waited for
  HOOKSTATS_UNROLL
  for (int first = 0; first < N; first += kTogether) {
    uint32_t at[kTogether];
    float edge[kTogether];
    HOOKSTATS_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const uint32_t bits = edge_bits(h.bins, x[first + i]);
      edge[i] = load_at(edges + bits * 4);
      at[i] = from[(first + i) % M] + bits * row;
    }
    HOOKSTATS_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      add_if_reached(x[first + i], edge[i], row, at[i]);
      add(first + i, at[i]);
    }
  }
}

// Counts the finite ones of N values, by any histogram. Value i goes to counter `offsets[i % M]` of
// its slot, or without a table to `state(i % M)`.
template <class Real, int N, int M, class State>
HOOKSTATS_DEVICE void count_any(const Histogram& h, const Real (&x)[N], int64_t repeat,
                                const int32_t (&offsets)[M], State&& state) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (h.way != Way::kAny) return count_quickly<false, true>(h, x, offsets);
  }
  constexpr int kTogether = N < kOwned ? N : kOwned;
  Real rest[N], some[kTogether];
  HOOKSTATS_UNROLL
  for (int i = 0; i < N; ++i) rest[i] = x[i];
  HOOKSTATS_NO_UNROLL
  for (int first = 0; first < N; first += kTogether) {
    move_up(rest, some);
    HOOKSTATS_NO_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const Real value = pick(some, i);
      if (!is_finite(value)) continue;
      const int64_t at = slot_of_any(h.bins, h.table == nullptr, value);
      if (h.table != nullptr) {
        add_shared(h.table + at * h.pitch + pick(offsets, i % M), 1);
      } else {
        add_global(state(i % M) + at, repeat);
      }
    }
  }
}

// Counts a finite value `n` times less, where this thread has counted it.
HOOKSTATS_DEVICE void take_back(const Histogram& h, float x, uint32_t n, const Item& item) {
  if (h.patterns()) {
    add_shared(h.table + (bits_from_float(x + 0.0f) >> h.bins.shift), 0 - n);
    return;
  }
  const int64_t at = slot_of_any(h.bins, h.table == nullptr, x);
  if (h.table != nullptr) {
    add_shared(h.table + at * h.pitch + (lane() & (h.pitch - 1)), 0 - n);
  } else {
    add_global(item.tensor_counts + at, -int64_t{n} * item.repeat);
  }
}

HOOKSTATS_DEVICE void clear(uint32_t* counters, int32_t n) {
  for (int32_t i = thread_index(); i < n; i += block_threads()) counters[i] = 0;
}

// Adds a table of `copies` counters per slot to memory and clears the table. Integer additions
// commute: the counts do not depend on which block comes first.
HOOKSTATS_DEVICE void add_table(uint32_t* table, int64_t slots, int32_t copies, int64_t* state,
                                int64_t repeat, int thread, int threads) {
  for (int64_t s = thread; s < slots; s += threads) {
    int64_t sum = 0;
    for (int32_t i = 0; i < copies; ++i) {
      uint32_t& counter = table[s * copies + ((i + thread) & (copies - 1))];  // a bank each
      sum += counter;
      counter = 0;
    }
    if (sum != 0) add_global(state + s, sum * repeat);
  }
}

// The same for a table of patterns. Each belongs to one slot, but for the first one's zeros, of
// which there are `unread[1]`.
HOOKSTATS_DEVICE void add_patterns(const Histogram& h, int64_t* state, int64_t repeat) {
  const uint32_t patterns = 1u << (32 - h.bins.shift);
  // Blocks begin at different patterns: those that end together would add to one slot together.
  const uint32_t begin = static_cast<uint32_t>(block_index() * block_threads());
  for (uint32_t i = static_cast<uint32_t>(thread_index()); i < patterns;
       i += static_cast<uint32_t>(block_threads())) {
    const uint32_t p = (begin + i) & (patterns - 1);
    const uint32_t n = h.table[p] - (p == 0 ? h.unread[1] : 0);
    if (n == 0) continue;
    const uint32_t bits = p << h.bins.shift | 1u;
    if ((bits & 0x7f800000u) == 0x7f800000u) continue;  // infinite, NaN or missing
    const int64_t slot = log_slot(h.bins, bits & 0x7fffffffu, (bits >> 31) != 0);
    add_global(state + slot, int64_t{n} * repeat);
  }
  if (thread_index() == 0 && h.unread[1] != 0) {
    add_global(state + h.bins.magnitudes + 1, int64_t{h.unread[1]} * repeat);
  }
}

// Adds the table of the tensor's histogram to its state; all threads of the block call it.
HOOKSTATS_DEVICE void add_tensor_table(const Histogram& h, const Item& item) {
  if (h.patterns()) return add_patterns(h, item.tensor_counts, item.repeat);
  add_table(h.table, h.bins.slots(), h.pitch, item.tensor_counts, item.repeat, thread_index(),
            block_threads());
}

}  // namespace hookstats::cuda
