// Masks in the CUDA kernels' own source, emulated: the statistics of the kept rows, against an fp64
// definition on a copy of these rows, and the CPU kernels.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/kept_rows.h"
#include "cuda/kept.cuh"
#include "cuda/update.h"
#include "kernel_cases.h"
#include "simt.h"

using namespace kernel_cases;

namespace {

// A tensor and the shape of a mask that covers its first dimension or two.
struct MaskedShape {
  Shape shape;
  std::vector<int64_t> mask;
};

const std::vector<MaskedShape> kMaskedShapes = {
    {{"columns, 36", {6, 70, 36}, {2520, 36, 1}, 2}, {6, 70}},
    {{"columns, 33", {5, 40, 33}, {1320, 33, 1}, 2}, {5, 40}},
    {{"columns, joined rows", {420, 64}, {64, 1}, 1}, {6, 70}},
    {{"columns, 260, in splits", {4, 900, 260}, {234000, 260, 1}, 2}, {4, 900}},
    {{"columns, a row for each sequence", {9, 50, 40}, {2000, 40, 1}, 2}, {9}},
    {{"columns of heads", {3, 20, 5, 16}, {1600, 80, 16, 1}, 3}, {3, 20}},
    {{"columns, time first", {8, 60, 32}, {32, 256, 1}, 2}, {8, 60}},
    {{"columns with gaps", {4, 31, 20}, {1500, 40, 2}, 2}, {4, 31}},
    {{"whole, rows of 96", {5, 64, 96}, {6144, 96, 1}, -1}, {5, 64}},
    {{"whole, rows of 33", {5, 64, 33}, {2112, 33, 1}, -1}, {5, 64}},
    {{"whole, joined rows of 520", {300, 520}, {520, 1}, -1}, {3, 100}},
    {{"whole, long rows", {3, 20000}, {20000, 1}, -1}, {3}},
    {{"whole, rows of one", {7, 130}, {130, 1}, -1}, {7, 130}},
    {{"whole, with gaps", {4, 30, 50}, {4000, 70, 1}, -1}, {4, 30}},
    {{"whole, every other", {4, 30, 50}, {4000, 120, 2}, -1}, {4, 30}},
    {{"heads", {4, 25, 6, 40}, {6000, 240, 40, 1}, 2}, {4, 25}},
    {{"channels first", {6, 5, 49}, {245, 49, 1}, 1}, {6}},
    {{"channels first, long", {6, 3, 4500}, {13500, 4500, 1}, 1}, {6}},
    {{"channels last", {6, 20, 7, 9}, {1260, 1, 180, 20}, 1}, {6}},
    {{"expanded rows", {6, 40, 36}, {36, 0, 1}, 2}, {6, 40}},
    {{"expanded elements", {6, 20, 7, 36}, {720, 36, 0, 1}, 3}, {6, 20}},
    {{"one row", {1, 1, 100}, {100, 100, 1}, 2}, {1, 1}},
};

constexpr const char* kMasks[] = {"right", "left", "random", "all", "none", "every other", "one"};

// Of each row whether it is kept; what is kept is not the same byte everywhere.
std::vector<uint8_t> mask_of(const std::string& kind, const std::vector<int64_t>& sizes,
                             std::mt19937_64& random) {
  const int64_t length = sizes.back(), lines = sizes.size() == 2 ? sizes[0] : 1;
  std::vector<uint8_t> flags(static_cast<size_t>(lines * length));
  for (int64_t line = 0; line < lines; ++line) {
    const auto kept = static_cast<int64_t>(random() % static_cast<uint64_t>(length + 1));
    for (int64_t i = 0; i < length; ++i) {
      const bool yes = kind == "right"    ? i < kept
                       : kind == "left"   ? i >= kept
                       : kind == "random" ? random() % 3 != 0
                       : kind == "all"    ? true
                       : kind == "none"   ? false
                       : kind == "one"    ? line == lines / 2 && i == length / 3
                                          : i % 2 == 1;
      flags[static_cast<size_t>(line * length + i)] = yes ? static_cast<uint8_t>(1 + i % 7) : 0;
    }
  }
  return flags;
}

// A copy of the kept rows alone: [rows, ...].
Case unpadded(const Case& c, const std::vector<uint8_t>& flags, size_t masked) {
  Case copy{c.name, c.dtype, {0}, {}, -1, c.scale, {}};
  if (c.channel_dim >= 0) copy.channel_dim = c.channel_dim - static_cast<int>(masked) + 1;
  int64_t inner = 1;
  for (size_t d = masked; d < c.sizes.size(); ++d) {
    copy.sizes.push_back(c.sizes[d]);
    inner *= c.sizes[d];
  }
  const int64_t bytes = element_bytes(c.dtype);
  for (size_t row = 0; row < flags.size(); ++row) {
    if (flags[row] == 0) continue;
    ++copy.sizes[0];
    for (int64_t i = 0; i < inner; ++i) {
      int64_t left = static_cast<int64_t>(row) * inner + i, offset = 0;
      for (size_t d = c.sizes.size(); d-- > 0;) {
        offset += left % c.sizes[d] * c.strides[d];
        left /= c.sizes[d];
      }
      const char* const at = c.data() + offset * bytes;
      copy.memory.insert(copy.memory.end(), at, at + bytes);
    }
  }
  copy.strides.resize(copy.sizes.size());
  int64_t stride = 1;
  for (size_t d = copy.sizes.size(); d-- > 0; stride *= copy.sizes[d]) copy.strides[d] = stride;
  return copy;
}

// What a case and its mask are accumulated with.
struct Setting {
  const TestBins& tensor;
  const TestBins& channel;
  const cuda::Device& device;
  const int64_t* sampling;
};

UpdateParams masked_params(const Case& c, State& state, const Bins& tensor, const Bins& channel,
                           const int64_t* sampling, const KeptRows& kept) {
  UpdateParams params = params_of(c, state, tensor, channel);
  const auto dims = static_cast<int>(c.sizes.size());
  const int masked = covered_dims(kept, c.sizes.data(), dims, c.channel_dim);
  CHECK(masked > 0, "%s: the mask fits", c.name.c_str());
  params.view = channel_view(c.sizes.data(), c.strides.data(), dims, c.channel_dim, &kept, masked);
  params.sampling = sampling;
  return params;
}

State on_device(const Case& c, KeptRows kept, const std::vector<uint8_t>& flags,
                const Setting& with, uint64_t seed, int times = 1) {
  kept.flags = flags.data();
  kept.count = kept.total();
  simt::shared_limit = with.device.shared_bytes;
  simt::seed(seed);
  State state(channels_of(c), with.tensor.host, with.channel.host);
  const UpdateParams params =
      masked_params(c, state, with.tensor.device, with.channel.device, with.sampling, kept);
  TestLender lender;
  for (int i = 0; i < times; ++i) cuda::update(with.device, params, lender, nullptr);
  return state;
}

State on_cpu(const Case& c, KeptRows kept, const std::vector<uint8_t>& flags, const Setting& with) {
  std::vector<int64_t> rows(flags.size() + 1);
  const int64_t dense[] = {kept.sizes[kept.dims - 1], 1};
  kept.count = keep_rows(flags.data(), kept.sizes, dense + (2 - kept.dims), kept.dims, rows.data());
  kept.rows = rows.data();
  State state(channels_of(c), with.tensor.host, with.channel.host);
  cpu::update(masked_params(c, state, with.tensor.host, with.channel.host, with.sampling, kept),
              serial);
  return state;
}

void check_mask(const Case& c, const MaskedShape& shape, const std::vector<uint8_t>& flags,
                const Setting& with, uint64_t seed) {
  KeptRows kept;
  kept.dims = static_cast<int>(shape.mask.size());
  std::copy(shape.mask.begin(), shape.mask.end(), kept.sizes);
  const auto dims = static_cast<int>(c.sizes.size());
  const auto masked = static_cast<size_t>(covered_dims(kept, c.sizes.data(), dims, c.channel_dim));
  try {
    const State got = on_device(c, kept, flags, with, seed);
    CHECK(on_device(c, kept, flags, with, ~seed) == got, "%s: order", c.name.c_str());
    const State cpu = on_cpu(c, kept, flags, with);
    CHECK(got.tallies == cpu.tallies, "%s: tallies unlike the CPU's", c.name.c_str());
    CHECK(got.tensor_counts == cpu.tensor_counts && got.channel_counts == cpu.channel_counts,
          "%s: histograms unlike the CPU's", c.name.c_str());
    if (with.sampling != nullptr) return;
    const Case copy = unpadded(c, flags, masked);
    check_state(copy, got, with.tensor.host, with.channel.host, bounds_of(c.dtype));
    if (seed % 4 != 0) return;
    const State three = on_device(c, kept, flags, with, seed, 3);
    check_state(copy, three, with.tensor.host, with.channel.host, bounds_of(c.dtype), 3);
  } catch (const std::exception& error) {
    CHECK(false, "%s: %s", c.name.c_str(), error.what());
  }
}

void test_masks() {
  constexpr DType kMost[] = {DType::kFloat32, DType::kBFloat16, DType::kBFloat16, DType::kFloat16,
                             DType::kFloat32, DType::kInt32,    DType::kFloat64};
  const uint64_t step = every();
  std::mt19937_64 random(7);
  uint64_t seed = 0;
  for (const MaskedShape& shape : kMaskedShapes) {
    for (const char* const kind : kMasks) {
      for (const bool sampled : {false, false, true}) {
        const std::vector<uint8_t> flags = mask_of(kind, shape.mask, random);
        const TestBins& tensor = pick(tensor_bins(), random);
        const TestBins& channel = pick(channel_bins(), random);
        const cuda::Device& device = pick(kDevices, random);
        const double means[] = {0.0, 0.0, 100.0};
        const Data data = random() % 2 == 0 ? Data::kNormal : pick(kDatas, random);
        const DType dtype = pick(kMost, random);
        const int64_t front = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 16);
        const double mean = pick(means, random);
        if (++seed % step != 0) continue;
        const auto n = static_cast<int64_t>(seed);
        const int64_t sampling[kSamplingColumns] = {n * 1000003, n % 5, 1 + n % 4};
        Case c = make_case(shape.shape, dtype, data, mean, 1.0, seed % 5 == 0 ? 3.0f : 1.0f, front,
                           seed);
        c.name += std::string(", mask ") + kind + (sampled ? ", sampled" : "");
        check_mask(c, shape, flags, {tensor, channel, device, sampled ? sampling : nullptr}, seed);
      }
    }
  }
}

