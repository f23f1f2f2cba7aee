// Maps, of which a row has several channels' side by side (7x7, 14x14), emulated: against the
// definition and the CPU kernels, and that they are read as columns are wherever they may be.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_cases.h"
#include "simt.h"

using namespace kernel_cases;

namespace {

// [rows, channels, size], with `gap` elements between rows.
Shape maps(int64_t rows, int64_t channels, int64_t size, int64_t gap = 0) {
  return {"maps", {rows, channels, size}, {channels * size + gap, size, 1}, 1};
}

// Whether there are rows enough, of channels side by side, and these begin where threads' elements
// may.
bool suits(const Shape& shape, int64_t front) {
  const int64_t size = shape.sizes[2];
  return shape.sizes[0] >= 16 && shape.sizes[1] > 1 && size >= 4 && size != 289 &&
         shape.sizes[1] * size % 4 == 0 && shape.strides[0] % 4 == 0 && front % 4 == 0;
}

void test_sizes() {
  std::mt19937_64 random(11);
  uint64_t seed = 0;
  int by_maps = 0;
  for (const int64_t size : {1, 3, 4, 6, 9, 16, 45, 49, 64, 196, 225, 289, 784, 1100}) {
    for (const int64_t channels : {1, 2, 3, 4, 7, 12, 33}) {
      for (const int64_t rows : {1, 15, 16, 31, 33, 64, 70, 257, 997}) {
        for (const DType dtype : kVectorTypes) {
          ++seed;
          const int64_t fronts[] = {0, 0, 0, 4, 8, 1, 3}, gaps[] = {0, 0, 0, 4, 12, 1};
          const int64_t front = pick(fronts, random), gap = pick(gaps, random);
          const TestBins& tensor = pick(tensor_bins(), random);
          const TestBins& channel = pick(channel_bins(), random);
          const cuda::Device& device = pick(kDevices, random);
          const float scales[] = {1.0f, 1.0f, 8.0f, -3.0f};
          const float scale = pick(scales, random);
          const double stds[] = {1.0, 1.0, 1e19, 1e-20}, std = pick(stds, random);
          const Data data = random() % 2 == 0 ? Data::kNormal : pick(kDatas, random);
          const bool skipped = random() % (10 * every()) != 0;
          const int64_t numel = size * channels * rows;
          if (skipped || numel > 300000) continue;
          const Shape shape = maps(rows, channels, size, gap);
          const Case c = make_case(shape, dtype, data, std, std, scale, front, seed);
          check_case(c, tensor, channel, device, 2 * seed + 1);
          const bool is_read = plan_of(c, tensor, channel, device).agent == cuda::AgentKind::kMaps;
          const bool has_room = device.shared_bytes > 100 * 1024;
          CHECK(is_read == suits(shape, front) || (!has_room && !is_read),
                "%s: %lld by %lld by %lld", c.name.c_str(), static_cast<long long>(rows),
                static_cast<long long>(channels), static_cast<long long>(size));
          by_maps += is_read;
        }
      }
    }
  }
  CHECK(by_maps > 0, "%d of the cases are read as maps", by_maps);
}

// Channels far from each other, and a map that straddles threads: no sum, extreme or count of one
// channel has anything of another's, and a shift suits the channel that it is for.
void test_neighbours() {
  for (const DType dtype : kVectorTypes) {
    for (const int64_t size : {5, 9, 49, 50, 196}) {
      const Shape shape = maps(150, 8, size);
      Case c = make_case(shape, dtype, Data::kNormal, 0.0, 1.0, 1.0f, 0, 1);
      const auto bytes = static_cast<size_t>(element_bytes(dtype));
      for (int64_t row = 0; row < 150; ++row) {
        for (int64_t channel = 0; channel < 8; ++channel) {
          for (int64_t i = 0; i < size; ++i) {
            const int64_t at = row * shape.strides[0] + channel * size + i;
            // 256 and 16384, with something added in all types; NaN and infinity; 0 and constants.
            const uint32_t wide[] = {0x43800000, 0x46800000, 0x7fc00000, 0xff800000,
                                     0,          0x3f800000, 0x80000000, 0xc6800000};
            const uint16_t half[] = {0x5c00, 0x7400, 0x7e00, 0xfc00, 0, 0x3c00, 0x8000, 0xf400};
            const bool varies = channel < 2 || channel == 7;
            const auto more = static_cast<uint32_t>(varies ? (row * 7 + i * 3) % 5 : 0);
            uint32_t bits = wide[channel] + (more << 17);
            if (dtype == DType::kBFloat16) bits >>= 16;
            if (dtype == DType::kFloat16) bits = half[channel] + (more << 3);
            std::memcpy(&c.memory[static_cast<size_t>(at) * bytes], &bits, bytes);
          }
        }
      }
      const std::vector<TestBins>& bins = tensor_bins();
      // A sample takes other bins for each size.
      const size_t first = static_cast<size_t>(size) % every() % bins.size();
      for (size_t i = first; i < bins.size(); i += every()) {
        check_case(c, bins[i], channel_bins()[0], kDevices[0], 1);
      }
      check_case(c, tensor_bins()[0], channel_bins()[3], kDevices[3], 3);
    }
  }
}

// Where maps follow each other and rows are many, they are read as columns.
void test_plans() {
  for (const DType dtype : kVectorTypes) {
    for (const int64_t size : {4, 9, 45, 49, 196, 784, 3136}) {
      for (const int64_t rows : {16, 32, 64, 256, 1024}) {
        const int64_t sizes[] = {rows, 512, size}, strides[] = {512 * size, size, 1};
        UpdateParams p{};
        p.dtype = dtype;
        p.view = channel_view(sizes, strides, 3, 1);
        const cuda::Plan plan = cuda::make_plan(kDevices[0], p, true);
        const int64_t across = plan.item.slots.divisor, down = cuda::kBlock / across;
        const char* const text = "%lld rows of maps of %lld: %lld threads wide";
        const auto r = static_cast<long long>(rows), s = static_cast<long long>(size);
        const auto a = static_cast<long long>(across);
        CHECK(plan.agent == cuda::AgentKind::kMaps, text, r, s, a);
        CHECK(across * down >= cuda::kBlock / 2 && across * 4 * element_bytes(dtype) >= 256, text,
              r, s, a);
        CHECK(plan.item.row_step / down >= std::min<int64_t>(rows, 32), text, r, s, a);
        CHECK(cuda::make_plan(kDevices[0], p, false).agent == cuda::AgentKind::kRuns, "many");
      }
    }
  }
}

// Samples of maps, too.
void test_samples() {
  uint64_t seed = 0;
  for (const DType dtype : kVectorTypes) {
    for (const int64_t size : {9, 49, 196}) {
      const Shape shape = maps(66, 12, size);
      const Case c = make_case(shape, dtype, Data::kNonFinite, 0.5, 1.0, 1.0f, 4, ++seed);
      check_sample(c, tensor_bins()[2], channel_bins()[0], kDevices[0],
                   {static_cast<int64_t>(seed) * 1000003, 3, 2});
    }
  }
}

}  // namespace

int main() {
  if (simt::observer != nullptr) std::printf("looking for races\n");
  test_sizes();
  test_neighbours();
  test_plans();
  test_samples();
  return check::finish("maps");
}
