// The CUDA kernels' own source, emulated, against an fp64 definition and the CPU kernels: dtypes,
// layouts, alignments, sizes, data, bins, scales and devices; and the same bits in every order of
// threads and blocks.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/plan.h"
#include "cuda/policy.h"
#include "cuda/update.h"
#include "kernel_cases.h"
#include "simt.h"

using namespace kernel_cases;

namespace {

void test_shapes() {
  const uint64_t step = every();
  std::mt19937_64 random(2);
  uint64_t seed = 0;
  for (const Shape& shape : all_shapes()) {
    for (const DType dtype : kDTypes) {
      for (const Data data : kDatas) {
        const double stds[] = {1.0, 1.0, 1.0, 1e-2, 1e19, 1e-20};
        const float scales[] = {1.0f, 1.0f, 8.0f, 3.0f};
        const double std = pick(stds, random), means[] = {0.0, 0.0, 100.0, 1e6 * std};
        const double mean = pick(means, random);
        const float scale = pick(scales, random);
        const int64_t front = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 16);
        const TestBins& tensor = pick(tensor_bins(), random);
        const TestBins& channel = pick(channel_bins(), random);
        const cuda::Device& device = pick(kDevices, random);
        const bool vectors =
            dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
        const bool skipped = random() % (step * (vectors ? 3 : 6)) != 0;
        ++seed;
        if (skipped) continue;
        check_case(make_case(shape, dtype, data, mean, std, scale, front, seed), tensor, channel,
                   device, seed);
      }
    }
  }
}

// Any number of dimensions, of any size and order, with gaps between them.
void test_random_shapes() {
  const uint64_t step = every();
  std::mt19937_64 random(3);
  for (uint64_t example = 0; example < 400; ++example) {
    const int64_t sizes[] = {1, 2, 3, 8, 31, 32, 33, 64, 100, 997};
    Shape shape{"random", {}, {}, -1};
    const size_t dims = random() % 6;
    int64_t numel = 1;
    for (size_t d = 0; d < dims; ++d) {
      int64_t size = pick(sizes, random);
      if (numel * size > 40000) size = 2;
      numel *= size;
      shape.sizes.push_back(size);
    }
    shape.strides.resize(dims);
    std::vector<size_t> order(dims);
    std::iota(order.begin(), order.end(), 0);
    if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    int64_t stride = random() % 8 == 0 ? 2 : 1;
    for (size_t i = dims; i-- > 0;) {
      const int64_t gap = random() % 8 == 0 ? static_cast<int64_t>(random() % 3) : 0;
      shape.strides[order[i]] = random() % 16 == 0 ? 0 : stride;
      stride *= shape.sizes[order[i]];
      stride += gap;
    }
    if (dims > 0) shape.channel_dim = static_cast<int>(random() % (dims + 1)) - 1;
    const DType dtype = random() % 2 == 0 ? DType::kBFloat16 : pick(kDTypes, random);
    const Data data = pick(kDatas, random);
    const int64_t front = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 16);
    const TestBins& tensor = pick(tensor_bins(), random);
    const TestBins& channel = pick(channel_bins(), random);
    const cuda::Device& device = pick(kDevices, random);
    if (example % step != 0) continue;
    Case c = make_case(shape, dtype, data, 0.5, 2.0, 1.0f, front, example);
    for (size_t d = 0; d < dims; ++d) {
      c.name += (d == 0 ? ": " : ", ") + std::to_string(shape.sizes[d]) + "*" +
                std::to_string(shape.strides[d]);
    }
    c.name += ", channels " + std::to_string(shape.channel_dim);
    check_case(c, tensor, channel, device, example);
  }
}

// A hundred orders of threads and blocks, one result.
void test_orders() {
  const std::vector<Shape> shapes = {{"whole", {150000}, {1}, -1},
                                     {"rows", {2, 30000}, {30000, 1}, 0},
                                     {"short rows", {70, 200}, {200, 1}, 0},
                                     {"columns", {3000, 36}, {36, 1}, 1},
                                     {"channels first", {4, 3, 4096}, {12288, 4096, 1}, 1},
                                     {"strided", {200, 3, 30}, {100, 33, 1}, 1}};
  for (const Shape& shape : shapes) {
    const Case c = make_case(shape, DType::kBFloat16, Data::kNonFinite, 1.0, 1.0, 1.0f, 0, 1);
    const TestBins tensor = TestBins::log(3, -127, 127), channel = TestBins::uniform(64, -4.0, 4.0);
    const State first = accumulated(c, tensor, channel, kDevices[3], 0, 2);
    for (uint64_t seed = 1; seed < 100; seed += every()) {
      CHECK(accumulated(c, tensor, channel, kDevices[3], seed, 2) == first, "%s, order %lu",
            shape.name, static_cast<unsigned long>(seed));
    }
  }
}