// What no mask keeps may be anything, and is not even read: its memory may be gone.
void test_padding_is_not_read() {
  const MaskedShape shape{{"rows", {4, 64, 64}, {4096, 64, 1}, 2}, {4, 64}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int channel_dim : {2, -1}) {
      MaskedShape of = shape;
      of.shape.channel_dim = channel_dim;
      std::vector<uint8_t> flags(256, 1);
      std::fill(flags.begin() + 200, flags.end(), uint8_t{0});
      Case c = make_case(of.shape, dtype, Data::kNormal, 0.0, 1.0, 1.0f, 0, 3);
      // Of memory that ends with the last kept row, AddressSanitizer tells.
      c.memory.resize(c.memory.size() / 256 * 200);
      c.memory.shrink_to_fit();
      check_mask(c, of, flags, {tensor_bins()[2], channel_bins()[0], kDevices[3], nullptr}, 1);
    }
  }
}

// A split with rows that are not kept is read ahead up to the end of those that are, of which a
// thread sums no more than some at a time.
void test_long_sequences() {
  const MaskedShape shape{{"long sequences", {2, 2500, 64}, {160000, 64, 1}, 2}, {2, 2500}};
  std::vector<uint8_t> flags(5000);
  std::fill_n(flags.begin(), 2400, uint8_t{1});
  std::fill_n(flags.begin() + 2600, 2300, uint8_t{1});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Case c = make_case(shape.shape, dtype, Data::kNormal, 0.0, 1.0, 1.0f, 0, 5);
    check_mask(c, shape, flags, {tensor_bins()[2], channel_bins()[0], kDevices[1], nullptr}, 1);
  }
}

