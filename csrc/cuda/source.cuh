// Where elements come from: fp32, fp16 and bf16 in vectors, widened to fp32; anything else one by
// one, in fp64.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "cuda/primitives.cuh"
#include "cuda/sums.cuh"
#include "cuda/table.h"

namespace hookstats::cuda {

// Offset in elements of outer index `index` of many dimensions: rare, and large in code.
HOOKSTATS_OUT_OF_LINE int64_t offset_of_many(const Dim* outer, int dims, int64_t index) {
  int64_t offset = 0;
  for (int d = dims - 1; d >= 0; --d) {
    offset += (index % outer[d].size) * outer[d].stride;
    index /= outer[d].size;
  }
  return offset;
}

// What values are divided by. A power of two is multiplied by its inverse: the same bits.
struct Scale {
  float divisor, factor;
  bool scales, divides;

  HOOKSTATS_DEVICE explicit Scale(const Common& common)
      : divisor(common.device_scale != nullptr ? load(common.device_scale) : common.scale) {
    const uint32_t bits = bits_from_float(divisor);
    const uint32_t exponent = (bits >> 23) & 0xffu;
    scales = divisor != 1.0f;
    divides = (bits & 0x7fffffu) != 0 || exponent < 2 || exponent > 252;
    factor = divides ? 1.0f : 1.0f / divisor;
  }

  HOOKSTATS_DEVICE float operator()(float x) const { return divides ? x / divisor : x * factor; }
  HOOKSTATS_DEVICE double operator()(double x) const { return x / static_cast<double>(divisor); }
};

// Every source reads N elements at a time: along a run, or of neighbouring channels. A NaN stands
// for a missing element: it is in no sum and no histogram, and `seen` does not count it.

template <class T>
struct Vectors {
  using Real = float;
  static constexpr int kElements = 16 / sizeof(T);               // of a run at a time
  static constexpr int kRows = kItemsPerThread * 4 / sizeof(T);  // of channels: 64 bytes in flight
  static constexpr bool kVectors = true;
  static constexpr bool kMasked = false;  // see kept.cuh
  static constexpr bool kSkewed = false;  // see Skewed
  static constexpr bool kMapped = false;  // see Mapped
  static constexpr int kElementsAWord = 4 / sizeof(T);
  static constexpr uint32_t kNaNs = 0x7fff7fffu;  // one of fp32, two of fp16 or bf16
  using Element = T;

  static HOOKSTATS_DEVICE int64_t element_size(const Common&) { return sizeof(T); }

  template <int N>
  struct Values {
    uint32_t words[N * sizeof(T) / 4];
  };

  // Which elements of a vector begin in its first `bytes` bytes, one bit each.
  static HOOKSTATS_DEVICE uint32_t first_bytes(int32_t bytes) {
    const int32_t within = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
    return (1u << within / static_cast<int32_t>(sizeof(T))) - 1;
  }

  // The vector at `address`, at least those elements that `exist`. Memory has whole vectors only
  // `inside` the tensor.
  static HOOKSTATS_DEVICE Values<kElements> read_part(uintptr_t address, uint32_t exist,
                                                      bool inside) {
    Values<kElements> values{{kNaNs, kNaNs, kNaNs, kNaNs}};
    if (inside) {
      if (exist != 0) values = read_whole(address, 0);
    } else {
      put_elements(exist, address, values);
    }
    return values;
  }

  // NaNs instead of the elements that do not exist.
  static HOOKSTATS_DEVICE void leave_out(uint32_t exist, Values<kElements>& values) {
    if (exist == (1u << kElements) - 1) return;
    Values<kElements> keeps;
    keep_elements(exist, keeps);
    HOOKSTATS_UNROLL
    for (int w = 0; w < 4; ++w) {
      values.words[w] = (values.words[w] & keeps.words[w]) | (kNaNs & ~keeps.words[w]);
    }
  }

  // A vector at `address`, a multiple of 16, plus `ahead`, which instructions hold.
  static HOOKSTATS_DEVICE Values<kElements> read_whole(uintptr_t address, int ahead) {
    const Bytes16 bytes = load16(reinterpret_cast<const char*>(address) + ahead);
    return {{bytes.word[0], bytes.word[1], bytes.word[2], bytes.word[3]}};
  }

  // kOwned neighbouring channels.
  static HOOKSTATS_DEVICE Values<kOwned> read_whole_channels(uintptr_t address) {
    if constexpr (sizeof(T) == 4) {
      const Bytes16 bytes = load16(reinterpret_cast<const void*>(address));
      return {{bytes.word[0], bytes.word[1], bytes.word[2], bytes.word[3]}};
    } else {
      const uint64_t bytes = load8(reinterpret_cast<const void*>(address));
      return {{static_cast<uint32_t>(bytes), static_cast<uint32_t>(bytes >> 32)}};
    }
  }

