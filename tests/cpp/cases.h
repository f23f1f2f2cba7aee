// What kernels are tested on, whatever the device: tensors of every dtype, layout and kind of data,
// states, and what a state has to be by an fp64 definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.h"
#include "core/bins.h"
#include "core/channel_view.h"
#include "core/dtype.h"
#include "core/state.h"
#include "core/update_params.h"

namespace cases {

using namespace hookstats;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Sanitized builds are slow: they check every fifth case, say.
inline uint64_t every() {
  const char* text = std::getenv("HOOKSTATS_TEST_EVERY");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

struct State {
  std::vector<double> moments;
  std::vector<int64_t> tallies, tensor_counts, channel_counts;

  State(int64_t channels, const Bins& tensor_bins, const Bins& channel_bins)
      : moments(static_cast<size_t>(channels * kMomentColumns)),
        tallies(static_cast<size_t>(channels * kTallyColumns)),
        tensor_counts(static_cast<size_t>(tensor_bins.slots())),
        channel_counts(static_cast<size_t>(channels * channel_bins.slots())) {
    for (int64_t c = 0; c < channels; ++c) {
      store_row(Channel{}, &moments[static_cast<size_t>(c * kMomentColumns)],
                &tallies[static_cast<size_t>(c * kTallyColumns)]);
    }
  }
  Channel channel(int64_t c) const {
    Channel channel;
    load_row(channel, &moments[static_cast<size_t>(c * kMomentColumns)],
             &tallies[static_cast<size_t>(c * kTallyColumns)]);
    return channel;
  }
  bool operator==(const State& other) const {
    const bool same_moments = moments.empty() || std::memcmp(moments.data(), other.moments.data(),
                                                             moments.size() * sizeof(double)) == 0;
    return same_moments && tallies == other.tallies && tensor_counts == other.tensor_counts &&
           channel_counts == other.channel_counts;
  }
};

template <class Pointer>
using Element = std::remove_const_t<std::remove_pointer_t<Pointer>>;

inline int64_t element_bytes(DType dtype) {
  return dispatch(dtype, [](auto* type) { return static_cast<int64_t>(sizeof *type); });
}

struct Case {
  std::string name;
  DType dtype;
  std::vector<int64_t> sizes, strides;
  int channel_dim;
  float scale;
  std::vector<char> memory;
  int64_t front = 0;  // elements of memory before the tensor's first

  const char* data() const { return memory.data() + front * element_bytes(dtype); }
};

inline int64_t channels_of(const Case& c) {
  return c.channel_dim < 0 ? 1 : c.sizes[static_cast<size_t>(c.channel_dim)];
}

inline double element(const Case& c, int64_t offset) {
  return dispatch(c.dtype, [&](auto* type) {
    Element<decltype(type)> value{};
    std::memcpy(&value, c.data() + offset * static_cast<int64_t>(sizeof value), sizeof value);
    return static_cast<double>(widen(value) / c.scale);
  });
}

// Calls f(channel, value) on every element, by the definition of sizes and strides.
template <class F>
void each_element(const Case& c, F&& f) {
  int64_t numel = 1;
  for (const int64_t size : c.sizes) numel *= size;
  for (int64_t i = 0; i < numel; ++i) {
    int64_t left = i, offset = 0, channel = 0;
    for (size_t d = c.sizes.size(); d-- > 0;) {
      const int64_t index = left % c.sizes[d];
      left /= c.sizes[d];
      offset += index * c.strides[d];
      if (static_cast<int>(d) == c.channel_dim) channel = index;
    }
    f(channel, element(c, offset));
  }
}

inline UpdateParams params_of(const Case& c, State& state, const Bins& tensor_bins,
                              const Bins& channel_bins) {
  UpdateParams params{};
  params.data = c.data();
  params.dtype = c.dtype;
  params.view = channel_view(c.sizes.data(), c.strides.data(), static_cast<int>(c.sizes.size()),
                             c.channel_dim);
  params.moments = state.moments.data();
  params.tallies = state.tallies.data();
  params.tensor_bins = tensor_bins;
  params.tensor_counts = state.tensor_counts.data();
  params.channel_bins = channel_bins;
  params.channel_counts = state.channel_counts.data();
  params.scale = c.scale;
  return params;
}

// Moments come within these of the definition, relative to the spread.
struct Bounds {
  double mean = 1e-6, m2 = 1e-5, l1 = 1e-6;
};

// The statistics of the tensor's channels by the definition; its histograms go into `counted`.
inline std::vector<Channel> expected_of(const Case& c, const Bins& tensor_bins,
                                        const Bins& channel_bins, State& counted) {
  std::vector<Channel> expected(static_cast<size_t>(channels_of(c)));
  std::vector<long double> sum(expected.size()), squares(expected.size());
  each_element(c, [&](int64_t channel, double x) {
    Channel& e = expected[static_cast<size_t>(channel)];
    e.nan += std::isnan(x);
    e.posinf += x == kInf;
    e.neginf += x == -kInf;
    if (!std::isfinite(x)) return;
    ++e.count;
    e.zero += x == 0.0;
    e.min = std::fmin(e.min, x);
    e.max = std::fmax(e.max, x);
    e.l1 += std::fabs(x);
    sum[static_cast<size_t>(channel)] += x;
    if (tensor_bins.kind != BinKind::kNone) {
      ++counted.tensor_counts[static_cast<size_t>(slot(tensor_bins, x))];
    }
    if (channel_bins.kind != BinKind::kNone) {
      ++counted.channel_counts[static_cast<size_t>(channel * channel_bins.slots() +
                                                   slot(channel_bins, x))];
    }
  });
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].count > 0) sum[i] /= static_cast<long double>(expected[i].count);
    if (expected[i].min == expected[i].max) sum[i] = expected[i].min;  // without any rounding
    expected[i].mean = static_cast<double>(sum[i]);
  }
  each_element(c, [&](int64_t channel, double x) {
    const long double d = x - sum[static_cast<size_t>(channel)];
    if (!std::isfinite(x)) return;
    squares[static_cast<size_t>(channel)] += d * d;
  });
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i].m2 = static_cast<double>(squares[i]);
  }
  return expected;
}

