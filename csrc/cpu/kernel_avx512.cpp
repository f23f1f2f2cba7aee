// The kernel for AVX512.
#if defined(__x86_64__)
#include <immintrin.h>

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

// All other headers stand above: what they define must stay free of this target's instructions.
#if defined(__clang__)
#pragma clang attribute push(                                                                \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prfchw"))), \
    apply_to = function)
#else
// Never popped: templates are instantiated at the end of the file.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prfchw")
#endif

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own intrinsics start from an undefined vector (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define HOOKSTATS_VECTOR_BYTES 64
namespace hookstats::cpu::avx512 {
#include "cpu/kernel-inl.h"
}  // namespace hookstats::cpu::avx512

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
