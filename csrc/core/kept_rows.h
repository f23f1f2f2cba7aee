// The rows of a tensor that a mask keeps: sequences without their padding.
#pragma once

#include <cstdint>

namespace hookstats {

constexpr int kMaskDims = 2;  // [batch, time]

// What a mask of 1 or 2 dimensions keeps. Its elements are rows, numbered in logical order.
struct KeptRows {
  const int64_t* rows = nullptr;  // of `count` rows, ascending
  // Instead of `rows`, where the host cannot read the mask: of all rows, which are `count` then,
  // whether they are kept.
  const uint8_t* flags = nullptr;
  int64_t count = 0;
  int dims = 0;  // the mask's
  int64_t sizes[kMaskDims] = {};

  int64_t total() const { return dims == 2 ? sizes[0] * sizes[1] : sizes[0]; }
};

// How many leading dimensions of a tensor a mask covers: as many as it has, or one that has a row
// for each of its elements, as in [batch * time, ...]. 0: the mask does not fit, for one because
// the channels are along one of these dimensions, or because the tensor has the weights of
// attention, [batch, heads, time, time]. stats/mask.py says the same.
inline int covered_dims(const KeptRows& kept, const int64_t* sizes, int dims, int channel_dim) {
  const int64_t time = kept.sizes[kept.dims - 1];
  const bool attention =
      kept.dims == 2 && dims == 4 && time > 1 && sizes[2] == time && sizes[3] == time;
  if (attention || dims == 0) return 0;
  bool fits = dims >= kept.dims && !(0 <= channel_dim && channel_dim < kept.dims);
  for (int d = 0; fits && d < kept.dims; ++d) fits = sizes[d] == kept.sizes[d];
  if (fits) return kept.dims;
  return sizes[0] == kept.total() && channel_dim != 0 ? 1 : 0;
}

// Writes the rows that a mask keeps, which are those of its elements that are not zero, to `rows`,
// which has room for all and one more; returns how many there are.
template <class T>
int64_t keep_rows(const T* mask, const int64_t* sizes, const int64_t* strides, int dims,
                  int64_t* rows) {
  const int64_t length = sizes[dims - 1], outer = dims == 2 ? sizes[0] : 1;
  int64_t count = 0;
  for (int64_t o = 0; o < outer; ++o) {
    const T* const line = dims == 2 ? mask + o * strides[0] : mask;
    for (int64_t i = 0; i < length; ++i) {
      rows[count] = o * length + i;
      count += line[i * strides[dims - 1]] != T{0};
    }
  }
  return count;
}

}  // namespace hookstats