// The scale where only the device can read it.
void test_device_scale() {
  for (const float scale : {1.0f, 65536.0f, 3.0f, 0x1p-130f, -4.0f}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt32}) {
      const Case c = make_case({"rows", {31, 333}, {333, 1}, 0}, dtype, Data::kNonFinite, 3.0, 2.0,
                               scale, 0, 1);
      const TestBins &tensor = tensor_bins()[1], &channel = channel_bins()[0];
      const State by_host = accumulated(c, tensor, channel, kDevices[0], 1);
      CHECK(by_host == accumulated(c, tensor, channel, kDevices[0], 1, 1, &scale), "scale %g",
            static_cast<double>(scale));
      check_state(c, by_host, tensor.host, channel.host, bounds_of(dtype));
    }
  }
}

// Every shape and dtype at once is what one by one would be.
void test_many() {
  const TestBins &tensor = tensor_bins()[5], &channel = channel_bins()[0];
  const TestBins none;
  const float scale = 8.0f;
  const uint64_t step = every();
  std::mt19937_64 random(4);
  std::vector<Case> all;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : all_shapes()) {
      const uint64_t seed = all.size();
      if (random() % (dtype == DType::kFloat32 ? 1 : 5 * step) != 0) continue;
      all.push_back(make_case(shape, dtype, seed % 2 == 0 ? Data::kNormal : Data::kNonFinite, 0.0,
                              1.0, seed % 3 == 0 ? scale : 1.0f, seed % 7 == 0 ? 1 : 0, seed));
    }
  }
  for (int copy = 0; copy < 200; ++copy) {
    all.push_back(make_case({"small", {11, 5}, {5, 1}, 0}, DType::kFloat32, Data::kNormal, 0.0, 1.0,
                            1.0f, 0, all.size()));
  }
  for (const cuda::Device& device : {kDevices[1], kDevices[0]}) {
    if (step > 1 && device.multiprocessors > 1) continue;
    std::vector<std::vector<State>> runs;
    for (uint64_t seed = 0; seed < 2; ++seed) {
      std::vector<State>& states = runs.emplace_back();
      std::vector<UpdateParams> params;
      states.reserve(all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const bool counts = i % 4 != 0;
        const TestBins &t = counts ? tensor : none, &c = counts ? channel : none;
        states.emplace_back(channels_of(all[i]), t.host, c.host);
        params.push_back(params_of(all[i], states.back(), t.device, c.device));
        if (i % 2 == 0 && all[i].scale == scale) {
          params.back().scale = 1.0f;
          params.back().device_scale = &scale;
        }
      }
      simt::shared_limit = device.shared_bytes;
      simt::seed(seed);
      const int64_t count = static_cast<int64_t>(params.size());
      TestLender lender;
      for (int times = 0; times < 2; ++times) {
        cuda::update_many(device, params.data(), count, lender, nullptr);
      }
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const bool counts = i % 4 != 0;
      const TestBins &t = counts ? tensor : none, &c = counts ? channel : none;
      check_state(all[i], runs[0][i], t.host, c.host, bounds_of(all[i].dtype), 2);
      CHECK(runs[0][i] == runs[1][i], "many at once: %s, order", all[i].name.c_str());
    }
    TestLender lender;
    cuda::update_many(device, nullptr, 0, lender, nullptr);
  }
}

// Columns of which no tile is a part, whose first rows have another mean than the others: what is
// summed once more is not counted once more.
void test_second_attempts() {
  const TestBins tensor = TestBins::log(3, -127, 127), channel = TestBins::uniform(64, -4.0, 60.0);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const double size : {1.0, 1e-4}) {
      const Case c = make_case({"jumping columns", {4096, 16}, {16, 1}, 1}, dtype, Data::kJumping,
                               0.0, size, 1.0f, 0, 1);
      for (const cuda::Device& device : kDevices) check_case(c, tensor, channel, device, 3);
    }
  }
}

