// What awkward data costs the emulated kernels of columns and maps: NaN, infinities, heavy tails
// and first rows with another mean than the others take at most 2.2 times the basic blocks of
// normal data. The compiler counts blocks, by -fsanitize-coverage=trace-pc.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"
#include "kernel_cases.h"
#include "simt.h"

using namespace kernel_cases;

namespace {

enum class Awkward { kNormal, kNaN, kInfinity, kHeavyTails, kOtherFirstRows };
constexpr const char* kNames[] = {"normal", "1 % NaN", "1 % infinity", "heavy tails",
                                  "other first rows"};

float value_of(Awkward data, int64_t row, std::mt19937_64& random) {
  const double x = std::normal_distribution<double>()(random);
  const bool is_rare = random() % 100 == 0;
  switch (data) {
    case Awkward::kNormal:
      return static_cast<float>(x);
    case Awkward::kNaN:
      return is_rare ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(x);
    case Awkward::kInfinity:
      return is_rare ? -std::numeric_limits<float>::infinity() : static_cast<float>(x);
    case Awkward::kHeavyTails:  // Student's t with one degree of freedom
      return static_cast<float>(x / std::normal_distribution<double>()(random));
    case Awkward::kOtherFirstRows:
      return static_cast<float>(x + (row < 128 ? 1e3 : 0.0));
  }
  return 0;
}

uint64_t blocks_of(const Shape& shape, DType dtype, Awkward data, const TestBins& tensor,
                   const TestBins& channel) {
  Case c = make_case(shape, dtype, Data::kNormal, 0.0, 1.0, 1.0f, 0, 1);
  const auto size = static_cast<size_t>(element_bytes(dtype));
  std::mt19937_64 random(1);
  for (size_t i = 0; (i + 1) * size <= c.memory.size(); ++i) {
    const float x = value_of(data, static_cast<int64_t>(i) / shape.strides[0], random);
    const uint32_t bits = bits_from_float(x) >> (size == 2 ? 16 : 0);
    std::memcpy(&c.memory[i * size], &bits, size);
  }
  simt::seed(1);
  const uint64_t before = simt::basic_blocks;
  accumulated(c, tensor, channel, kDevices[1], 1);
  return simt::basic_blocks - before;
}

void test_awkward_data() {
  const Shape shapes[] = {{"columns", {8192, 32}, {32, 1}, 1},
                          {"columns off vectors", {8192, 31}, {31, 1}, 1},
                          {"maps", {1024, 8, 49}, {392, 49, 1}, 1}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool counts : {false, true}) {
        const TestBins tensor = counts ? TestBins::log(3, -127, 127) : TestBins::none();
        const TestBins channel = counts ? TestBins::uniform(16, -4.0, 4.0) : TestBins::none();
        const auto normal = blocks_of(shape, dtype, Awkward::kNormal, tensor, channel);
        for (int data = 1; data < 5; ++data) {
          const auto awkward = blocks_of(shape, dtype, static_cast<Awkward>(data), tensor, channel);
          const double share = static_cast<double>(awkward) / static_cast<double>(normal);
          std::printf("%s, %s%s: %s %.2f\n", shape.name, dtype == DType::kFloat32 ? "fp32" : "bf16",
                      counts ? ", histograms" : "", kNames[data], share);
          CHECK(normal > 0 && share <= 2.2, "%s, %s: %.2f times normal data", shape.name,
                kNames[data], share);
        }
      }
    }
  }
}

}  // namespace

int main() {
  simt::observer = nullptr;  // nothing looks for races here
  test_awkward_data();
  return check::finish("cliffs");
}