  // The same, `exists` or none of them.
  static HOOKSTATS_DEVICE Values<kOwned> read_channels(const Common&, const void* data,
                                                       int64_t offset, int64_t, bool exists) {
    Values<kOwned> values;
    for (uint32_t& word : values.words) word = kNaNs;
    const uintptr_t address =
        reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(offset) * sizeof(T);
    if (exists) values = read_whole_channels(address);
    return values;
  }

  // The same of vectors that may have others' elements: zeros instead of those that do not exist,
  // and nothing if none exists. Memory has whole vectors only `inside` the tensor.
  static HOOKSTATS_DEVICE Values<kOwned> read_some_channels(uintptr_t address, uint32_t exist,
                                                            bool inside) {
    Values<kOwned> values;
    for (uint32_t& word : values.words) word = exist == 0 ? kNaNs : 0;
    if (exist != 0 && inside) {
      values = read_whole_channels(address);
      Values<kOwned> keeps;
      keep_elements(exist, keeps);
      keep(keeps, values);
    } else {
      put_elements(exist, address, values);
    }
    return values;
  }

  // Makes a NaN of element `i` unless it is finite: neither zero nor the least or greatest of any.
  template <int N>
  HOOKSTATS_PREDICATED static void make_nan_unless(bool finite, int i, Values<N>& values) {
    uint32_t& word = values.words[sizeof(T) == 4 ? i : i / 2];
    const uint32_t nan = sizeof(T) == 4 ? kNaNs : i % 2 == 0 ? 0x7fffu : 0x7fff0000u;
    word |= finite ? 0 : nan;
  }

  // The bits of the elements that `exist`, one bit each.
  template <int N>
  static HOOKSTATS_DEVICE void keep_elements(uint32_t exist, Values<N>& keeps) {
    constexpr uint32_t kElement = sizeof(T) == 4 ? 0xffffffffu : 0xffffu;
    for (uint32_t& word : keeps.words) word = 0;
    HOOKSTATS_UNROLL
    for (int i = 0; i < N; ++i) {
      const uint32_t bits = kElement << (i * 8 * static_cast<int>(sizeof(T)) % 32);
      if ((exist >> i & 1) != 0) keeps.words[i * static_cast<int>(sizeof(T)) / 4] |= bits;
    }
  }
  template <int N>
  static HOOKSTATS_DEVICE void keep(const Values<N>& keeps, Values<N>& values) {
    HOOKSTATS_UNROLL
    for (int w = 0; w < N * static_cast<int>(sizeof(T)) / 4; ++w) values.words[w] &= keeps.words[w];
  }

  // The least and greatest of finite elements, of each element of `kWords` words side by side.
  template <int kWords>
  struct Extremes {
    uint32_t least[kWords], greatest[kWords];

    HOOKSTATS_DEVICE Extremes() {
      constexpr uint32_t kInfinities = sizeof(T) == 4                ? 0x7f800000u
                                       : std::is_same_v<T, BFloat16> ? 0x7f807f80u
                                                                     : 0x7c007c00u;
      constexpr uint32_t kSigns = sizeof(T) == 4 ? 0x80000000u : 0x80008000u;
      HOOKSTATS_UNROLL
      for (int i = 0; i < kWords; ++i) {
        least[i] = kInfinities;
        greatest[i] = kInfinities | kSigns;
      }
    }
    HOOKSTATS_DEVICE void add(int i, uint32_t word) {
      least[i] = least_word<T>(least[i], word);
      greatest[i] = greatest_word<T>(greatest[i], word);
    }
    // Puts those of element `i` of the words into the bounds, scaled if the words are not: a
    // negative scale turns them around.
    HOOKSTATS_DEVICE void put(const Scale& scale, int i, float& low, float& high) const {
      float a = element(least, i), b = element(greatest, i);
      if (a > b) return;  // nothing was added
      if constexpr (sizeof(T) < 4) {
        a = scale(a);
        b = scale(b);
      }
      low = std::fmin(low, std::fmin(a, b));
      high = std::fmax(high, std::fmax(a, b));
    }
  };

  template <int kWords>
  using Tallies = WordTallies<T, kWords>;