// Elements further than 2^31 elements, and bytes, apart; and seen more than 2^31 times.
void test_large_offsets() {
  constexpr int64_t kFar = (int64_t{1} << 31) + 4;
  const struct {
    const char* name;
    std::vector<int64_t> sizes, strides;
    int channel_dim;
  } far[] = {{"far rows", {3, 40}, {kFar, 1}, 0},
             {"far channels", {40, 3}, {1, kFar}, 1},
             {"far columns", {3, 40}, {kFar, 1}, 1},
             {"far elements", {3}, {kFar}, -1},
             {"far rows of one channel", {3, 5000}, {kFar, 1}, -1},
             {"far planes", {3, 2, 2500}, {kFar, 2500, 1}, 1}};
  constexpr size_t kBytes = static_cast<size_t>(2 * kFar + 8192) * sizeof(uint16_t);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED, "%zu bytes of zeros", kBytes);
  if (memory == MAP_FAILED) return;
  auto* elements = static_cast<uint16_t*>(memory);
  for (const int64_t row : {0, 1, 2}) {
    for (int64_t i = 0; i < 6000; ++i) {
      elements[row * kFar + i] = static_cast<uint16_t>(0x3f80 + (row * 131 + i * 7) % 200);
    }
  }
  for (const auto& shape : far) {
    // The definition reads a copy, whose rows lie close together.
    Case c{shape.name, DType::kBFloat16, shape.sizes, shape.strides, shape.channel_dim, 1.0f, {}};
    c.memory.resize(3 * 6000 * sizeof(uint16_t));
    for (const int64_t row : {0, 1, 2}) {
      std::memcpy(c.memory.data() + row * 12000, elements + row * kFar, 12000);
    }
    for (int64_t& stride : c.strides) stride = stride == kFar ? 6000 : stride;
    for (const cuda::Device& device : kDevices) {
      const TestBins &tensor = tensor_bins()[1], &channel = channel_bins()[3];
      State state(channels_of(c), tensor.host, channel.host);
      UpdateParams params = params_of(c, state, tensor.device, channel.device);
      params.data = memory;
      params.view = channel_view(shape.sizes.data(), shape.strides.data(),
                                 static_cast<int>(shape.sizes.size()), shape.channel_dim);
      simt::shared_limit = device.shared_bytes;
      TestLender lender;
      cuda::update(device, params, lender, nullptr);
      check_state(c, state, tensor.host, channel.host);
    }
  }
  munmap(memory, kBytes);
}

void test_expanded_beyond_32_bits() {
  constexpr int64_t kTimes = int64_t{1} << 40;
  const Case c = make_case({"expanded", {3, 9}, {9, 1}, 0}, DType::kFloat32, Data::kNonFinite, 0.0,
                           1.0, 1.0f, 0, 1);
  Case expanded = c;
  expanded.sizes = {1 << 20, 3, 1 << 20, 9};
  expanded.strides = {0, 9, 0, 1};
  expanded.channel_dim = 1;
  for (const cuda::Device& device : kDevices) {
    const TestBins &tensor = tensor_bins()[1], &channel = channel_bins()[3];
    check_state(c, accumulated(expanded, tensor, channel, device, 1), tensor.host, channel.host, {},
                kTimes);
  }
}

// More bins than any shared memory has room for.
void test_many_bins() {
  const TestBins many = TestBins::uniform(1 << 17, -4.0, 4.0), wide = TestBins::log(7, -127, 127);
  for (const Shape& shape : {Shape{"whole", {70001}, {1}, -1}, Shape{"rows", {3, 997}, {997, 1}, 0},
                             Shape{"columns", {333, 40}, {40, 1}, 1}}) {
    const Case c = make_case(shape, DType::kFloat32, Data::kNonFinite, 0.0, 1.0, 1.0f, 0, 1);
    for (const cuda::Device& device : {kDevices[0], kDevices[1]}) {
      check_case(c, many, wide, device, 4);
      check_case(c, wide, many, device, 4);
    }
  }
}

