// What the emulated CUDA kernels are tested on: devices, bins and shapes; and the checks of one
// case, against an fp64 definition and the CPU kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cases.h"
#include "check.h"
#include "cpu/update.h"
#include "cuda/plan.h"
#include "cuda/update.h"
#include "simt.h"

namespace kernel_cases {

using namespace cases;

// An H200, and devices with so little that small tensors already meet their limits.
inline const cuda::Device kDevices[] = {
    {0, 132, 227 * 1024}, {0, 1, 48 * 1024}, {0, 3, 99 * 1024}, {0, 7, 163 * 1024}};

// Bins as the host makes them, and, of linear ones, as a kernel makes them from their descriptor.
struct TestBins {
  std::shared_ptr<std::vector<float>> edges;
  std::shared_ptr<std::vector<float>> described_edges;
  Bins host, device;

  static TestBins none() { return {}; }
  static TestBins linear(const std::vector<float>& edges) {
    TestBins b;
    b.edges = std::make_shared<std::vector<float>>(edges);
    b.described_edges = std::make_shared<std::vector<float>>(edges);
    const int64_t bins = static_cast<int64_t>(edges.size()) - 1;
    b.host = linear_bins(b.edges->data(), bins);
    b.device = described_bins(bins, b.described_edges->data());
    return b;
  }
  static TestBins uniform(int64_t bins, double lo, double hi) {
    std::vector<float> edges(static_cast<size_t>(bins + 1));
    for (int64_t i = 0; i <= bins; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(bins);
      edges[static_cast<size_t>(i)] = static_cast<float>(lo + (hi - lo) * share);
    }
    return linear(edges);
  }
  static TestBins log(int subdivision_bits, int min_exponent, int max_exponent) {
    TestBins b;
    b.host = b.device = log_bins(subdivision_bits, min_exponent, max_exponent);
    return b;
  }
};

// Neighbouring floats from 1 on: which edge is nearest cannot be guessed.
inline std::vector<float> dense_edges(int64_t bins) {
  std::vector<float> edges{1.0f};
  while (static_cast<int64_t>(edges.size()) <= bins) {
    edges.push_back(std::nextafter(edges.back(), 2.0f));
  }
  return edges;
}

inline std::vector<float> widening_edges(int64_t bins) {
  std::vector<float> edges{-1.0f};
  for (int64_t i = 0; i < bins; ++i)
    edges.push_back(edges.back() + 1e-3f * static_cast<float>(i + 1));
  return edges;
}

inline const std::vector<TestBins>& tensor_bins() {
  static const std::vector<TestBins> bins = {
      TestBins::none(),
      TestBins::uniform(64, -4.0, 4.0),
      TestBins::log(3, -127, 127),
      TestBins::uniform(2048, -3.0, 5.0),
      TestBins::linear(dense_edges(200)),
      TestBins::log(1, -20, 10),
      TestBins::linear(widening_edges(77)),
      TestBins::uniform(1, 0.0, 1.0),
      TestBins::log(0, -126, 127),
  };
  return bins;
}

inline const std::vector<TestBins>& channel_bins() {
  static const std::vector<TestBins> bins = {
      TestBins::uniform(64, -4.0, 4.0),     TestBins::none(),
      TestBins::uniform(256, -2.0, 2.0),    TestBins::log(1, -20, 10),
      TestBins::linear(widening_edges(33)),
  };
  return bins;
}

// What integers and fp64 widen to is summed in fp64 throughout.
inline Bounds bounds_of(DType dtype) {
  const bool wide = dispatch(
      dtype, [](auto* type) { return sizeof(widen(Element<decltype(type)>{})) == sizeof(double); });
  return wide ? Bounds{1e-12, 1e-12, 1e-12} : Bounds{};
}

// Zero as it was made, and used again by one update after another. What it grew out of is kept: an
// update may have borrowed it for another launch.
struct TestLender final : cuda::Lender {
  std::vector<std::vector<uint64_t>> memories;

