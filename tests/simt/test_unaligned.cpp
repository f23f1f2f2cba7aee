// Rows that begin anywhere in a vector, emulated: odd numbers of channels side by side, slices,
// odd row lengths and tensors off 16 bytes, against the definition and the CPU kernels. They are
// read in vectors, and nothing beyond the tensor is read: its memory ends where the tensor does.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_cases.h"
#include "simt.h"

using namespace kernel_cases;

namespace {

// Tall enough for whole tiles, of every residue of sizes, strides and offsets.
std::vector<Shape> columns() {
  std::vector<Shape> shapes;
  for (const int64_t channels : {2, 3, 5, 7, 13, 50, 63, 131, 514}) {
    for (const int64_t gap : {0, 1, 4}) {
      const int64_t stride = channels + gap, rows = 70 + 40000 / (4 * stride);
      shapes.push_back({"columns", {rows, channels}, {stride, 1}, 1});
    }
  }
  shapes.push_back({"two rows", {2, 333}, {333, 1}, 1});
  shapes.push_back({"one row", {1, 333}, {333, 1}, 1});
  shapes.push_back({"aligned but for the first", {500, 64}, {64, 1}, 1});
  shapes.push_back({"slices", {300, 61}, {64, 1}, 1});
  return shapes;
}

void test_columns() {
  std::mt19937_64 random(7);
  uint64_t seed = 0;
  for (const Shape& shape : columns()) {
    for (const DType dtype : kVectorTypes) {
      for (int64_t front = 0; front < 8; ++front) {
        ++seed;
        const TestBins& tensor = pick(tensor_bins(), random);
        const TestBins& channel = pick(channel_bins(), random);
        const cuda::Device& device = kDevices[random() % 4];
        const float scales[] = {1.0f, 1.0f, 8.0f, -3.0f};
        const float scale = pick(scales, random);
        const Data data = random() % 2 == 0 ? Data::kNormal : pick(kDatas, random);
        if (random() % (4 * every()) != 0) continue;
        const Case c = make_case(shape, dtype, data, 1.0, 1.0, scale, front, seed);
        check_case(c, tensor, channel, device, 2 * seed + 1);
        const bool whole = front % 4 == 0 && shape.sizes[1] % 4 == 0 && shape.strides[0] % 4 == 0;
        const bool skewed =
            plan_of(c, tensor, channel, device).agent == cuda::AgentKind::kSkewedColumns;
        const bool joined = plan_of(c, tensor, channel, device).item.joined > 1;
        CHECK(skewed || joined || whole || device.shared_bytes < 100 * 1024,
              "%s: read element by element", c.name.c_str());
      }
    }
  }
}

// Rows of a few channels are joined into rows of whole vectors, where they are many enough and
// begin where vectors do, and read as they are elsewhere.
void test_few_columns() {
  std::mt19937_64 random(9);
  uint64_t seed = 0;
  for (const int64_t channels : {1, 2, 3, 4, 5, 6, 7}) {
    for (const int64_t rows : {3, 4, 8, 60, 1001, 4096, 30000}) {
      for (const DType dtype :
           {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt32}) {
        for (const int64_t front : {0, 1, 4}) {
          const TestBins& tensor = pick(tensor_bins(), random);
          const TestBins& channel = pick(channel_bins(), random);
          const cuda::Device& device = kDevices[random() % 4];
          const Data data = random() % 2 == 0 ? Data::kNormal : pick(kDatas, random);
          const auto n = static_cast<int64_t>(++seed);
          if (random() % every() != 0) continue;
          const Shape shape{"few columns", {rows, channels}, {channels, 1}, 1};
          const Case c =
              make_case(shape, dtype, data, 1.0, 1.0, front == 4 ? 8.0f : 1.0f, front, seed);
          check_case(c, tensor, channel, device, seed);
          const cuda::Item item = plan_of(c, tensor, channel, device).item;
          const int64_t together = 4 / std::gcd(channels, int64_t{4});
          const bool joins = channels > 1 && together > 1 && rows % together == 0 &&
                             front % 4 == 0 && dtype != DType::kInt32;
          const bool has_room = device.shared_bytes >= 100 * 1024;  // for all tables of a row
          CHECK(item.joined == (joins ? together : 1) || (item.joined == 1 && !has_room),
                "%s: %d rows are joined", c.name.c_str(), item.joined);
          check_sample(c, tensor, channel, device, {n, 1 + n % 5, 1 + n % 3});
        }
      }
    }
  }
}

// Most threads have channels of their own to read, all multiprocessors have work, and the last
// block merges few partial results of a channel.
void test_plans_of_columns() {
  for (const DType dtype : kVectorTypes) {
    for (const int64_t channels : {3, 5, 63, 101, 257, 1001, 4099, 50257}) {
      const int64_t sizes[] = {(int64_t{1} << 28) / channels, channels}, strides[] = {channels, 1};
      UpdateParams p{};
      p.dtype = dtype;
      p.view = channel_view(sizes, strides, 2, 1);
      const cuda::Plan plan = cuda::make_plan(kDevices[0], p, true);
      const int64_t across = plan.item.slots.divisor, rows = cuda::kBlock / across / 4 * 4;
      const double used =
          static_cast<double>(channels * rows) /
          static_cast<double>(plan.item.channel_blocks * cuda::kBlock * cuda::kOwned);
      CHECK(plan.agent == cuda::AgentKind::kSkewedColumns && used > (channels < 60 ? 0.35 : 0.7),
            "%lld channels, %lld threads wide: %.2f of the threads",
            static_cast<long long>(channels), static_cast<long long>(across), used);
      const int64_t merges = cuda::ceil_div(plan.item.splits(), std::max<int64_t>(1, rows));
      CHECK(merges <= 17 && plan.item.blocks >= kDevices[0].multiprocessors,
            "%lld channels: %lld merges, %d blocks", static_cast<long long>(channels),
            static_cast<long long>(merges), plan.item.blocks);
    }
  }
}

// Rows of every length in vectors and tiles, one or many to a channel, and whole tensors.
void test_runs() {
  std::mt19937_64 random(8);
  uint64_t seed = 0;
  std::vector<Shape> shapes = {{"whole", {70003}, {1}, -1},
                               {"a few", {3}, {1}, -1},
                               {"rows of 4097", {9, 4097}, {4097, 1}, 0},
                               {"rows of 1031 with gaps", {40, 1031}, {1033, 1}, 0},
                               {"maps of 7x7", {64, 24, 49}, {1176, 49, 1}, 1},
                               {"maps of 7x7, odd", {65, 3, 49}, {147, 49, 1}, 1},
                               {"maps of 14x14", {30, 8, 196}, {1568, 196, 1}, 1},
                               {"maps of 2x2", {300, 6, 4}, {24, 4, 1}, 1},
                               {"large maps", {3, 2, 3001}, {6002, 3001, 1}, 1}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : kVectorTypes) {
      for (int64_t front = 0; front < 8; ++front) {
        ++seed;
        const TestBins& tensor = pick(tensor_bins(), random);
        const TestBins& channel = pick(channel_bins(), random);
        const cuda::Device& device = kDevices[random() % 4];
        const Data data = random() % 2 == 0 ? Data::kNormal : pick(kDatas, random);
        if (random() % (2 * every()) != 0) continue;
        const Case c =
            make_case(shape, dtype, data, 1.0, 1.0, front % 3 == 0 ? 8.0f : 1.0f, front, seed);
        check_case(c, tensor, channel, device, seed);
      }
    }
  }
}