// Channels last: a thread of the last block merges few partial results of a channel one after
// another, whatever the number of channels.
void test_merges_are_few() {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t channels : {4, 16, 40, 64, 256, 768, 1024, 4096, 16384}) {
      const int64_t sizes[] = {(int64_t{1} << 28) / channels, channels};
      const int64_t strides[] = {channels, 1};
      UpdateParams p{};
      p.dtype = dtype;
      p.view = channel_view(sizes, strides, 2, 1);
      const cuda::Plan plan = cuda::make_plan(kDevices[0], p, true);
      const int64_t across = std::min<int64_t>(channels, plan.item.slots.divisor * cuda::kOwned);
      const int64_t merges =
          cuda::ceil_div(plan.item.splits(), std::max<int64_t>(1, cuda::kBlock / across));
      // Of one or two blocks, as narrow as memory reads well, there are as many splits as ever.
      CHECK(merges <= (channels > 2 * cuda::kLeastColumns ? 8 : 17), "%lld channels: %lld merges",
            static_cast<long long>(channels), static_cast<long long>(merges));
      const bool fills = plan.item.blocks >= kDevices[0].multiprocessors;
      CHECK(fills, "%lld channels: %d blocks", static_cast<long long>(channels), plan.item.blocks);
    }
  }
}

// Zeros of both signs share the table of patterns with the tiniest values, and are told from them.
void test_zeros() {
  const struct {
    DType dtype;
    std::vector<uint32_t> bits;
  } all[] = {{DType::kFloat32, {0, 0x80000000, 1, 0x80000001, 0x100, 0x80000100, 0x3f800000}},
             {DType::kBFloat16, {0, 0x8000, 1, 0x8001, 0x10, 0x8010, 0x3f80}},
             {DType::kFloat16, {0, 0x8000, 1, 0x8001, 0x10, 0x8010, 0x3c00}}};
  for (const auto& [dtype, bits] : all) {
    for (const Shape& shape :
         {Shape{"whole", {9000}, {1}, -1}, Shape{"rows", {5, 300}, {300, 1}, 0},
          Shape{"columns", {700, 36}, {36, 1}, 1}}) {
      for (const uint32_t values : {2, 3, 7}) {  // zeros alone, with a tiny value, all
        Case c = make_case(shape, dtype, Data::kNormal, 0.0, 1.0, 1.0f, 0, values);
        const auto size = static_cast<size_t>(element_bytes(dtype));
        for (size_t at = 0, i = values; at < c.memory.size(); at += size, i = i * 31 + 7) {
          std::memcpy(&c.memory[at], &bits[i / 8 % values], size);
        }
        for (const TestBins& bins : {tensor_bins()[2], tensor_bins()[5]}) {
          check_case(c, bins, channel_bins()[3], kDevices[0], values);
        }
      }
    }
  }
}

void test_samples() {
  const uint64_t step = every();
  std::mt19937_64 random(5);
  uint64_t seed = 0;
  for (const Shape& shape : all_shapes()) {
    for (const DType dtype : kDTypes) {
      const TestBins& tensor = pick(tensor_bins(), random);
      const TestBins& channel = pick(channel_bins(), random);
      const cuda::Device& device = pick(kDevices, random);
      const bool skipped = random() % (3 * step) != 0;
      ++seed;
      if (skipped) continue;
      const float scale = seed % 5 == 0 ? 3.0f : 1.0f;
      const Case c = make_case(shape, dtype, pick(kDatas, random), 0.0, 1.0, scale,
                               static_cast<int64_t>(seed % 3), seed);
      const auto n = static_cast<int64_t>(seed);
      check_sample(c, tensor, channel, device, {n * 1000003, 1 + n % 9, 1 + n % 4});
    }
  }
  // Large enough for a share of their own choice, dense and with gaps.
  for (const Shape& shape : {Shape{"whole", {270001}, {1}, -1},
                             Shape{"channels last", {3, 36, 50, 40}, {72000, 1, 1440, 36}, 1},
                             Shape{"with gaps", {400, 500}, {513, 1}, 0}}) {
    const Case c = make_case(shape, DType::kBFloat16, Data::kMostlyZero, 0.0, 1.0, 1.0f, 0, ++seed);
    check_sample(c, tensor_bins()[2], channel_bins()[0], kDevices[0], {int64_t{1} << 40, 0, 0});
  }
  // The last block, the only one of its group, ends anywhere in a vector.
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int64_t n = 129; n <= 145; ++n) {
      const Case c = make_case({"whole", {n}, {1}, -1}, dtype, Data::kNormal, 0.0, 1.0, 1.0f, 0, 7);
      check_sample(c, tensor_bins()[2], channel_bins()[0], kDevices[0], {3, 2, 1});
    }
  }
}

