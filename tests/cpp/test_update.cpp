// The CPU kernels against an fp64 definition, over dtypes, layouts, sizes, data, bins and scales;
// and the same bits from any number of threads, of one tensor and of many. CTest runs this once per
// instruction set.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "check.h"
#include "core/occupancy.h"
#include "cpu/plan.h"
#include "cpu/update.h"
#include "parallel.h"

using namespace cases;

namespace {

using Occupancy = std::vector<int64_t>;

const Bins kAllFinite = log_bins(3, -127, 127);  // counted by the upper bits of floats

Occupancy no_occupancy(const Bins& bins) {
  return Occupancy(static_cast<size_t>(mark_columns(bins.slots())));
}

// Returns the occupancy of the tensor's histogram.
Occupancy run(const Case& c, State& state, const Bins& tensor_bins, const Bins& channel_bins,
              cpu::ParallelFor parallel_for) {
  Occupancy occupancy = no_occupancy(tensor_bins);
  UpdateParams params = params_of(c, state, tensor_bins, channel_bins);
  params.tensor_occupancy = occupancy.data();
  cpu::update(params, parallel_for);
  return occupancy;
}

bool counts_by_key(const Case& c, const Bins& bins) {
  State state(channels_of(c), bins, {});
  const UpdateParams params = params_of(c, state, bins, {});
  return params.view.numel() > 0 && cpu::make_plan(params).by_key;
}

// Of the slots of all elements, and of no others; those of NaN and infinity are zero again. Where
// elements are counted by keys, those of finite ones alone.
Occupancy expected_occupancy(const Case& c, const Bins& bins) {
  Occupancy occupancy = no_occupancy(bins);
  if (bins.kind == BinKind::kNone) return occupancy;
  const bool finite_alone = counts_by_key(c, bins);
  each_element(c, [&](int64_t, double x) {
    if (finite_alone && !std::isfinite(x)) return;
    const int64_t at = slot(bins, x);
    occupancy[static_cast<size_t>(1 + at / kWordSlots)] |=
        static_cast<int64_t>(uint64_t{1} << (at / kOccupancySlots % 64));
  });
  return occupancy;
}

void check_case(const Case& c, const Bins& tensor_bins, const Bins& channel_bins) {
  const int64_t channels = channels_of(c);
  State state(channels, tensor_bins, channel_bins);
  const Occupancy occupancy = run(c, state, tensor_bins, channel_bins, serial);
  CHECK(occupancy == expected_occupancy(c, tensor_bins), "%s: occupancy", c.name.c_str());
  check_state(c, state, tensor_bins, channel_bins);

  State two(channels, tensor_bins, channel_bins);
  State five(channels, tensor_bins, channel_bins);
  const Occupancy of_two = run(c, two, tensor_bins, channel_bins, threads<2>);
  const Occupancy of_five = run(c, five, tensor_bins, channel_bins, threads<5>);
  CHECK(state == two && state == five, "%s: threads", c.name.c_str());
  CHECK(occupancy == of_two && occupancy == of_five, "%s: occupancy of threads", c.name.c_str());
}

// A tensor in any two parts is the tensor: the states of the parts merge.
void check_parts() {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kInt8}) {
    for (const int64_t length : {1, 2, 31, 33, 997, 70001}) {
      Case c{"parts", dtype, {length}, {1}, -1, 1.0f, {}};
      fill_memory(c, length, Data::kNonFinite, 3.0, 2.0, static_cast<uint64_t>(length));
      for (const int64_t first : {int64_t{1}, length / 3, length / 2, length - 1, length}) {
        State state(1, {}, {});
        Case part = c;
        part.sizes = {first};
        run(part, state, {}, {}, serial);
        part.sizes = {length - first};
        part.front = first;
        run(part, state, {}, {}, serial);
        c.name = "parts, " + std::to_string(first) + " of " + std::to_string(length);
        check_state(c, state, {}, {});
      }
    }
  }
}