  // One element, as it is in memory and widened.
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  static HOOKSTATS_DEVICE Bits bits_at(const Common&, uintptr_t address) {
    return load(reinterpret_cast<const Bits*>(address));
  }
  static HOOKSTATS_DEVICE float widen_one(const Common&, const Scale& scale, Bits bits) {
    const uint32_t words[] = {bits};
    return scale(element(words, 0));
  }

  // fp32 is scaled where it is, by one test for all of it; what is narrower when it is widened.
  template <int N, int M>
  static HOOKSTATS_DEVICE void scale_in_place(const Scale& scale, Values<N> (&values)[M]) {
    if constexpr (sizeof(T) == 4) {
      if (!scale.scales) return;
      HOOKSTATS_UNROLL
      for (int m = 0; m < M; ++m) {
        float x[N];
        HOOKSTATS_UNROLL
        for (int i = 0; i < N; ++i) x[i] = element(values[m].words, i);
        scale_all(scale, x);
        HOOKSTATS_UNROLL
        for (int i = 0; i < N; ++i) values[m].words[i] = bits_from_float(x[i]);
      }
    }
  }

  template <int N>
  static HOOKSTATS_DEVICE void widen_all(const Common&, const Scale& scale, const Values<N>& values,
                                         Real (&x)[N]) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < N; ++i) x[i] = element(values.words, i);
    if (sizeof(T) < 4 && scale.scales) scale_all(scale, x);
  }
  template <int N, int M>
  static HOOKSTATS_DEVICE void widen_tile(const Common&, const Scale& scale,
                                          const Values<N> (&values)[M], Real (&x)[M * N]) {
    HOOKSTATS_UNROLL
    for (int i = 0; i < M * N; ++i) x[i] = element(values[i / N].words, i % N);
    if (sizeof(T) < 4 && scale.scales) scale_all(scale, x);
  }

  // The same, and tallies the tile, whose words belong to one after another of kWords.
  template <int N, int M, int kWords>
  static HOOKSTATS_DEVICE void widen_tile(const Scale& scale, const Values<N> (&values)[M],
                                          Real (&x)[M * N], Tallies<kWords>& tallies) {
    constexpr int kOfOne = N / kElementsAWord;
    HOOKSTATS_UNROLL
    for (int i = 0; i < M * N; ++i) x[i] = element(values[i / N].words, i % N);
    if (sizeof(T) == 4 || !scale.scales) {
      HOOKSTATS_UNROLL
      for (int i = 0; i < M * kOfOne; ++i) {
        tallies.add(i % kWords, values[i / kOfOne].words[i % kOfOne]);
      }
      return;
    }
    if constexpr (sizeof(T) < 4) {
      scale_all(scale, x);
      HOOKSTATS_UNROLL
      for (int i = 0; i < M * N; ++i) tallies.add_one(i, x[i]);
    }
  }

 private:
  template <int N>
  static HOOKSTATS_DEVICE void scale_all(const Scale& scale, Real (&x)[N]) {
    if (scale.divides) {
      HOOKSTATS_NO_UNROLL
      for (int i = 0; i < N; ++i) {
        Real first[1];
        move_up(x, first);
        x[N - 1] = first[0] / scale.divisor;
      }
      return;
    }
    HOOKSTATS_UNROLL
    for (int i = 0; i < N; ++i) x[i] *= scale.factor;
  }

  // Those that `exist` of the elements at `address`, one by one: nothing beside them may be read.
  template <int N>
  static HOOKSTATS_DEVICE void put_elements(uint32_t exist, uintptr_t address, Values<N>& values) {
    HOOKSTATS_NO_UNROLL
    for (int i = 0; i < N; ++i) {
      if ((exist >> i & 1) == 0) continue;
      const uintptr_t at = address + static_cast<uintptr_t>(i) * sizeof(T);
      if constexpr (sizeof(T) == 4) {
        put(values.words, i, load(reinterpret_cast<const uint32_t*>(at)));
      } else {
        const uint32_t bits = load(reinterpret_cast<const uint16_t*>(at));
        const uint32_t shift = i % 2 == 0 ? 0 : 16;
        const uint32_t other = pick(values.words, i / 2) & ~(0xffffu << shift);
        put(values.words, i / 2, other | bits << shift);
      }
    }
  }

  static HOOKSTATS_DEVICE float element(const uint32_t* words, int i) {
    if constexpr (sizeof(T) == 4) {
      return float_from_bits(words[i]);
    } else if constexpr (std::is_same_v<T, Half>) {
      return widen_half(static_cast<uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16));
    } else {
      return float_from_bits(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    }
  }
};