// Infinite and missing neighbours are of other rows or channels: no value of theirs is taken.
void test_neighbours() {
  for (const DType dtype : kVectorTypes) {
    for (const int64_t channels : {5, 61}) {
      const int64_t stride = channels + 3;
      Case c = make_case({"neighbours", {400, channels}, {stride, 1}, 1}, dtype, Data::kNormal, 3.0,
                         1.0, 1.0f, 1, 1);
      const auto size = static_cast<size_t>(element_bytes(dtype));
      const uint32_t nans = 0x7fffffffu, infinities = dtype == DType::kFloat16 ? 0x7c007c00u : 0;
      for (int64_t row = 0; row < 399; ++row) {
        for (int64_t gap = 0; gap < 3; ++gap) {
          const int64_t at = 1 + row * stride + channels + gap;
          std::memcpy(&c.memory[static_cast<size_t>(at) * size], gap == 1 ? &infinities : &nans,
                      size);
        }
      }
      for (const TestBins& tensor : tensor_bins()) {
        check_case(c, tensor, channel_bins()[0], kDevices[0], 1);
      }
    }
  }
}

}  // namespace

int main() {
  test_columns();
  test_few_columns();
  test_plans_of_columns();
  test_runs();
  test_neighbours();
  return check::finish("unaligned");
}
