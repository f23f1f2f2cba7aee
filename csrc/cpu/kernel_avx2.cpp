// The kernel for AVX2.
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
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2,prfchw"))), \
                             apply_to = function)
#else
// Never popped: templates are instantiated at the end of the file.
#pragma GCC target("avx2,fma,f16c,bmi2,prfchw")
#endif

#define HOOKSTATS_VECTOR_BYTES 32
namespace hookstats::cpu::avx2 {
#include "cpu/kernel-inl.h"
}  // namespace hookstats::cpu::avx2

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