// Reads what `Source` reads, of rows of channels that begin anywhere: each thread's rows are so far
// apart that all begin at the same place in a vector, and neighbouring threads read a vector both
// where channels of both are in it. Kernels of aligned rows are compiled without any of that.
template <class Source>
struct Skewed : Source {
  static constexpr bool kSkewed = true;
};

// Reads what `Source` reads, of rows in which each channel has a map: several elements side by
// side.
template <class Source>
struct Mapped : Source {
  static constexpr bool kMapped = true;
};

// Out of line, as its switch is large.
HOOKSTATS_OUT_OF_LINE double widen_bits(DType dtype, Scale scale, uint64_t bits) {
  return dispatch(dtype, [&](auto* type) {
    std::remove_const_t<std::remove_pointer_t<decltype(type)>> value;
    std::memcpy(&value, &bits, sizeof value);
    const auto x = widen(value);
    return static_cast<double>(scale.scales ? scale(x) : x);
  });
}

struct Scalars {
  using Real = double;
  static constexpr int kElements = 1;
  static constexpr int kRows = kItemsPerThread;
  static constexpr bool kVectors = false;
  static constexpr bool kMasked = false;
  static constexpr bool kSkewed = false;
  static constexpr bool kMapped = false;

  static HOOKSTATS_DEVICE int64_t element_size(const Common& common) { return common.element_size; }

  template <int N>
  struct Values {
    uint64_t bits[N];
    uint32_t exist;  // one bit per element
  };

  static HOOKSTATS_DEVICE Values<1> read_run(const Common& common, uintptr_t address, bool exists) {
    Values<1> values{{0}, 0};
    if (exists) values = {{read_bits(common.element_size, address)}, 1};
    return values;
  }

  // kOwned channels `stride` elements apart.
  static HOOKSTATS_DEVICE Values<kOwned> read_channels(const Common& common, const void* data,
                                                       int64_t offset, int64_t stride,
                                                       uint32_t exist) {
    Values<kOwned> values{{}, exist};
    const uintptr_t address = reinterpret_cast<uintptr_t>(data);
    HOOKSTATS_UNROLL
    for (int i = 0; i < kOwned; ++i) {
      if ((exist >> i & 1) == 0) continue;
      const int64_t bytes = (offset + i * stride) * common.element_size;
      values.bits[i] = read_bits(common.element_size, address + static_cast<uintptr_t>(bytes));
    }
    return values;
  }

  template <int kWords>
  struct Extremes {};  // Sums have them, and tallies
  template <int kWords>
  struct Tallies {};

  using Bits = uint64_t;
  static HOOKSTATS_DEVICE Bits bits_at(const Common& common, uintptr_t address) {
    return read_bits(common.element_size, address);
  }
  static HOOKSTATS_DEVICE double widen_one(const Common& common, const Scale& scale, Bits bits) {
    return widen_bits(common.dtype, scale, bits);
  }

  static HOOKSTATS_DEVICE void leave_out(uint32_t, Values<1>&) {}

  template <int N, int M>
  static HOOKSTATS_DEVICE void scale_in_place(const Scale&, Values<N> (&)[M]) {}

  template <int N>
  static HOOKSTATS_DEVICE void widen_all(const Common& common, const Scale& scale,
                                         const Values<N>& values, Real (&x)[N]) {
    const DType dtype = common.dtype;
    HOOKSTATS_UNROLL
    for (int i = 0; i < N; ++i) {
      x[i] = (values.exist >> i & 1) == 0 ? kNaN<double> : widen_bits(dtype, scale, values.bits[i]);
    }
  }
  template <int N, int M>
  static HOOKSTATS_DEVICE void widen_tile(const Common& common, const Scale& scale,
                                          const Values<N> (&values)[M], Real (&x)[M * N]) {
    HOOKSTATS_UNROLL
    for (int m = 0; m < M; ++m) {
      Real row[N];
      widen_all(common, scale, values[m], row);
      HOOKSTATS_UNROLL
      for (int i = 0; i < N; ++i) x[m * N + i] = row[i];
    }
  }

 private:
  // By size alone, so that several reads may be under way before one is widened.
  static HOOKSTATS_DEVICE uint64_t read_bits(int32_t size, uintptr_t address) {
    switch (size) {
      case 1:
        return load(reinterpret_cast<const uint8_t*>(address));
      case 2:
        return load(reinterpret_cast<const uint16_t*>(address));
      case 4:
        return load(reinterpret_cast<const uint32_t*>(address));
      default:
        return load(reinterpret_cast<const uint64_t*>(address));
    }
  }
};

}  // namespace hookstats::cuda
