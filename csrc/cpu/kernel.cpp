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
#include "cpu/fold.h"
#include "cpu/kernel.h"
#include "cpu/plan.h"

#define HOOKSTATS_VECTOR_BYTES 16
namespace hookstats::cpu::baseline {
#include "cpu/kernel-inl.h"
}  // namespace hookstats::cpu::baseline
