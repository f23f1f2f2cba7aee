// update_ and update_many_ for any backend: check the arguments, fill the parameters, call the
// kernels.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <vector>

#include "ops/arguments.h"
#include "ops/kernels.h"

namespace hookstats {

// A backend is what differs between device types:
//
//   static Place place(const Tensor& x);  // where all tensors of a call must be that has this x
//   static Bins linear(const Tensor& edges, Histogram);  // checked edges, as the kernels read them
//   static void divide(UpdateParams&, const Tensor& scale);  // sets a checked scale
//   // A checked mask, as the kernels read it; it lasts as `copy` does, and until the thread's next
//   // call.
//   static KeptRows keep(const Tensor& mask, KeptRows shape, std::optional<Tensor>& copy);
//   static constexpr Kernels kernels{...};

// Which of a call's two histograms bins are for.
enum class Histogram { kTensor, kChannel };

inline const char* bins_argument(Histogram histogram) {
  return histogram == Histogram::kTensor ? "bins" : "channel_bins";
}

template <class Backend>
Bins read_bins(const std::optional<torch::stable::Tensor>& bins, Histogram histogram,
               const Place& place) {
  if (!bins.has_value()) return {};
  const char* const name = bins_argument(histogram);
  check_bins(*bins, name, place);
  return bins->scalar_type() == torch::headeronly::ScalarType::Float
             ? Backend::linear(*bins, histogram)
             : read_log_bins(*bins, name);
}

template <class Backend>
Counting read_counting(const std::optional<torch::stable::Tensor>& bins,
                       const std::optional<torch::stable::Tensor>& channel_bins,
                       const std::optional<torch::stable::Tensor>& sampling, const Place& place) {
  return {read_bins<Backend>(bins, Histogram::kTensor, place),
          read_bins<Backend>(channel_bins, Histogram::kChannel, place),
          read_sampling(sampling, place)};
}

template <class Backend>
void launch(const UpdateParams* params, int64_t count, int32_t device) {
  Backend::kernels.update(params, count, device, is_captured(Backend::kernels, device));
}

template <class Backend>
void update(const torch::stable::Tensor& x, std::optional<int64_t> channel_dim,
            torch::stable::Tensor moments, torch::stable::Tensor tallies,
            std::optional<torch::stable::Tensor> counts, std::optional<torch::stable::Tensor> bins,
            std::optional<torch::stable::Tensor> channel_counts,
            std::optional<torch::stable::Tensor> channel_bins,
            std::optional<torch::stable::Tensor> sampling,
            std::optional<torch::stable::Tensor> mask) {
  check_pairs(counts.has_value(), bins.has_value(), channel_counts.has_value(),
              channel_bins.has_value());
  const Place place = Backend::place(x);
  KeptRows kept;
  std::optional<torch::stable::Tensor> copy;
  if (mask.has_value()) kept = Backend::keep(*mask, check_mask(*mask, place), copy);
  const Accumulation one{x, moments, tallies, counts ? &*counts : nullptr,
                         channel_counts ? &*channel_counts : nullptr};
  const Counting counting = read_counting<Backend>(bins, channel_bins, sampling, place);
  const UpdateParams params =
      check(one, place, channel_dim, counting, -1, mask.has_value() ? &kept : nullptr);
  launch<Backend>(&params, 1, place.index);
}

template <class Backend>
void update_many(std::vector<torch::stable::Tensor> xs, std::optional<int64_t> channel_dim,
                 std::vector<torch::stable::Tensor> moments,
                 std::vector<torch::stable::Tensor> tallies,
                 std::vector<torch::stable::Tensor> counts,
                 std::optional<torch::stable::Tensor> bins,
                 std::vector<torch::stable::Tensor> channel_counts,
                 std::optional<torch::stable::Tensor> channel_bins,
                 std::optional<torch::stable::Tensor> scale,
                 std::optional<torch::stable::Tensor> sampling) {
  const Accumulations all{xs, moments, tallies, counts, channel_counts};
  check_lengths(all, bins.has_value(), channel_bins.has_value());
  if (xs.empty()) return;
  const Place place = Backend::place(xs[0]);
  const Counting counting = read_counting<Backend>(bins, channel_bins, sampling, place);
  if (scale.has_value()) check_scale(*scale, place);
  std::vector<UpdateParams> params = check(all, place, channel_dim, counting);
  if (scale.has_value()) {
    for (UpdateParams& each : params) Backend::divide(each, *scale);
  }
  launch<Backend>(params.data(), static_cast<int64_t>(params.size()), place.index);
}

}  // namespace hookstats