// fp32 of any size, whose first values say nothing of the size of the others.
void check_sizes() {
  for (const Shape& shape :
       {Shape{"runs", {3, 4999}, {4999, 1}, 0}, Shape{"rows", {4999, 33}, {33, 1}, 1},
        Shape{"strided", {3, 333}, {1000, 3}, 0}}) {
    for (const double std : {1e-35, 1e-15, 1e-9, 1e-8, 1e5, 1e9, 1e12, 1e18, 1e30}) {
      for (const double mean : {0.0, 10.0 * std}) {
        for (const double first : {0.0, 1e-6, 1.0, 1e6, 1e30}) {
          Case c{shape.name, DType::kFloat32, shape.sizes, shape.strides, shape.channel_dim, 1.0f,
                 {}};
          c.name += ", std " + std::to_string(std) + ", mean " + std::to_string(mean) + ", first " +
                    std::to_string(first);
          const int64_t extent = extent_of(shape);
          fill_memory(c, extent, Data::kNormal, mean, std, 1);
          // The first elements of every channel.
          auto* const values = reinterpret_cast<float*>(c.memory.data());
          for (int64_t i = 0; i < extent; ++i) {
            const bool is_first = shape.channel_dim == 0 ? i % shape.strides[0] < 48 : i < 16 * 33;
            if (is_first) values[i] = static_cast<float>(mean + (values[i] - mean) * first);
          }
          check_case(c, {}, {});
        }
      }
    }
  }
}

// Many at once have the bits of one by one, from any number of threads: all shapes, several times,
// with tensors among them that threads share.
void check_many(const Bins& log) {
  std::vector<float> edges{-1.0f, 0.0f, 0.5f, 2.0f};
  const Bins linear = linear_bins(edges.data(), 3);
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({"large", {7, 100003}, {100003, 1}, 0});
  shapes.insert(shapes.end(), kShapes.begin(), kShapes.end());
  shapes.push_back({"large, whole", {600000}, {1}, -1});
  std::vector<Case> cases;
  std::vector<State> expected;
  for (const Shape& shape : shapes) {
    const float scale = cases.size() % 3 == 0 ? 8.0f : 1.0f;
    Case c{shape.name, DType::kFloat32, shape.sizes, shape.strides, shape.channel_dim, scale, {}};
    fill_memory(c, extent_of(shape), Data::kNonFinite, 0.0, 1.0, cases.size());
    expected.emplace_back(channels_of(c), log, linear);
    run(c, expected.back(), log, linear, serial);
    cases.push_back(std::move(c));
  }
  for (const cpu::ParallelFor parallel_for : {serial, threads<2>, threads<5>}) {
    std::vector<State> states;
    for (const Case& c : cases) states.emplace_back(channels_of(c), log, linear);
    std::vector<Occupancy> occupancy(cases.size(), no_occupancy(log));
    std::vector<UpdateParams> params;
    for (size_t i = 0; i < cases.size(); ++i) {
      params.push_back(params_of(cases[i], states[i], log, linear));
      params.back().tensor_occupancy = occupancy[i].data();
    }
    cpu::update_many(params.data(), static_cast<int64_t>(params.size()), parallel_for);
    for (size_t i = 0; i < cases.size(); ++i) {
      CHECK(states[i] == expected[i], "many at once: %s", cases[i].name.c_str());
      CHECK(occupancy[i] == expected_occupancy(cases[i], log), "many: occupancy of %s",
            cases[i].name.c_str());
    }
    cpu::update_many(nullptr, 0, parallel_for);
  }
}

// More of a kind than 16 bits can count, in one channel's runs and in its rows; and more bins.
void check_large_counts() {
  std::vector<float> edges{0.0f, 0.5f, 1.0f, 2.0f}, many_edges(70001);
  for (size_t i = 0; i < many_edges.size(); ++i) {
    many_edges[i] = static_cast<float>(-3.5 + 1e-4 * static_cast<double>(i));
  }
  const Bins few = linear_bins(edges.data(), 3), many = linear_bins(many_edges.data(), 70000);
  for (const Shape& shape : {Shape{"runs, large counts", {2, 140001}, {140001, 1}, 0},
                             Shape{"rows, large counts", {70001, 17}, {20, 1}, 1}}) {
    for (const Data data : {Data::kConstant, Data::kMostlyZero, Data::kNormal, Data::kNonFinite}) {
      Case c{shape.name, DType::kFloat32, shape.sizes, shape.strides, shape.channel_dim, 1.0f, {}};
      fill_memory(c, extent_of(shape), data, 0.0, 1.0, 1);
      check_case(c, data == Data::kNormal ? many : few, few);
      check_case(c, kAllFinite, few);
    }
  }
}