// Tensors share a launch; each has a sample of its own.
void test_samples_of_many() {
  const TestBins &tensor = tensor_bins()[2], &channel = channel_bins()[0];
  const int64_t sampling[kSamplingColumns] = {5, 3, 2};
  std::vector<Case> all;
  for (const Shape& shape :
       {Shape{"rows", {33, 100}, {100, 1}, 0}, Shape{"transposed", {40, 90}, {1, 40}, 0},
        Shape{"columns", {50, 64}, {64, 1}, 1}, Shape{"short rows", {12, 31}, {31, 1}, 0}}) {
    all.push_back(make_case(shape, DType::kFloat32, Data::kNormal, 0.0, 1.0, 1.0f, 0, all.size()));
  }
  std::vector<State> states;
  std::vector<UpdateParams> params;
  states.reserve(all.size());
  for (const Case& c : all) {
    states.emplace_back(channels_of(c), tensor.host, channel.host);
    params.push_back(sampled_params(c, states.back(), tensor.device, channel.device, sampling));
  }
  simt::shared_limit = kDevices[0].shared_bytes;
  const auto count = static_cast<int64_t>(params.size());
  TestLender lender;
  cuda::update_many(kDevices[0], params.data(), count, lender, nullptr);
  for (size_t i = 0; i < all.size(); ++i) {
    const State alone = accumulated(all[i], tensor, channel, kDevices[0], 1, 1, nullptr, sampling);
    CHECK(states[i] == alone, "samples of many: %s", all[i].name.c_str());
  }
}

// Where the word says that the step is not recorded, as it may in graphs, neither the tensor is
// read, whose memory is nobody's here, nor a state or the workspace changed.
void test_steps_that_are_not_recorded() {
  const TestBins &tensor = tensor_bins()[2], &channel = channel_bins()[0];
  int64_t recorded = 0;
  for (const Shape& shape :
       {Shape{"whole", {300001}, {1}, -1}, Shape{"rows", {33, 100}, {100, 1}, 0},
        Shape{"columns", {500, 64}, {64, 1}, 1}, Shape{"odd columns", {501, 61}, {61, 1}, 1},
        Shape{"few columns", {500, 3}, {3, 1}, 1}, Shape{"maps", {64, 24, 49}, {1176, 49, 1}, 1},
        Shape{"transposed", {40, 90}, {1, 40}, 0}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32}) {
      const Case c = make_case(shape, dtype, Data::kNormal, 0.0, 1.0, 1.0f, 0, 1);
      State state(channels_of(c), tensor.host, channel.host);
      const State before = state;
      UpdateParams params[2] = {params_of(c, state, tensor.device, channel.device), {}};
      const void* const data = params[0].data;
      params[0].recorded = &recorded;
      TestLender lender;
      simt::shared_limit = kDevices[0].shared_bytes;
      recorded = 0;
      params[0].data = reinterpret_cast<const void*>(uintptr_t{1} << 20);
      params[1] = params[0];
      cuda::update(kDevices[0], params[0], lender, nullptr);
      cuda::update_many(kDevices[0], params, 2, lender, nullptr);
      bool is_clear = true;
      for (const auto& memory : lender.memories) {
        for (const uint64_t word : memory) is_clear = is_clear && word == 0;
      }
      CHECK(state == before && is_clear, "%s: changed in a step that is not recorded",
            c.name.c_str());
      recorded = 1;
      params[0].data = data;
      cuda::update(kDevices[0], params[0], lender, nullptr);
      CHECK(state == accumulated(c, tensor, channel, kDevices[0], 1), "%s: recorded",
            c.name.c_str());
    }
  }
}

void test_errors() {
  const Case c =
      make_case({"whole", {300001}, {1}, -1}, DType::kFloat32, Data::kNormal, 0.0, 1.0, 1.0f, 0, 1);
  const TestBins none;
  State state(1, none.host, none.host);
  const State before = state;
  const UpdateParams params = params_of(c, state, none.device, none.device);
  bool refused = false;
  try {
    struct : cuda::Lender {
      cuda::Workspace lend(size_t) override { return {nullptr, 0}; }
    } lender;
    cuda::update(kDevices[0], params, lender, nullptr);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused && state == before, "a workspace that is too small");
}

}  // namespace

int main() {
  if (simt::observer != nullptr) std::printf("looking for races\n");
  test_shapes();
  test_random_shapes();
  test_orders();
  test_device_scale();
  test_many();
  test_second_attempts();
  test_large_offsets();
  test_expanded_beyond_32_bits();
  test_many_bins();
  test_merges_are_few();
  test_zeros();
  test_samples();
  test_samples_of_many();
  test_steps_that_are_not_recorded();
  test_errors();
  return check::finish("kernels");
}