  cuda::Workspace lend(size_t bytes) override {
    const size_t words = (bytes + 7) / 8;
    if (memories.empty() || memories.back().size() < words) memories.emplace_back(words);
    return {memories.back().data(), bytes};
  }
};

// `sampling` is null where every element is counted.
inline UpdateParams sampled_params(const Case& c, State& state, const Bins& tensor,
                                   const Bins& channel, const int64_t* sampling) {
  UpdateParams params = params_of(c, state, tensor, channel);
  params.sampling = sampling;
  return params;
}

// The state after `times` updates of an empty one.
inline State accumulated(const Case& c, const TestBins& tensor, const TestBins& channel,
                         const cuda::Device& device, uint64_t seed, int times = 1,
                         const float* device_scale = nullptr, const int64_t* sampling = nullptr) {
  simt::shared_limit = device.shared_bytes;
  simt::seed(seed);
  State state(channels_of(c), tensor.host, channel.host);
  UpdateParams params = sampled_params(c, state, tensor.device, channel.device, sampling);
  if (device_scale != nullptr) params.scale = 1.0f;
  params.device_scale = device_scale;
  TestLender lender;
  for (int i = 0; i < times; ++i) cuda::update(device, params, lender, nullptr);
  return state;
}

inline void serial(int64_t tasks, void (*body)(int64_t, int64_t, void*), void* context) {
  body(0, tasks, context);
}

inline void check_case(Case c, const TestBins& tensor, const TestBins& channel,
                       const cuda::Device& device, uint64_t seed) {
  c.name += ", tensor bins " + std::to_string(tensor.host.bins) + ", channel bins " +
            std::to_string(channel.host.bins) + ", multiprocessors " +
            std::to_string(device.multiprocessors);
  try {
    const State state = accumulated(c, tensor, channel, device, seed);
    check_state(c, state, tensor.host, channel.host, bounds_of(c.dtype));
    CHECK(accumulated(c, tensor, channel, device, ~seed) == state, "%s: order", c.name.c_str());

    State on_cpu(channels_of(c), tensor.host, channel.host);
    cpu::update(params_of(c, on_cpu, tensor.host, channel.host), serial);
    CHECK(state.tallies == on_cpu.tallies && state.tensor_counts == on_cpu.tensor_counts &&
              state.channel_counts == on_cpu.channel_counts,
          "%s: unlike the CPU", c.name.c_str());
    if (seed % 4 == 0 || seed % 4 == 1) {
      const State three = accumulated(c, tensor, channel, device, seed, 3);
      check_state(c, three, tensor.host, channel.host, bounds_of(c.dtype), 3);
    }
  } catch (const std::exception& error) {
    CHECK(false, "%s: %s", c.name.c_str(), error.what());
  }
}

// A sample has the blocks that it has on the CPU, and the rest is as without one.
inline void check_sample(const Case& c, const TestBins& tensor, const TestBins& channel,
                         const cuda::Device& device, const int64_t (&sampling)[kSamplingColumns]) {
  const auto with = [&](uint64_t seed, const int64_t* given) {
    return accumulated(c, tensor, channel, device, seed, 1, nullptr, given);
  };
  const State got = with(1, sampling), whole = with(1, nullptr);
  CHECK(got == with(2, sampling), "%s: order", c.name.c_str());
  CHECK(got.moments == whole.moments || std::memcmp(got.moments.data(), whole.moments.data(),
                                                    got.moments.size() * sizeof(double)) == 0,
        "%s: moments", c.name.c_str());
  CHECK(got.tallies == whole.tallies, "%s: tallies", c.name.c_str());
  State on_cpu(channels_of(c), tensor.host, channel.host);
  cpu::update(sampled_params(c, on_cpu, tensor.host, channel.host, sampling), serial);
  CHECK(got.tensor_counts == on_cpu.tensor_counts, "%s: sample of the tensor", c.name.c_str());
  CHECK(got.channel_counts == on_cpu.channel_counts, "%s: of the channels", c.name.c_str());
}

inline Case make_case(const Shape& shape, DType dtype, Data data, double mean, double std,
                      float scale, int64_t front, uint64_t seed) {
  Case c{shape.name, dtype, shape.sizes, shape.strides, shape.channel_dim, scale, {}};
  c.front = front;
  fill_memory(c, extent_of(shape), data, mean, std, seed);
  char text[160];
  std::snprintf(
      text, sizeof text, ", dtype %d, data %d, mean %g, std %g, scale %g, front %ld, #%lu",
      static_cast<int>(dtype), static_cast<int>(data), mean, std, static_cast<double>(scale),
      static_cast<long>(front), static_cast<unsigned long>(seed));
  c.name += text;
  return c;
}

template <class Choices>
const auto& pick(const Choices& choices, std::mt19937_64& random) {
  return choices[random() % std::size(choices)];
}

constexpr Data kDatas[] = {Data::kNormal,    Data::kConstant,  Data::kMostlyZero,
                           Data::kHeavyTail, Data::kNonFinite, Data::kNonFiniteOnly,
                           Data::kSubnormal, Data::kTiny,      Data::kJumping};

inline std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes = kShapes;
  const std::vector<Shape> more = {
      {"whole, 1", {1}, {1}, -1},
      {"whole, 31", {31}, {1}, -1},
      {"whole, every third", {4001}, {3}, -1},
      {"whole, transposed with gaps", {33, 31}, {1, 50}, -1},
      {"one row of one", {1, 1}, {1, 1}, 0},
      {"rows of one", {33, 1}, {1, 1}, 0},
      {"rows of 31", {997, 31}, {31, 1}, 0},
      {"rows of 33, with gaps", {31, 33}, {47, 1}, 0},
      {"rows, many", {4100, 5}, {5, 1}, 0},
      {"columns, one row", {1, 997}, {997, 1}, 1},
      {"columns, 64", {31, 33, 64}, {2112, 64, 1}, 2},
      {"columns, 256", {3, 31, 256}, {7936, 256, 1}, 2},
      {"columns, 4100", {33, 4100}, {4100, 1}, 1},
      {"columns of three dimensions", {7, 5, 40}, {1000, 64, 1}, 2},
      {"channels first, long", {3, 7, 4500}, {31500, 4500, 1}, 1},
      {"channels first, 600", {3, 600, 5}, {3000, 5, 1}, 1},
      {"permuted, with gaps", {3, 5, 7, 4, 6}, {2000, 1, 5, 300, 40}, 2},
      {"overlapping", {40, 30}, {1, 1}, 0},
  };
  shapes.insert(shapes.end(), more.begin(), more.end());
  return shapes;
}

// Those that are read in vectors.
constexpr DType kVectorTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

inline cuda::Plan plan_of(const Case& c, const TestBins& tensor, const TestBins& channel,
                          const cuda::Device& device) {
  State state(channels_of(c), tensor.host, channel.host);
  return cuda::make_plan(device, params_of(c, state, tensor.device, channel.device), true);
}

}  // namespace kernel_cases
