// Inputs, and what has to come of them: kernels that take one element a thread, and nothing else.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda/primitives.cuh"
#include "runtime.h"

namespace hookstats::tune {

using cuda::add_global;
using cuda::block_index;
using cuda::block_threads;
using cuda::grid_blocks;
using cuda::LaunchConfig;
using cuda::thread_index;

constexpr int kThreads = 256;

inline LaunchConfig blocks_of(int64_t n) {
  return {std::min<int64_t>((n + kThreads - 1) / kThreads, 4096), kThreads, 0, stream(), 0, 0};
}

HOOKSTATS_DEVICE uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// N(0, 1) with a zero among a thousand.
HOOKSTATS_DEVICE float value_at(int64_t i) {
  const uint32_t a = mixed(static_cast<uint32_t>(i)), b = mixed(a + 0x9e3779b9u);
  if (a % 1000 == 0) return 0.0f;
  const float radius = std::sqrt(-2.0f * std::log((static_cast<float>(a >> 8) + 0.5f) * 0x1p-24f));
  return radius * std::cos(6.2831853f * static_cast<float>(b >> 8) * 0x1p-24f);
}

HOOKSTATS_DEVICE void put(float* x, float value) { *x = value; }
HOOKSTATS_DEVICE void put(BFloat16* x, float value) {
  const uint32_t bits = bits_from_float(value);
  x->bits = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <class T>
HOOKSTATS_KERNEL void fill(T* x, int64_t n) {
  const int64_t step = int64_t{grid_blocks()} * block_threads();
  for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < n; i += step) {
    put(x + i, value_at(i));
  }
}

// Where the integers of a state are, in memory of the device.
struct Integers {
  int64_t *tallies, *tensor_counts, *channel_counts;
};

// Of a contiguous tensor, `inner` elements of a channel are side by side.
template <class T>
HOOKSTATS_KERNEL void count_naively(const T* x, int64_t n, int64_t channels, int64_t inner,
                                    Bins tensor_bins, Bins channel_bins, Integers into) {
  const int64_t step = int64_t{grid_blocks()} * block_threads();
  for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < n; i += step) {
    const float value = widen(x[i]);
    const int64_t channel = i / inner % channels;
    int64_t* const tallies = into.tallies + channel * kTallyColumns;
    add_global(tallies + kCount, 1);
    if (value == 0.0f) add_global(tallies + kZero, 1);
    add_global(into.tensor_counts + slot(tensor_bins, value), 1);
    add_global(into.channel_counts + channel * channel_bins.slots() + slot(channel_bins, value), 1);
  }
}

// What a state has of integers; on the host.
struct Counted {
  std::vector<int64_t> tallies, tensor_counts, channel_counts;

  // What differs, or nothing. Only histograms that were asked for are compared.
  std::string unlike(const Counted& expected, bool tensor, bool channels) const {
    const auto differs = [](const char* name, const std::vector<int64_t>& found,
                            const std::vector<int64_t>& wanted) -> std::string {
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (found[i] != wanted[i]) {
          return std::string(name) + " " + std::to_string(i) + " is " + std::to_string(found[i]) +
                 "; expected " + std::to_string(wanted[i]);
        }
      }
      return "";
    };
    std::string problem = differs("tally", tallies, expected.tallies);
    if (problem.empty() && tensor) {
      problem = differs("count of the tensor", tensor_counts, expected.tensor_counts);
    }
    if (problem.empty() && channels) {
      problem = differs("count of a channel", channel_counts, expected.channel_counts);
    }
    return problem;
  }
};

}  // namespace hookstats::tune
