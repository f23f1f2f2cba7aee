// The arguments of update_ and update_many_: checked for any device, and filled into UpdateParams.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "core/update_params.h"

namespace hookstats {

// The device that all tensors of a call have to be on; `cuda` is its index, -1 for the CPU.
struct Place {
  int32_t cuda = -1;

  bool has(const torch::stable::Tensor& t) const {
    return cuda < 0 ? t.is_cpu() : t.is_cuda() && t.get_device_index() == cuda;
  }
};

// As errors name it: "CPU", "cuda:0".
std::ostream& operator<<(std::ostream& out, const Place& place);

// An argument as errors name it: "moments", or "moments[3]" where it is one of a list.
struct Name {
  const char* argument;
  int64_t index = -1;
};

std::ostream& operator<<(std::ostream& out, const Name& name);

std::string shape_of(const torch::stable::Tensor& t);

// One tensor and the state it goes to; null where there is no histogram.
struct Fold {
  const torch::stable::Tensor& x;
  const torch::stable::Tensor& moments;
  const torch::stable::Tensor& tallies;
  const torch::stable::Tensor* counts;
  const torch::stable::Tensor* channel_counts;
};

// What update_many_ takes: the i-th of every list is one fold.
struct Folds {
  const std::vector<torch::stable::Tensor>& xs;
  const std::vector<torch::stable::Tensor>& moments;
  const std::vector<torch::stable::Tensor>& tallies;
  const std::vector<torch::stable::Tensor>& counts;
  const std::vector<torch::stable::Tensor>& channel_counts;
};

// Checks one fold. `index` is its place in the lists, or -1.
UpdateParams check(const Fold& fold, const Place& place, std::optional<int64_t> channel_dim,
                   const Bins& bins, const Bins& channel_bins, int64_t index = -1);

// Checks all of them, whose states share no memory.
std::vector<UpdateParams> check(const Folds& folds, const Place& place,
                                std::optional<int64_t> channel_dim, const Bins& bins,
                                const Bins& channel_bins);

// That lists are as long as they have to be, with bins or without, before anything is read.
void check_lengths(const Folds& folds, bool bins, bool channel_bins);

// That of either histogram there are both its counts and its bins, or neither.
void check_pairs(bool counts, bool bins, bool channel_counts, bool channel_bins);

// Log bins from their descriptor, int32 [3], which is on the CPU whatever the device.
Bins read_log_bins(const torch::stable::Tensor& bins, const char* name);

// That bins are a contiguous tensor of one dimension: float32 edges at `place`, or int32 [3].
void check_bins(const torch::stable::Tensor& bins, const char* name, const Place& place);

void check_scale(const torch::stable::Tensor& scale, const Place& place);

}  // namespace hookstats