// CHECKs that `state` holds the tensor's statistics `times` times over.
inline void check_state(const Case& c, const State& state, const Bins& tensor_bins,
                        const Bins& channel_bins, const Bounds& bounds = {}, int64_t times = 1) {
  const int64_t channels = channels_of(c);
  State counted(channels, tensor_bins, channel_bins);
  std::vector<Channel> expected = expected_of(c, tensor_bins, channel_bins, counted);
  for (int64_t i = 0; i < channels; ++i) {
    Channel& e = expected[static_cast<size_t>(i)];
    repeat(e, times);
    const Channel got = state.channel(i);
    const char* name = c.name.c_str();
    const long channel = static_cast<long>(i);
    CHECK(got.count == e.count && got.nan == e.nan && got.posinf == e.posinf &&
              got.neginf == e.neginf && got.zero == e.zero,
          "%s, channel %ld: tallies", name, channel);
    CHECK(got.min == e.min && got.max == e.max, "%s, channel %ld: extremes", name, channel);
    if (e.count == 0) continue;
    const double n = static_cast<double>(e.count), std = std::sqrt(e.m2 / n);
    constexpr double kLeast = std::numeric_limits<double>::denorm_min();
    CHECK(std::fabs(got.mean - e.mean) <= bounds.mean * (std::fabs(e.mean) + std) + 4 * kLeast,
          "%s, channel %ld: mean %.17g, expected %.17g", name, channel, got.mean, e.mean);
    // fp64 data keeps fp64's own cancellation: a mean of 1e6 with a spread of 1e-20 is constant.
    const double rounding = std::fabs(e.mean) * 1e-15;
    CHECK(std::fabs(got.m2 - e.m2) <= bounds.m2 * e.m2 + n * rounding * (rounding + 0.1 * std),
          "%s, channel %ld: m2 %.17g, expected %.17g", name, channel, got.m2, e.m2);
    CHECK(std::fabs(got.l1 - e.l1) <= bounds.l1 * e.l1, "%s, channel %ld: l1 %.17g, expected %.17g",
          name, channel, got.l1, e.l1);
  }
  for (int64_t& count : counted.tensor_counts) count *= times;
  for (int64_t& count : counted.channel_counts) count *= times;
  CHECK(state.tensor_counts == counted.tensor_counts, "%s: tensor histogram", c.name.c_str());
  CHECK(state.channel_counts == counted.channel_counts, "%s: channel histograms", c.name.c_str());
}

enum class Data {
  kNormal,
  kConstant,
  kMostlyZero,
  kHeavyTail,
  kNonFinite,
  kNonFiniteOnly,
  kSubnormal,
  kTiny,     // whose squares fp32 does not have
  kJumping,  // whose first values say little of the mean
};

// Small enough that values of this size are subnormal numbers of the dtype.
inline double subnormal_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1e-310;
    case DType::kFloat16:
      return 1e-5;
    case DType::kFloat8E4M3FN:
      return 4e-3;
    case DType::kFloat8E5M2:
      return 2e-5;
    default:
      return 1e-40;
  }
}

