// Element types: their sizes, their conversion to float or double, and the one switch over them.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/macros.h"

namespace hookstats {

enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
};

// Storage types: one type per encoding, so that an overload of `widen` says how to read each.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Float8E4M3FN {
  uint8_t bits;
};
struct Float8E5M2 {
  uint8_t bits;
};
struct Bool {
  uint8_t bits;
};

HOOKSTATS_HOST_DEVICE inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

HOOKSTATS_HOST_DEVICE inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// `widen` is exact for every type of at most 24 significant bits; wider integers round to double.
HOOKSTATS_HOST_DEVICE inline float widen(float x) { return x; }
HOOKSTATS_HOST_DEVICE inline double widen(double x) { return x; }
HOOKSTATS_HOST_DEVICE inline float widen(BFloat16 x) {
  return float_from_bits(uint32_t{x.bits} << 16);
}
HOOKSTATS_HOST_DEVICE inline float widen(Half x) {
  // The exponent is rebased by a multiplication, which handles subnormals too.
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude << 13));
  return float_from_bits(sign | bits_from_float(float_from_bits(magnitude << 13) * 0x1p112f));
}
HOOKSTATS_HOST_DEVICE inline float widen(Float8E5M2 x) {
  return widen(Half{static_cast<uint16_t>(x.bits << 8)});
}
HOOKSTATS_HOST_DEVICE inline float widen(Float8E4M3FN x) {
  const uint32_t magnitude = x.bits & 0x7fu;
  const uint32_t sign = uint32_t{x.bits & 0x80u} << 24;
  if (magnitude == 0x7fu) return float_from_bits(sign | 0x7fc00000u);  // the only NaN; no infinity
  return float_from_bits(sign | bits_from_float(float_from_bits(magnitude << 20) * 0x1p120f));
}
HOOKSTATS_HOST_DEVICE inline float widen(Bool x) { return x.bits != 0 ? 1.0f : 0.0f; }
HOOKSTATS_HOST_DEVICE inline float widen(int8_t x) { return x; }
HOOKSTATS_HOST_DEVICE inline float widen(uint8_t x) { return x; }
HOOKSTATS_HOST_DEVICE inline float widen(int16_t x) { return x; }
HOOKSTATS_HOST_DEVICE inline float widen(uint16_t x) { return x; }
HOOKSTATS_HOST_DEVICE inline double widen(int32_t x) { return x; }
HOOKSTATS_HOST_DEVICE inline double widen(uint32_t x) { return x; }
HOOKSTATS_HOST_DEVICE inline double widen(int64_t x) { return static_cast<double>(x); }
HOOKSTATS_HOST_DEVICE inline double widen(uint64_t x) { return static_cast<double>(x); }

// Calls `f` with a null pointer to the storage type of `dtype`: the only switch over dtypes.
HOOKSTATS_CALLER
template <class F>
HOOKSTATS_HOST_DEVICE auto dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(static_cast<const float*>(nullptr));
    case DType::kFloat64:
      return f(static_cast<const double*>(nullptr));
    case DType::kFloat16:
      return f(static_cast<const Half*>(nullptr));
    case DType::kBFloat16:
      return f(static_cast<const BFloat16*>(nullptr));
    case DType::kFloat8E4M3FN:
      return f(static_cast<const Float8E4M3FN*>(nullptr));
    case DType::kFloat8E5M2:
      return f(static_cast<const Float8E5M2*>(nullptr));
    case DType::kInt8:
      return f(static_cast<const int8_t*>(nullptr));
    case DType::kInt16:
      return f(static_cast<const int16_t*>(nullptr));
    case DType::kInt32:
      return f(static_cast<const int32_t*>(nullptr));
    case DType::kInt64:
      return f(static_cast<const int64_t*>(nullptr));
    case DType::kUInt8:
      return f(static_cast<const uint8_t*>(nullptr));
    case DType::kUInt16:
      return f(static_cast<const uint16_t*>(nullptr));
    case DType::kUInt32:
      return f(static_cast<const uint32_t*>(nullptr));
    case DType::kUInt64:
      return f(static_cast<const uint64_t*>(nullptr));
    case DType::kBool:
      break;
  }
  return f(static_cast<const Bool*>(nullptr));
}

}  // namespace hookstats