// Outer indices of more than 32 bits belong to the rows that they do by definition.
void test_rows_of_outer_indices() {
  constexpr int64_t kOne = 1;
  for (const int64_t row_outer : {kOne, kOne * 3, kOne << 20, (kOne << 31) - 1, kOne << 33}) {
    for (int64_t row = 0; row < 5; ++row) {
      uint8_t flags[5] = {};
      flags[row] = 2;
      const cuda::RowFlags rows{
          flags, 1, row_outer,
          cuda::make_divisor(static_cast<uint32_t>(std::min(row_outer, cuda::kMostDivided)))};
      for (const int64_t outer : {row * row_outer, (row + 1) * row_outer - 1}) {
        CHECK(cuda::keeps(rows, outer), "index %ld is of row %ld", static_cast<long>(outer),
              static_cast<long>(row));
      }
      if (row > 0) CHECK(!cuda::keeps(rows, row * row_outer - 1), "the row before %ld", row);
    }
  }
}

HOOKSTATS_KERNEL void find_kept(cuda::RowFlags rows, int64_t begin, uint32_t from, uint32_t to,
                                cuda::KeptIndices* found) {
  found[cuda::thread_index()] = cuda::kept_by_warp(rows, begin, from, to);
}

// Flags that begin and end anywhere in vectors, of rows of some outer indices each.
void test_kept_indices() {
  std::mt19937_64 random(3);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int i = 0; i < 400; ++i) {
    const int64_t off = below(17), flags = 1 + below(i % 4 == 0 ? 5000 : 70);
    const int64_t row_outer = i % 3 == 0 ? 1 + below(9) : 1;
    std::vector<uint8_t> memory(static_cast<size_t>(off + flags));
    const int64_t share = 1 + below(40);
    for (uint8_t& flag : memory)
      flag = below(share) == 0 ? static_cast<uint8_t>(1 + below(255)) : 0;
    const cuda::RowFlags rows{memory.data() + off, 1, row_outer,
                              cuda::make_divisor(static_cast<uint32_t>(row_outer))};
    const int64_t begin = below(flags * row_outer), left = flags * row_outer - begin;
    const auto from = static_cast<uint32_t>(below(left + 1));
    const auto to = from + static_cast<uint32_t>(below(left - from + 1));
    cuda::KeptIndices expected{0, cuda::kNoIndex, 0};
    for (uint32_t index = from; index < to; ++index) {
      if (cuda::keeps(rows, begin + index)) expected.add({1, index, index + 1});
    }
    cuda::KeptIndices found[cuda::kWarp];
    launch(find_kept, {1, cuda::kWarp}, rows, begin, from, to, found);
    for (const cuda::KeptIndices& each : found) {
      CHECK(
          each.count == expected.count && each.first == expected.first && each.end == expected.end,
          "%ld flags of %ld from %ld on, [%u, %u): %u of [%u, %u), not %u of [%u, %u)",
          static_cast<long>(flags), static_cast<long>(row_outer), static_cast<long>(begin), from,
          to, each.count, each.first, each.end, expected.count, expected.first, expected.end);
    }
  }
}

