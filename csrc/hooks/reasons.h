// Why the C++ hooks leave a tensor out. Python has the same reasons, by the same names, in
// hookstats/records/reasons.py, with those that only Python gives.
#pragma once

#include <array>

namespace hookstats::hooks {

struct Reason {
  const char* name;  // of Python's constant
  const char* text;  // as the coverage counts it
};

inline constexpr Reason kDisabled{"DISABLED", "disabled"};
inline constexpr Reason kRecomputation{"RECOMPUTATION", "recomputation"};
inline constexpr Reason kNoGradient{"NO_GRADIENT", "requires no gradient"};
inline constexpr Reason kLeaf{"LEAF", "leaf"};
inline constexpr Reason kNotRecorded{"NOT_RECORDED", "step not recorded"};
inline constexpr Reason kChangedByThread{"CHANGED_BY_THREAD", "changed by another thread"};
inline constexpr Reason kStaleView{"STALE_VIEW", "stale view"};

inline constexpr std::array kReasons{kDisabled,    kRecomputation,   kNoGradient, kLeaf,
                                     kNotRecorded, kChangedByThread, kStaleView};

}  // namespace hookstats::hooks
