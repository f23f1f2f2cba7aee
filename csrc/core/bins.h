// Histogram bins: from a value to its slot. Slot 0 is underflow, 1..bins the bins in ascending
// order of value, bins + 1 overflow.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"
#include "core/macros.h"

namespace hookstats {

enum class BinKind : uint8_t { kNone, kLinear, kLog };

// NaN and -inf are counted as underflow, +inf as overflow. The caller, who tallies non-finite
// values anyway, subtracts them again (`discount_nonfinite`), so counting loops need no tests for
// them.
struct Bins {
  BinKind kind = BinKind::kNone;
  int64_t bins = 0;

  // Linear: ascending fp32 edges, left-closed bins, the last one closed on both sides.
  const float* edges =
      nullptr;  // [bins + 1], the last one nextafter(hi, +inf), so that x = hi is in
  float lo = 0.0f, hi = 0.0f;
  float scale = 0.0f;    // bins / (hi - lo)
  float width = 0.0f;    // (hi - lo) / bins
  bool uniform = false;  // the nearest edge is round((x - lo) * scale), for every x
  bool exact = false;    // edge i is lo + i * width, and i * width is exact

  // Log: the magnitude bins of each sign are the top bits of the fp32 pattern.
  int shift = 0;           // 23 - subdivision_bits
  int32_t base = 0;        // first pattern of a bin; patterns below share one bin if base > 0
  int32_t magnitudes = 0;  // bins per sign

  // Linear, if the host cannot read the edges: the edges [bins + 1] as they were given. A kernel
  // makes the rest from them.
  const float* descriptor = nullptr;

  HOOKSTATS_HOST_DEVICE int64_t slots() const { return bins + 2; }
};

// Log bins of every finite float: the upper bits of a pattern alone say which bin it is in.
inline bool have_keys(const Bins& b) {
  return b.kind == BinKind::kLog && b.base == 0 && b.magnitudes == 255 << (23 - b.shift);
}

// `edges` is the caller's copy of bins + 1 fp32 edges; its last element is changed.
inline Bins linear_bins(float* edges, int64_t bins) {
  Bins b;
  b.kind = BinKind::kLinear;
  b.bins = bins;
  b.edges = edges;
  b.lo = edges[0];
  b.hi = edges[bins];
  const double width = (static_cast<double>(edges[bins]) - edges[0]) / static_cast<double>(bins);
  b.scale = static_cast<float>(1.0 / width);
  // fp32 rounds the guess by a few parts in 2^24 of `bins`, and each edge by an ulp: if the edges
  // are off by less than a quarter of a bin, the nearest edge is unambiguous.
  double off = 0.0;
  b.width = static_cast<float>(width);
  b.exact = bins < (1 << 24);
  for (int64_t i = 0; i <= bins; ++i) {
    const double ideal = edges[0] + width * static_cast<double>(i);
    off = std::fmax(off, std::fabs(edges[i] - ideal));
    const float step = static_cast<float>(i) * b.width;
    b.exact = b.exact && static_cast<double>(step) == static_cast<double>(i) * b.width &&
              edges[i] == edges[0] + step;
  }
  const bool scale_is_normal = b.scale > 1e-37f && b.scale < 1e37f;
  const bool distances_are_finite = b.hi - b.lo <= std::numeric_limits<float>::max();
  b.uniform = off < 0.25 * width && bins < (1 << 20) && scale_is_normal && distances_are_finite;
  edges[bins] = std::nextafter(edges[bins], INFINITY);
  return b;
}

inline Bins log_bins(int subdivision_bits, int min_exponent, int max_exponent) {
  Bins b;
  b.kind = BinKind::kLog;
  b.shift = 23 - subdivision_bits;
  b.base = (min_exponent + 127) << subdivision_bits;
  const int32_t top = (max_exponent + 128) << subdivision_bits;
  b.magnitudes = top - b.base + (b.base > 0 ? 1 : 0);
  b.bins = 2 * int64_t{b.magnitudes} + 1;
  return b;
}

inline Bins described_bins(int64_t bins, const float* descriptor) {
  Bins b;
  b.kind = BinKind::kLinear;
  b.bins = bins;
  b.descriptor = descriptor;
  return b;
}

HOOKSTATS_HOST_DEVICE inline int64_t linear_slot(const Bins& b, double x) {
  if (x > b.hi) return b.bins + 1;
  int64_t low = 0, high = b.bins + 1;  // edges[low - 1] <= x < edges[high]
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (x >= b.edges[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// `magnitude` is the fp32 pattern of |x|; a pattern above the largest finite one is out of range.
HOOKSTATS_HOST_DEVICE inline int64_t log_slot(const Bins& b, uint32_t magnitude, bool negative) {
  const int64_t zero_slot = int64_t{b.magnitudes} + 1;
  if (magnitude == 0) return zero_slot;
  int32_t m = static_cast<int32_t>(magnitude >> b.shift) - b.base + (b.base > 0 ? 1 : 0);
  if (m < 0) m = 0;
  if (m > b.magnitudes) m = b.magnitudes;
  return negative ? zero_slot - 1 - m : zero_slot + 1 + m;
}

HOOKSTATS_HOST_DEVICE inline int64_t slot(const Bins& b, float x) {
  if (b.kind == BinKind::kLinear) return linear_slot(b, x);
  if (x != x) return 0;
  const uint32_t bits = bits_from_float(x);
  return log_slot(b, bits & 0x7fffffffu, (bits >> 31) != 0);
}

HOOKSTATS_HOST_DEVICE inline int64_t slot(const Bins& b, double x) {
  if (b.kind == BinKind::kLinear) return linear_slot(b, x);
  if (x != x) return 0;
  const double magnitude = std::fabs(x);
  uint32_t bits = 0x7f800000u;
  if (magnitude <= 0x1.fffffep127) {
    // Toward zero: rounding up could move a value over a bin's edge.
    float rounded = static_cast<float>(magnitude);
    bits = bits_from_float(rounded);
    if (static_cast<double>(rounded) > magnitude) --bits;
    if (bits == 0 && magnitude > 0.0) bits = 1;
  }
  return log_slot(b, bits, x < 0.0);
}

HOOKSTATS_HOST_DEVICE inline void discount_nonfinite(const Bins& b, int64_t* counts, int64_t nan,
                                                     int64_t posinf, int64_t neginf) {
  counts[0] -= nan + neginf;
  counts[b.bins + 1] -= posinf;
}

}  // namespace hookstats
