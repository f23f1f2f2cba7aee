// The arguments of update_ and update_many_: checked for any device, and filled into UpdateParams.
#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "core/update_params.h"

namespace hookstats {

// The device that all tensors of a call must be on.
struct Place {
  torch::headeronly::DeviceType type;
  const char* name;    // of the type, as errors give it
  int32_t index = -1;  // -1: a type that has one device only

  bool has(const torch::stable::Tensor& t) const {
    const torch::stable::Device device = t.device();
    return device.type() == type && (index < 0 || device.index() == index);
  }
};

inline constexpr Place kCpu{torch::headeronly::DeviceType::CPU, "CPU"};

// As errors give it: "CPU", "cuda:0".
std::ostream& operator<<(std::ostream& out, const Place& place);

// An argument as errors name it: "moments", or "moments[3]" for an entry of a list.
struct Name {
  const char* argument;
  int64_t index = -1;
};

std::ostream& operator<<(std::ostream& out, const Name& name);

std::string shape_of(const torch::stable::Tensor& t);

// One tensor and the state that takes it; a pointer is null where there is no such histogram.
struct Accumulation {
  const torch::stable::Tensor& x;
  const torch::stable::Tensor& moments;
  const torch::stable::Tensor& tallies;
  const torch::stable::Tensor* counts;
  const torch::stable::Tensor* channel_counts;
};

// The lists that update_many_ takes: the i-th entries of all lists are one accumulation.
struct Accumulations {
  const std::vector<torch::stable::Tensor>& xs;
  const std::vector<torch::stable::Tensor>& moments;
  const std::vector<torch::stable::Tensor>& tallies;
  const std::vector<torch::stable::Tensor>& counts;
  const std::vector<torch::stable::Tensor>& channel_counts;
};

// The memory of the sampling tensor (core/sample.h), and of its last column where that says whether
// the step is recorded; or null.
struct Sampling {
  const int64_t* values = nullptr;
  const int64_t* recorded = nullptr;
};

// How histograms count: the bins of the tensor's and of the channels', and how these are sampled.
struct Counting {
  Bins bins, channel_bins;
  Sampling sampling;
};

// Checks one accumulation. `index` is the accumulation's place in the lists, or -1 where there are
// no lists; `kept` are the rows that a mask keeps, or null.
UpdateParams check(const Accumulation& one, const Place& place, std::optional<int64_t> channel_dim,
                   const Counting& counting, int64_t index = -1, const KeptRows* kept = nullptr);

// Checks all accumulations, and that their states share no memory.
std::vector<UpdateParams> check(const Accumulations& all, const Place& place,
                                std::optional<int64_t> channel_dim, const Counting& counting);

// Checks the lists' lengths, which depend on whether there are bins, before any entry is read.
void check_lengths(const Accumulations& all, bool bins, bool channel_bins);

// Checks that each histogram has both counts and bins, or neither.
void check_pairs(bool counts, bool bins, bool channel_counts, bool channel_bins);

// Log bins from their descriptor, int32 [3], which is on the CPU for every device.
Bins read_log_bins(const torch::stable::Tensor& bins, const char* name);

// Checks that bins are a contiguous tensor of one dimension: float32 edges at `place`, or the
// int32 [3] of log bins on the CPU.
void check_bins(const torch::stable::Tensor& bins, const char* name, const Place& place);

// The memory of the sampling tensor, which is int64 [3] or [4] at `place`.
Sampling read_sampling(const std::optional<torch::stable::Tensor>& sampling, const Place& place);

// Checks that a mask is [rows] or [batch, time] at `place`, of bool or integers of at most 64 bits.
// Its shape; which rows it keeps is left to be filled in.
KeptRows check_mask(const torch::stable::Tensor& mask, const Place& place);

// `shape` with the rows that a checked mask on the CPU keeps; `memory` gets them.
KeptRows read_mask(const torch::stable::Tensor& mask, KeptRows shape, std::vector<int64_t>& memory);

// Checks that the scale is float32 [] at `place`.
void check_scale(const torch::stable::Tensor& scale, const Place& place);

}  // namespace hookstats
