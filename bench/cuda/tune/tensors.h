// The tensors that are folded and the state they are folded into, in memory of the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/channel_view.h"
#include "core/update_params.h"
#include "line.h"
#include "naive.cuh"
#include "runtime.h"

namespace hookstats::tune {

// A contiguous tensor, and what is counted.
struct Case {
  DType dtype;
  std::vector<int64_t> sizes;
  int channel_dim;
  bool tensor, channels;  // histograms

  explicit Case(const Request& request)
      : dtype(dtype_of(request.text("dtype"))),
        sizes(request.numbers("sizes")),
        channel_dim(static_cast<int>(request.number("channel_dim"))),
        tensor(request.number("tensor") != 0),
        channels(request.number("channels") != 0) {
    const bool positive = std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n > 0; });
    const bool few = !sizes.empty() && sizes.size() <= 4;
    if (!few || !positive || channel_dim < -1 || channel_dim >= static_cast<int>(sizes.size())) {
      throw std::invalid_argument("sizes=" + request.text("sizes") +
                                  " channel_dim=" + request.text("channel_dim") +
                                  ": expected a shape and its channels");
    }
  }

  static DType dtype_of(const std::string& name) {
    if (name == "fp32") return DType::kFloat32;
    if (name == "bf16") return DType::kBFloat16;
    throw std::invalid_argument("dtype=" + name + ": expected fp32 or bf16");
  }

  int64_t element_bytes() const { return dtype == DType::kFloat32 ? 4 : 2; }
  int64_t elements() const { return product(0); }
  int64_t bytes() const { return (elements() * element_bytes() + 255) / 256 * 256; }
  int64_t channel_count() const {
    return channel_dim < 0 ? 1 : sizes[static_cast<size_t>(channel_dim)];
  }
  // How many elements of a channel are side by side.
  int64_t inner() const { return product(static_cast<size_t>(channel_dim + 1)); }

  ChannelView view() const {
    std::vector<int64_t> strides;
    for (size_t d = 0; d < sizes.size(); ++d) strides.push_back(product(d + 1));
    return channel_view(sizes.data(), strides.data(), static_cast<int>(sizes.size()), channel_dim);
  }

  // What the expected integers depend on.
  std::string key() const {
    std::string text = std::to_string(element_bytes()) + " " + std::to_string(channel_dim);
    for (const int64_t size : sizes) text += " " + std::to_string(size);
    return text;
  }

 private:
  int64_t product(size_t from) const {
    int64_t n = 1;
    for (size_t d = from; d < sizes.size(); ++d) n *= sizes[d];
    return n;
  }
};

// Inputs of either dtype, one allocation each: cases read windows of it, in turn.
class Inputs {
 public:
  explicit Inputs(size_t bytes)
      : bytes_(bytes), cache_(static_cast<int64_t>(facts().cache_bytes)) {}

  const void* window(const Case& c, int64_t i) {
    return static_cast<const char*>(memory(c.dtype).data()) + i % windows(c) * c.bytes();
  }

  // So many that none is found in the cache when its turn comes.
  int64_t windows(const Case& c) const {
    const int64_t there = static_cast<int64_t>(bytes_) / c.bytes();
    if (there < 1)
      throw std::invalid_argument("a tensor of " + std::to_string(c.bytes()) +
                                  " bytes: expected at most --bytes");
    constexpr int64_t kFewest = 8;
    return std::min(there, std::max(kFewest, 4 * cache_ / c.bytes()));
  }

 private:
  const Memory& memory(DType dtype) {
    std::unique_ptr<Memory>& memory = dtype == DType::kFloat32 ? floats_ : bfloats_;
    if (memory != nullptr) return *memory;
    memory = std::make_unique<Memory>(bytes_);
    if (dtype == DType::kFloat32) {
      fill_with<float>(*memory);
    } else {
      fill_with<BFloat16>(*memory);
    }
    return *memory;
  }
  template <class T>
  static void fill_with(const Memory& memory) {
    const int64_t n = static_cast<int64_t>(memory.bytes() / sizeof(T));
    cuda::launch(fill<T>, blocks_of(n), static_cast<T*>(memory.data()), n);
  }

  size_t bytes_;
  int64_t cache_;
  std::unique_ptr<Memory> floats_, bfloats_;
};

// The histograms of every case, as the benchmark has them.
class BothBins {
 public:
  BothBins() : descriptor_(kBins + 1), moved_(descriptor_.size()) {
    for (size_t i = 0; i <= kBins; ++i) {
      descriptor_[i] = moved_[i] = -4.0f + 8.0f * static_cast<float>(i) / kBins;
    }
    counted_ = linear_bins(moved_.data(), kBins);
    copy_in(given_.data(), descriptor_.data(), given_.bytes());
    copy_in(edges_.data(), moved_.data(), edges_.bytes());
    counted_.edges = static_cast<const float*>(edges_.data());
  }

  Bins tensor() const { return log_bins(3, -127, 127); }
  // For the library's kernels, and for the naive one.
  Bins channels() const { return described_bins(kBins, static_cast<const float*>(given_.data())); }
  Bins naive_channels() const { return counted_; }

 private:
  static constexpr size_t kBins = 64;
  std::vector<float> descriptor_, moved_;
  Memory given_{(kBins + 1) * sizeof(float)}, edges_{(kBins + 1) * sizeof(float)};
  Bins counted_;
};

// An empty state of a case.
class Filled {
 public:
  Filled(const Case& c, const BothBins& bins)
      : channels_(c.channel_count()),
        tensor_slots_(bins.tensor().slots()),
        channel_slots_(channels_ * bins.channels().slots()),
        moments_(bytes_of(channels_ * kMomentColumns)),
        integers_(bytes_of(channels_ * kTallyColumns + tensor_slots_ + channel_slots_)) {
    empty();
  }

  void empty() {
    std::vector<double> rows;
    int64_t tallies[kTallyColumns];
    for (int64_t c = 0; c < channels_; ++c) {
      rows.resize(rows.size() + kMomentColumns);
      store_row(Channel{}, &rows[rows.size() - kMomentColumns], tallies);
    }
    copy_in(moments_.data(), rows.data(), moments_.bytes());
    set_zero(integers_.data(), integers_.bytes());
  }

  double* moments() const { return static_cast<double*>(moments_.data()); }
  Integers integers() const {
    int64_t* const tallies = static_cast<int64_t*>(integers_.data());
    int64_t* const counts = tallies + channels_ * kTallyColumns;
    return {tallies, counts, counts + tensor_slots_};
  }

  Counted counted() const {
    const auto copied = [](const int64_t* from, int64_t n) {
      std::vector<int64_t> all(static_cast<size_t>(n));
      copy_out(all.data(), from, bytes_of(n));
      return all;
    };
    const Integers at = integers();
    return {copied(at.tallies, channels_ * kTallyColumns), copied(at.tensor_counts, tensor_slots_),
            copied(at.channel_counts, channel_slots_)};
  }

  // How many elements all channels have seen.
  int64_t seen() const {
    const std::vector<int64_t> tallies = counted().tallies;
    int64_t sum = 0;
    for (size_t i = kCount; i < tallies.size(); i += kTallyColumns) sum += tallies[i];
    return sum;
  }

 private:
  static size_t bytes_of(int64_t n) { return static_cast<size_t>(n) * 8; }

  int64_t channels_, tensor_slots_, channel_slots_;
  Memory moments_, integers_;
};

}  // namespace hookstats::tune