// Many tensors at once: those of a mask are as one by one, and the others share launches.
void test_masks_of_many() {
  const TestBins &tensor = tensor_bins()[2], &channel = channel_bins()[0];
  std::mt19937_64 random(9);
  std::vector<Case> all;
  std::vector<std::vector<uint8_t>> flags;
  std::vector<State> states;
  std::vector<UpdateParams> params;
  const int64_t sizes[] = {3, 40};
  KeptRows kept;
  kept.dims = 2;
  std::copy_n(sizes, 2, kept.sizes);
  kept.count = kept.total();
  for (uint64_t i = 0; i < 6; ++i) {
    all.push_back(make_case({"columns", {3, 40, 32}, {1280, 32, 1}, 2}, DType::kFloat32,
                            Data::kNormal, 0.0, 1.0, 1.0f, 0, i));
    flags.push_back(mask_of("random", {3, 40}, random));
  }
  states.reserve(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    states.emplace_back(channels_of(all[i]), tensor.host, channel.host);
    if (i % 2 == 0) {
      params.push_back(params_of(all[i], states[i], tensor.device, channel.device));
    } else {
      kept.flags = flags[i].data();
      params.push_back(
          masked_params(all[i], states[i], tensor.device, channel.device, nullptr, kept));
    }
  }
  const cuda::Device& device = kDevices[0];
  simt::shared_limit = device.shared_bytes;
  const auto count = static_cast<int64_t>(params.size());
  TestLender lender;
  cuda::update_many(device, params.data(), count, lender, nullptr);
  for (size_t i = 0; i < all.size(); ++i) {
    const Setting with{tensor, channel, device, nullptr};
    const State alone = i % 2 == 0 ? accumulated(all[i], tensor, channel, device, 1)
                                   : on_device(all[i], kept, flags[i], with, 1);
    CHECK(states[i] == alone, "masks of many: %zu", i);
  }
}

}  // namespace

int main() {
  if (simt::observer != nullptr) std::printf("looking for races\n");
  test_masks();
  test_padding_is_not_read();
  test_long_sequences();
  test_rows_of_outer_indices();
  test_kept_indices();
  test_masks_of_many();
  return check::finish("masks");
}
