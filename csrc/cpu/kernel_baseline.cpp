// The kernel for every machine: 16-byte vectors (SSE2, NEON) and no more.
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/bins.h"
#include "core/dtype.h"
#include "core/state.h"
#include "cpu/accumulate.h"
#include "cpu/kernel.h"
#include "cpu/plan.h"

#if defined(__x86_64__)
// Processors without AVX2 are older than 2013. Their kernel takes 1.0 to 1.8 times as long so, and
// a third of the time to compile: no longer the longest of all.
#define HOOKSTATS_INLINE inline
#if defined(__OPTIMIZE__) && !defined(__clang__)
#pragma GCC optimize("O1")
#endif
#endif

#define HOOKSTATS_VECTOR_BYTES 16
namespace hookstats::cpu::baseline {
#include "cpu/kernel-inl.h"
}  // namespace hookstats::cpu::baseline
