// What awkward data costs the emulated kernels of columns and maps: NaN, infinities, heavy tails
// and first rows with another mean than the others take at most 2.2 times what normal data do, of
// each: basic blocks, sectors of memory, and additions to shared memory (`simt::Cost`).
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

constexpr cuda::Device kDevice{0, 1, 163 * 1024};  // one multiprocessor: of one, few splits

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

simt::Cost cost_of(const Shape& shape, DType dtype, Awkward data, const TestBins& tensor,
                   const TestBins& channel, int64_t front = 0, const int64_t* sampling = nullptr) {
  Case c = make_case(shape, dtype, Data::kNormal, 0.0, 1.0, 1.0f, front, 1);
  const auto size = static_cast<size_t>(element_bytes(dtype));
  std::mt19937_64 random(1);
  for (size_t i = 0; (i + 1) * size <= c.memory.size(); ++i) {
    const float x = value_of(data, static_cast<int64_t>(i) / shape.strides[0], random);
    const uint32_t bits = bits_from_float(x) >> (size == 2 ? 16 : 0);
    std::memcpy(&c.memory[i * size], &bits, size);
  }
  simt::seed(1);
  simt::Cost cost;
  simt::cost = &cost;
  accumulated(c, tensor, channel, kDevice, 1, 1, nullptr, sampling);
  simt::cost = nullptr;
  return cost;
}

void test_awkward_data() {
  const Shape shapes[] = {{"columns", {2048, 32}, {32, 1}, 1},
                          {"columns off vectors", {2048, 31}, {31, 1}, 1},
                          {"maps", {512, 8, 49}, {392, 49, 1}, 1}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool counts_too : {false, true}) {
        const TestBins tensor = counts_too ? TestBins::log(3, -127, 127) : TestBins::none();
        const TestBins channel = counts_too ? TestBins::uniform(16, -4.0, 4.0) : TestBins::none();
        const simt::Cost normal = cost_of(shape, dtype, Awkward::kNormal, tensor, channel);
        for (int data = 1; data < 5; ++data) {
          const simt::Cost awkward =
              cost_of(shape, dtype, static_cast<Awkward>(data), tensor, channel);
          const auto share = [](uint64_t a, uint64_t b) {
            return static_cast<double>(a) / static_cast<double>(b);
          };
          const double work = share(awkward.work(), normal.work());
          const double sectors = share(awkward.sectors, normal.sectors);
          std::printf("%s, %s%s: %s: work %.2f, sectors %.2f\n", shape.name,
                      dtype == DType::kFloat32 ? "fp32" : "bf16", counts_too ? ", histograms" : "",
                      kNames[data], work, sectors);
          CHECK(normal.blocks > 0 && std::max(work, sectors) <= 2.2,
                "%s, %s: %.2f times the work and %.2f times the sectors of normal data", shape.name,
                kNames[data], work, sectors);
        }
      }
    }
  }
}

// Rows of a few channels, joined into rows of whole vectors, beside the same rows one element
// later, which are read with a part of their neighbours.
void test_few_columns() {
  for (const int64_t channels : {2, 3, 5, 6, 7}) {
    const Shape shape{"few columns", {36864 / channels / 4 * 4, channels}, {channels, 1}, 1};
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool counts_too : {false, true}) {
        const TestBins tensor = counts_too ? TestBins::log(3, -127, 127) : TestBins::none();
        const TestBins& none = tensor_bins()[0];
        const simt::Cost joined = cost_of(shape, dtype, Awkward::kNormal, tensor, none);
        const simt::Cost skewed = cost_of(shape, dtype, Awkward::kNormal, tensor, none, 1);
        const auto each = [&](uint64_t n) {
          return static_cast<double>(n) / static_cast<double>(shape.sizes[0] * channels);
        };
        std::printf(
            "%d columns, %s%s: sectors %.4f of %.4f, accesses %.4f of %.4f, work %.2f of %.2f\n",
            static_cast<int>(channels), dtype == DType::kFloat32 ? "fp32" : "bf16",
            counts_too ? ", histograms" : "", each(joined.sectors), each(skewed.sectors),
            each(joined.accesses), each(skewed.accesses), each(joined.work()), each(skewed.work()));
        CHECK(joined.accesses < skewed.accesses && joined.work() < skewed.work(),
              "%d columns: joined rows cost more", static_cast<int>(channels));
      }
    }
  }
}

// Counting a sample of one in eight in 64 bins of each channel adds less than half of what counting
// all adds to the work of moments.
void test_bins_of_channels() {
  constexpr int64_t kSampling[] = {0, 8, 8, 1};
  const Shape shapes[] = {{"columns", {2048, 64}, {64, 1}, 1},
                          {"maps", {512, 8, 49}, {392, 49, 1}, 1},
                          {"runs", {32, 4096}, {4096, 1}, 0},
                          {"whole", {1 << 17}, {1}, -1}};
  const TestBins &none = tensor_bins()[0], bins = TestBins::uniform(64, -4.0, 4.0);
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const auto cost = [&](const TestBins& channel, const int64_t* sampling) {
        return cost_of(shape, dtype, Awkward::kNormal, none, channel, 0, sampling);
      };
      const simt::Cost moments = cost(none, nullptr), all = cost(bins, nullptr);
      const simt::Cost some = cost(bins, kSampling);
      const auto times = [](uint64_t a, uint64_t b) {
        return static_cast<double>(a) / static_cast<double>(b);
      };
      const double of_all = times(all.work(), moments.work());
      const double of_some = times(some.work(), moments.work());
      std::printf(
          "%s, dtype %d: 64 bins a channel take %.2f times the work of moments, %.2f sampled\n",
          shape.name, static_cast<int>(dtype), of_all, of_some);
      CHECK(of_some - 1 < (of_all - 1) / 2, "%s, dtype %d: %.2f and sampled %.2f times the work",
            shape.name, static_cast<int>(dtype), of_all, of_some);
    }
  }
}

}  // namespace

int main() {
  simt::observer = nullptr;  // nothing looks for races here
  test_awkward_data();
  test_few_columns();
  test_bins_of_channels();
  return check::finish("cliffs");
}
