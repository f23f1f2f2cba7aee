// The checks of update_ and update_many_: a call that is refused changes no state.
#include "ops/arguments.h"

#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <ostream>

#include "ops/scalar_type.h"

namespace hookstats {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// `rows` < 0: a tensor of one dimension, [columns].
void check_state(const Tensor& t, const Name& name, const Place& place, ScalarType dtype,
                 int64_t rows, int64_t columns) {
  const bool shaped = rows < 0 ? t.dim() == 1 && t.size(0) == columns
                               : t.dim() == 2 && t.size(0) == rows && t.size(1) == columns;
  STD_TORCH_CHECK(place.has(t) && t.scalar_type() == dtype && t.is_contiguous() && shaped, name,
                  " is ", t.scalar_type(), " ", shape_of(t), "; expected a contiguous ", place,
                  " tensor of ", dtype, " [", rows < 0 ? "" : std::to_string(rows) + ", ", columns,
                  "]");
}

void check_length(const std::vector<Tensor>& tensors, const char* name, size_t expected) {
  STD_TORCH_CHECK(tensors.size() == expected, name, " has ", tensors.size(), " tensors; expected ",
                  expected, ", one per tensor of xs, or none where there are no such bins");
}

// Threads fill the states side by side, so no two states may share memory.
void check_apart(const std::vector<Tensor>& tensors, const char* name) {
  struct Range {
    const char* begin;
    const char* end;
    size_t index;
  };
  std::vector<Range> ranges;
  ranges.reserve(tensors.size());
  for (const Tensor& t : tensors) {
    const char* begin = static_cast<const char*>(t.const_data_ptr());
    ranges.push_back({begin, begin + t.numel() * t.element_size(), ranges.size()});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    STD_TORCH_CHECK(ranges[i - 1].end <= ranges[i].begin, name, "[",
                    std::min(ranges[i - 1].index, ranges[i].index), "] and ", name, "[",
                    std::max(ranges[i - 1].index, ranges[i].index),
                    "] share memory; expected a separate state for every tensor of xs");
  }
}

std::string shape_of(const int64_t* sizes, int dims) {
  std::string shape = "[";
  for (int d = 0; d < dims; ++d) shape += (d == 0 ? "" : ", ") + std::to_string(sizes[d]);
  return shape + "]";
}

template <class T>
int64_t keep_rows_of(const Tensor& mask, int64_t* rows) {
  return keep_rows(static_cast<const T*>(mask.const_data_ptr()), mask.sizes().data(),
                   mask.strides().data(), static_cast<int>(mask.dim()), rows);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Place& place) {
  out << place.name;
  return place.index < 0 ? out : out << ':' << place.index;
}

std::ostream& operator<<(std::ostream& out, const Name& name) {
  out << name.argument;
  return name.index < 0 ? out : out << '[' << name.index << ']';
}

std::string shape_of(const Tensor& t) {
  return shape_of(t.sizes().data(), static_cast<int>(t.dim()));
}

UpdateParams check(const Accumulation& one, const Place& place, std::optional<int64_t> channel_dim,
                   const Counting& counting, int64_t index, const KeptRows* kept) {
  const Bins &bins = counting.bins, &channel_bins = counting.channel_bins;
  const Tensor& x = one.x;
  const Name name{index < 0 ? "x" : "xs", index};
  STD_TORCH_CHECK(place.has(x), name, " is not on ", place, ", the device of the first tensor");
  const int64_t dims = x.dim();
  int64_t dim = -1;
  if (channel_dim.has_value()) {
    STD_TORCH_CHECK(-dims <= *channel_dim && *channel_dim < dims, "channel_dim is ", *channel_dim,
                    "; expected -", dims, " <= channel_dim < ", dims, " for ", name, " of shape ",
                    shape_of(x));
    dim = *channel_dim < 0 ? *channel_dim + dims : *channel_dim;
  }
  UpdateParams params{};
  const std::optional<DType> dtype = dtype_of(x.scalar_type());
  STD_TORCH_CHECK(dtype.has_value(), name, " has dtype ", x.scalar_type(),
                  "; expected a real floating point, integer or bool dtype");
  params.dtype = *dtype;
  const auto rank = static_cast<int>(dims), along = static_cast<int>(dim);
  const int masked = kept == nullptr ? 0 : covered_dims(*kept, x.sizes().data(), rank, along);
  STD_TORCH_CHECK(kept == nullptr || masked > 0, "mask has shape ",
                  kept == nullptr ? "" : shape_of(kept->sizes, kept->dims),
                  "; expected the first dimensions of ", name, " of shape ", shape_of(x),
                  ", or as many elements as the first one has, and channels along another");
  params.view = channel_view(x.sizes().data(), x.strides().data(), rank, along, kept, masked);
  params.sampling = counting.sampling.values;
  params.recorded = counting.sampling.recorded;
  const int64_t channels = params.view.channels;
  check_state(one.moments, {"moments", index}, place, ScalarType::Double, channels, kMomentColumns);
  check_state(one.tallies, {"tallies", index}, place, ScalarType::Long, channels, kTallyColumns);
  params.tensor_bins = bins;
  params.channel_bins = channel_bins;
  if (one.counts != nullptr) {
    check_state(*one.counts, {"counts", index}, place, ScalarType::Long, -1, bins.slots());
    params.tensor_counts = static_cast<int64_t*>(one.counts->mutable_data_ptr());
  }
  if (one.channel_counts != nullptr) {
    check_state(*one.channel_counts, {"channel_counts", index}, place, ScalarType::Long, channels,
                channel_bins.slots());
    params.channel_counts = static_cast<int64_t*>(one.channel_counts->mutable_data_ptr());
  }
  params.data = x.const_data_ptr();
  STD_TORCH_CHECK(params.data != nullptr || params.view.numel() == 0, name, " has shape ",
                  shape_of(x), " and no memory; expected a tensor whose storage is not freed");
  params.moments = static_cast<double*>(one.moments.mutable_data_ptr());
  params.tallies = static_cast<int64_t*>(one.tallies.mutable_data_ptr());
  return params;
}

std::vector<UpdateParams> check(const Accumulations& all, const Place& place,
                                std::optional<int64_t> channel_dim, const Counting& counting) {
  std::vector<UpdateParams> params;
  params.reserve(all.xs.size());
  for (size_t i = 0; i < all.xs.size(); ++i) {
    const Accumulation one{all.xs[i], all.moments[i], all.tallies[i],
                           all.counts.empty() ? nullptr : &all.counts[i],
                           all.channel_counts.empty() ? nullptr : &all.channel_counts[i]};
    params.push_back(check(one, place, channel_dim, counting, static_cast<int64_t>(i)));
  }
  check_apart(all.moments, "moments");
  check_apart(all.tallies, "tallies");
  check_apart(all.counts, "counts");
  check_apart(all.channel_counts, "channel_counts");
  return params;
}

void check_lengths(const Accumulations& all, bool bins, bool channel_bins) {
  const size_t expected = all.xs.size();
  check_length(all.moments, "moments", expected);
  check_length(all.tallies, "tallies", expected);
  check_length(all.counts, "counts", bins ? expected : 0);
  check_length(all.channel_counts, "channel_counts", channel_bins ? expected : 0);
}

void check_pairs(bool counts, bool bins, bool channel_counts, bool channel_bins) {
  STD_TORCH_CHECK(counts == bins && channel_counts == channel_bins,
                  counts == bins ? "channel_bins" : "bins",
                  " and its counts were not given together; expected both or neither");
}

void check_bins(const Tensor& bins, const char* name, const Place& place) {
  const bool edges = bins.scalar_type() == ScalarType::Float;
  const Place& read_at = edges ? place : kCpu;
  STD_TORCH_CHECK(read_at.has(bins) && bins.dim() == 1 && bins.is_contiguous(), name,
                  " is not a contiguous ", read_at, " tensor of one dimension, but has shape ",
                  shape_of(bins));
  STD_TORCH_CHECK(
      edges || (bins.scalar_type() == ScalarType::Int && bins.size(0) == 3), name, " is ",
      bins.scalar_type(), " ", shape_of(bins),
      "; expected float32 edges, or int32 [3]: subdivision_bits, min_exponent, max_exponent");
  STD_TORCH_CHECK(!edges || bins.size(0) >= 2, name, " has ", bins.size(0),
                  " edges; expected at least 2");
}

Bins read_log_bins(const Tensor& bins, const char* name) {
  const int32_t* values = static_cast<const int32_t*>(bins.const_data_ptr());
  STD_TORCH_CHECK(
      0 <= values[0] && values[0] <= 7 && -127 <= values[1] && values[1] <= values[2] &&
          values[2] <= 127,
      name, " is (", values[0], ", ", values[1], ", ", values[2],
      "); expected subdivision_bits in 0..7 and -127 <= min_exponent <= max_exponent <= 127");
  return log_bins(values[0], values[1], values[2]);
}

Sampling read_sampling(const std::optional<Tensor>& sampling, const Place& place) {
  if (!sampling.has_value()) return {};
  const int64_t columns = sampling->dim() == 1 ? sampling->size(0) : 0;
  const bool has_word = columns == kRecorded + 1;
  STD_TORCH_CHECK(place.has(*sampling) && sampling->scalar_type() == ScalarType::Long &&
                      (columns == kSamplingColumns || has_word) && sampling->is_contiguous(),
                  "sampling is ", sampling->scalar_type(), " ", shape_of(*sampling),
                  "; expected a contiguous ", place, " tensor of ", ScalarType::Long, " [",
                  static_cast<int>(kSamplingColumns), "] or [", kRecorded + 1, "]");
  const auto* const values = static_cast<const int64_t*>(sampling->const_data_ptr());
  return {values, has_word ? values + kRecorded : nullptr};
}

KeptRows check_mask(const Tensor& mask, const Place& place) {
  const auto dtype = mask.scalar_type();
  const bool integers = dtype == ScalarType::Bool || dtype == ScalarType::Byte ||
                        dtype == ScalarType::Char || dtype == ScalarType::Short ||
                        dtype == ScalarType::Int || dtype == ScalarType::Long;
  STD_TORCH_CHECK(place.has(mask) && integers && 1 <= mask.dim() && mask.dim() <= kMaskDims,
                  "mask is ", dtype, " ", shape_of(mask), "; expected a ", place,
                  " tensor [rows] or [batch, time] of bool, uint8, int8, int16, int32 or int64");
  KeptRows shape;
  shape.dims = static_cast<int>(mask.dim());
  for (int d = 0; d < shape.dims; ++d) shape.sizes[d] = mask.size(d);
  return shape;
}

KeptRows read_mask(const Tensor& mask, KeptRows shape, std::vector<int64_t>& memory) {
  // One more: each row is written before it is known whether it is kept.
  memory.resize(static_cast<size_t>(shape.total()) + 1);
  int64_t* const rows = memory.data();
  const auto width = mask.element_size();
  shape.count = width == 1   ? keep_rows_of<int8_t>(mask, rows)
                : width == 2 ? keep_rows_of<int16_t>(mask, rows)
                : width == 4 ? keep_rows_of<int32_t>(mask, rows)
                             : keep_rows_of<int64_t>(mask, rows);
  shape.rows = rows;
  return shape;
}

void check_scale(const Tensor& scale, const Place& place) {
  STD_TORCH_CHECK(place.has(scale) && scale.scalar_type() == ScalarType::Float && scale.dim() == 0,
                  "scale is ", scale.scalar_type(), " ", shape_of(scale), "; expected a ", place,
                  " tensor of ", ScalarType::Float, " []");
}

}  // namespace hookstats