// Large tensors of elements of every size, which take all keys of their type.
void check_every_size() {
  const Shape shapes[] = {{"one run", {600007}, {1}, -1},
                          {"maps", {9, 80, 30, 28}, {67200, 840, 28, 1}, 1},
                          {"rows of 16", {37501, 16}, {16, 1}, 1},
                          {"rows of 33", {18201, 33}, {40, 1}, 1}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Case c{shape.name, dtype, shape.sizes, shape.strides, shape.channel_dim, 1.0f, {}};
      c.name += ", every size";
      std::mt19937_64 random(1);
      std::normal_distribution<double> normal;
      dispatch(dtype, [&](auto* type) {
        using T = Element<decltype(type)>;
        const int64_t extent = extent_of(shape);
        c.memory.resize(static_cast<size_t>(extent) * sizeof(T));
        for (int64_t i = 0; i < extent; ++i) {
          const T value = narrow<T>(normal(random) * std::exp2(double(random() % 270) - 140.0));
          std::memcpy(c.memory.data() + i * static_cast<int64_t>(sizeof value), &value,
                      sizeof value);
        }
      });
      check_case(c, kAllFinite, {});
      check_case(c, log_bins(5, -127, 127), {});
    }
  }
}

}  // namespace

int main() {
  std::printf("instruction set: %s\n", cpu::capability());
  const uint64_t step = every();
  std::vector<float> edges(65), dense_edges(201);
  uint64_t seed = 0;
  for (const Shape& shape : kShapes) {
    const int64_t extent = extent_of(shape);
    for (const DType dtype : kDTypes) {
      for (const Data data :
           {Data::kNormal, Data::kConstant, Data::kMostlyZero, Data::kHeavyTail, Data::kNonFinite,
            Data::kNonFiniteOnly, Data::kTiny, Data::kJumping}) {
        for (const double std : {1.0, 1e-20, 1e19, 1e-2}) {
          if (++seed % step != 0) continue;
          // fp32 and fp64 have every scale and kind of data, the others a third of them.
          const bool wide = dtype == DType::kFloat32 || dtype == DType::kFloat64;
          if (!wide && (std != 1.0 || (seed / 4) % 3 != 0)) continue;
          const double mean = seed % 4 == 0 ? 1e6 * std : seed % 4 == 1 ? 100.0 : 0.0;
          const float scale = seed % 5 == 0 ? 3.0f : 1.0f;
          Case c{shape.name, dtype, shape.sizes, shape.strides, shape.channel_dim, scale, {}};
          c.name += ", dtype " + std::to_string(static_cast<int>(dtype)) + ", data " +
                    std::to_string(static_cast<int>(data)) + ", std " + std::to_string(std);
          fill_memory(c, extent, data, mean, std, seed);
          Bins none, linear, log;
          // Edges that can be computed, others that are nearly so, and ends that values hit.
          const float first = seed / 3 % 3 == 2 ? 0.0f : -4.0f;
          const float width = seed / 3 % 3 == 0 ? 0.125f : seed / 3 % 3 == 1 ? 0.123f : 1.0f / 64;
          for (int i = 0; i <= 64; ++i) edges[static_cast<size_t>(i)] = first + width * i;
          linear = linear_bins(edges.data(), 64);
          log = seed % 2 == 0 ? kAllFinite : log_bins(1, -20, 10);
          switch (seed % 3) {
            case 0:
              check_case(c, log, linear);
              break;
            case 1:
              check_case(c, linear, log_bins(1, -20, 10));
              break;
            default:
              check_case(c, none, none);
          }
        }
      }
    }
    // Edges one ulp apart, whose nearest cannot be guessed.
    Case c{shape.name, DType::kFloat32, shape.sizes, shape.strides, shape.channel_dim, 1.0f, {}};
    fill_memory(c, extent, Data::kNormal, 1.0, 1e-5, ++seed);
    float edge = 1.0f;
    for (float& e : dense_edges) {
      e = edge;
      edge = std::nextafter(edge, 2.0f);
    }
    const Bins dense = linear_bins(dense_edges.data(), 200);
    check_case(c, dense, dense);
  }
  check_large_counts();
  check_every_size();
  check_parts();
  check_sizes();
  check_many(log_bins(2, -20, 10));
  check_many(kAllFinite);
  return check::finish("update");
}
