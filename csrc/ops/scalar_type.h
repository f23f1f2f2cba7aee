// torch's scalar types as the kernels' own element types.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <optional>

#include "core/dtype.h"

namespace hookstats {

// No value for types without statistics, such as complex and quantised types.
inline std::optional<DType> dtype_of(torch::headeronly::ScalarType type) {
  using torch::headeronly::ScalarType;
  switch (type) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::Double:
      return DType::kFloat64;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Float8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case ScalarType::Float8_e5m2:
      return DType::kFloat8E5M2;
    case ScalarType::Char:
      return DType::kInt8;
    case ScalarType::Short:
      return DType::kInt16;
    case ScalarType::Int:
      return DType::kInt32;
    case ScalarType::Long:
      return DType::kInt64;
    case ScalarType::Byte:
      return DType::kUInt8;
    case ScalarType::UInt16:
      return DType::kUInt16;
    case ScalarType::UInt32:
      return DType::kUInt32;
    case ScalarType::UInt64:
      return DType::kUInt64;
    case ScalarType::Bool:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

}  // namespace hookstats
