// Sampled histograms against their definition, element by element, in every layout; and the same
// counts from any number of threads, beside occupancy and sums that are those of whole histograms.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cases.h"
#include "check.h"
#include "core/occupancy.h"
#include "core/sample.h"
#include "cpu/update.h"
#include "parallel.h"

using namespace cases;

namespace {

// Whether `sample` counts the element at a position: its group's block is the element's.
bool has(const Sample& sample, int64_t position) {
  const int64_t block = position / kSampleBlock;
  return sample.block_of(block / sample.every) == block;
}

// What a step along each dimension adds to an element's position, by core/sample.h; 0 where the
// dimension repeats elements.
std::vector<int64_t> steps_of(const Case& c, int64_t& elements) {
  const auto size = [&](size_t d) { return c.sizes[d]; };
  const auto stride = [&](size_t d) { return c.strides[d]; };
  std::vector<size_t> order, inner;  // slowest first
  for (size_t d = 0; d < c.sizes.size(); ++d) {
    if (static_cast<int>(d) != c.channel_dim && size(d) != 1 && stride(d) != 0) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return stride(a) > stride(b); });
  const bool has_channels = c.channel_dim >= 0 && channels_of(c) > 1;
  const auto channel = static_cast<size_t>(std::max(c.channel_dim, 0));
  if (has_channels) {
    while (!order.empty()) {
      const size_t last = order.back();
      if (inner.empty() ? stride(channel) < stride(last)
                        : stride(last) != stride(inner[0]) * size(inner[0])) {
        break;
      }
      inner.insert(inner.begin(), last);
      order.pop_back();
    }
    order.push_back(channel);
    order.insert(order.end(), inner.begin(), inner.end());
  }
  std::vector<int64_t> steps(c.sizes.size());
  elements = 1;
  for (size_t i = order.size(); i-- > 0; elements *= size(order[i])) steps[order[i]] = elements;
  return steps;
}

// What a sample has of each channel, or of the tensor.
std::vector<int64_t> expected_counts(const Case& c, const Bins& bins, int64_t every, int64_t step,
                                     bool by_channel) {
  int64_t elements = 0;
  const std::vector<int64_t> steps = steps_of(c, elements);
  const Sample sample = make_sample(every, step, elements);
  const int64_t rows = by_channel ? channels_of(c) : 1;
  std::vector<int64_t> counts(static_cast<size_t>(rows * bins.slots()));
  int64_t i = 0;
  each_element(c, [&](int64_t channel, double x) {
    int64_t left = i++, position = 0;
    for (size_t d = c.sizes.size(); d-- > 0; left /= c.sizes[d]) {
      position += left % c.sizes[d] * steps[d];
    }
    if (!std::isfinite(x) || !(sample.all() || has(sample, position))) return;
    ++counts[static_cast<size_t>((by_channel ? channel : 0) * bins.slots() + slot(bins, x))];
  });
  return counts;
}

State run(const Case& c, const Bins& tensor_bins, const Bins& channel_bins, const int64_t* sampling,
          cpu::ParallelFor parallel_for, std::vector<int64_t>& occupancy) {
  State state(channels_of(c), tensor_bins, channel_bins);
  UpdateParams params = params_of(c, state, tensor_bins, channel_bins);
  params.view = channel_view(c.sizes.data(), c.strides.data(), static_cast<int>(c.sizes.size()),
                             c.channel_dim);
  params.sampling = sampling;
  occupancy.assign(static_cast<size_t>(mark_columns(tensor_bins.slots())), 0);
  params.tensor_occupancy = occupancy.data();
  cpu::update(params, parallel_for);
  return state;
}

void check_marked(const Case& c, const State& state, const std::vector<int64_t>& occupancy) {
  for (size_t s = 0; s < state.tensor_counts.size(); ++s) {
    const auto at = static_cast<int64_t>(s);
    const int64_t word = occupancy[static_cast<size_t>(1 + at / kWordSlots)];
    const bool marked = (static_cast<uint64_t>(word) >> (at / kOccupancySlots % 64) & 1) != 0;
    CHECK(state.tensor_counts[s] == 0 || marked, "%s: slot %zu has no mark", c.name.c_str(), s);
  }
}

void check_case(const Case& c, const Bins& tensor_bins, const Bins& channel_bins,
                const int64_t (&sampling)[kSamplingColumns]) {
  std::vector<int64_t> occupancy;
  const State state = run(c, tensor_bins, channel_bins, sampling, serial, occupancy);
  check_marked(c, state, occupancy);
  const auto tensor =
      expected_counts(c, tensor_bins, sampling[kTensorEvery], sampling[kStep], false);
  const auto channel =
      expected_counts(c, channel_bins, sampling[kChannelEvery], sampling[kStep], true);
  CHECK(state.tensor_counts == tensor, "%s: tensor's histogram", c.name.c_str());
  CHECK(state.channel_counts == channel, "%s: channels' histograms", c.name.c_str());
  for (const cpu::ParallelFor parallel_for : {threads<2>, threads<5>}) {
    const State again = run(c, tensor_bins, channel_bins, sampling, parallel_for, occupancy);
    CHECK(again == state, "%s: threads", c.name.c_str());
    check_marked(c, again, occupancy);
  }
}

}  // namespace

int main() {
  const uint64_t step = every();
  std::vector<float> edges{-3.0f, -1.0f, 0.0f, 0.25f, 0.5f, 2.0f};
  const Bins linear = linear_bins(edges.data(), 5), log = log_bins(2, -20, 10);
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({"transposed, whole", {300, 700}, {1, 300}, -1});
  shapes.push_back({"transposed, joined", {40, 3000}, {1, 40}, 0});
  shapes.push_back({"channels last, one image", {1, 40, 60, 50}, {120000, 1, 2000, 40}, 1});
  shapes.push_back({"channels last, wide", {2, 900, 11, 13}, {128700, 1, 11700, 900}, 1});
  shapes.push_back({"channels last, 7x7", {60, 40, 7, 7}, {1960, 1, 280, 40}, 1});
  shapes.push_back({"channels last, 3x3", {300, 33, 3, 3}, {297, 1, 99, 33}, 1});
  shapes.push_back({"channels last, 14x14", {7, 200, 14, 14}, {39200, 1, 2800, 200}, 1});
  shapes.push_back({"heads", {3, 4, 50, 16}, {3200, 16, 64, 1}, 3});
  uint64_t seed = 0;
  for (const Shape& shape : shapes) {
    for (const DType dtype : kDTypes) {
      for (const Data data : {Data::kNormal, Data::kMostlyZero, Data::kNonFinite}) {
        if (++seed % step != 0) continue;
        const bool wide = dtype == DType::kFloat32 || dtype == DType::kBFloat16;
        if (!wide && seed % 3 != 0) continue;
        const float scale = seed % 5 == 0 ? 3.0f : 1.0f;
        Case c{shape.name, dtype, shape.sizes, shape.strides, shape.channel_dim, scale, {}};
        c.name += ", dtype " + std::to_string(static_cast<int>(dtype)) + ", data " +
                  std::to_string(static_cast<int>(data));
        fill_memory(c, extent_of(shape), data, 0.0, 1.0, seed);
        const auto n = static_cast<int64_t>(seed);
        const int64_t sampling[kSamplingColumns] = {n * 1000003, 1 + n % 9, n % 4};
        check_case(c, n % 2 == 0 ? log : linear, n % 2 == 0 ? linear : log, sampling);
      }
    }
  }
  return check::finish("sampling");
}