template <class T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, Bool>) {
    return T{static_cast<uint8_t>(x > 0.0)};
  } else if constexpr (std::is_integral_v<T>) {
    if (!(std::fabs(x) <= 100.0)) x = 100.0;
    return static_cast<T>(std::is_signed_v<T> ? x : std::fabs(x));
  } else if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(std::isfinite(x) ? std::fmax(-3e38, std::fmin(3e38, x)) : x);
  } else if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    // By search among all patterns of a sign, whose values ascend: no rounding mode to get wrong.
    using Bits = decltype(T{}.bits);
    const Bits half = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    const Bits sign = std::signbit(x) ? half : Bits{0};
    Bits low = 0, high = static_cast<Bits>(half - 1);
    if (std::isnan(x)) return T{high};
    while (low < high) {
      const Bits middle = static_cast<Bits>(low + (high - low + 1) / 2);
      const double value = widen(T{middle});
      if (value <= std::fabs(x)) {
        low = middle;
      } else {
        high = static_cast<Bits>(middle - 1);
      }
    }
    return T{static_cast<Bits>(low | sign)};
  }
}

inline void fill_memory(Case& c, int64_t elements, Data data, double mean, double std,
                        uint64_t seed) {
  elements += c.front;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  dispatch(c.dtype, [&](auto* type) {
    using T = Element<decltype(type)>;
    T value{};
    c.memory.resize(static_cast<size_t>(elements) * sizeof(T));
    for (int64_t i = 0; i < elements; ++i) {
      double x = mean + std * normal(random);
      const uint64_t percent = random() % 100;
      if (data == Data::kConstant) x = mean + std;
      if (data == Data::kMostlyZero && percent != 0) x = 0.0;
      if (data == Data::kSubnormal) x = subnormal_size(c.dtype) * normal(random);
      if (data == Data::kTiny && c.dtype != DType::kFloat16) x *= 1e-25;
      if (data == Data::kJumping && i >= elements / 16) x += 40 * std;
      if (data == Data::kHeavyTail) x *= std::exp(3.0 * normal(random));
      if (data == Data::kNonFiniteOnly || (data == Data::kNonFinite && percent < 3)) {
        x = percent % 3 == 0 ? NAN : percent % 3 == 1 ? kInf : -kInf;
      }
      value = narrow<T>(x);
      std::memcpy(c.memory.data() + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
    }
  });
}

struct Shape {
  const char* name;
  std::vector<int64_t> sizes, strides;
  int channel_dim;
};

inline const std::vector<Shape> kShapes = {
    {"scalar", {}, {}, -1},
    {"whole, 997", {997}, {1}, -1},
    {"whole, 70001", {70001}, {1}, -1},
    {"vector, its elements the channels", {33}, {1}, 0},
    {"rows", {5, 4999}, {4999, 1}, 0},
    {"rows, long", {2, 40003}, {40003, 1}, 0},
    {"rows, sliced", {7, 333}, {1000, 3}, 0},
    {"columns, joined", {9001, 10}, {10, 1}, 1},
    {"columns, joined evenly", {4096, 3}, {3, 1}, 1},
    {"columns, 31", {997, 31}, {31, 1}, 1},
    {"columns, 33, with gaps", {701, 33}, {40, 1}, 1},
    {"columns, 600", {513, 600}, {600, 1}, 1},
    {"columns, every other", {300, 33}, {70, 2}, 1},
    {"channels first, 7x7", {9, 40, 7, 7}, {1960, 49, 7, 1}, 1},
    {"channels first, 1x1", {65, 40, 1, 1}, {40, 1, 1, 1}, 1},
    {"channels first, 31x33", {3, 5, 31, 33}, {5115, 1023, 33, 1}, 1},
    {"channels last", {3, 20, 31, 33}, {20460, 1, 660, 20}, 1},
    {"windows, overlapping", {4, 4, 20}, {60, 40, 1}, 2},
    {"channels first, 7 channels", {5, 7, 1023}, {7161, 1023, 1}, 1},
    {"channels first, 1025", {1, 15, 1025}, {15375, 1025, 1}, 1},
    {"transposed", {100, 37, 8}, {1, 800, 100}, 1},
    {"expanded", {16, 12, 30}, {0, 30, 1}, 1},
    {"expanded to all", {16, 12, 30}, {0, 0, 0}, 1},
    {"expanded channels", {50, 12}, {1, 0}, 1},
    {"one channel", {31, 1, 33}, {33, 33, 1}, 1},
    {"no elements", {4, 3, 0}, {0, 0, 1}, 1},
    {"no channels", {4, 0}, {1, 1}, 1},
};

inline int64_t extent_of(const Shape& shape) {
  int64_t extent = 1;
  for (size_t d = 0; d < shape.sizes.size(); ++d) {
    extent += (shape.sizes[d] - 1) * shape.strides[d];
  }
  return std::max<int64_t>(extent, 1);
}

constexpr DType kDTypes[] = {
    DType::kFloat32,    DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3FN,
    DType::kFloat8E5M2, DType::kInt8,    DType::kInt16,   DType::kInt32,    DType::kInt64,
    DType::kUInt8,      DType::kUInt16,  DType::kUInt32,  DType::kUInt64,   DType::kBool};

}  // namespace cases
