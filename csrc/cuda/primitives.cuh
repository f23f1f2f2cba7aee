// Every part of CUDA that kernels use, under names of ours; with HOOKSTATS_SIMT the emulator's.
// What the host uses is in launch.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"
#include "cuda/policy.h"

namespace hookstats::cuda {

// Of each of the two elements of a word, or of one fp32, the lesser or the greater; NaN is neither.
template <class T>
HOOKSTATS_HOST_DEVICE uint32_t extreme_word(uint32_t a, uint32_t b, bool greater) {
  if constexpr (sizeof(T) == 4) {
    const float x = float_from_bits(a), y = float_from_bits(b);
    return bits_from_float(greater ? std::fmax(x, y) : std::fmin(x, y));
  } else {
    uint32_t word = 0;
    for (int half = 0; half < 32; half += 16) {
      const T x{static_cast<uint16_t>(a >> half)}, y{static_cast<uint16_t>(b >> half)};
      const float wide_x = widen(x), wide_y = widen(y);
      const bool is_y = wide_y == wide_y && (greater ? !(wide_x >= wide_y) : !(wide_x <= wide_y));
      word |= static_cast<uint32_t>((is_y ? y : x).bits) << half;
    }
    return word;
  }
}

}  // namespace hookstats::cuda

#if defined(HOOKSTATS_SIMT)

#include <limits>

#include "simt.h"

#define HOOKSTATS_OUT_OF_LINE inline
// Selects and predicates, of which g++ may make branches: none that warps pay for.
#define HOOKSTATS_PREDICATED [[gnu::noinline, gnu::no_sanitize_coverage]] inline
#define HOOKSTATS_GRID_CONSTANT
#define HOOKSTATS_BOUNDS(threads, blocks)
#define HOOKSTATS_UNROLL
#define HOOKSTATS_NO_UNROLL

namespace hookstats::cuda {

inline uint32_t shared_place(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) -
                               reinterpret_cast<uintptr_t>(shared_memory()));
}
inline void add_at(uint32_t place, uint32_t n) {
  add_shared(reinterpret_cast<uint32_t*>(shared_memory() + place), n);
}
inline float load_at(uint32_t place) {
  return load(reinterpret_cast<const float*>(shared_memory() + place));
}

// What other blocks wrote in this launch.
template <class T>
T load_fresh(const T* address) {
  return *address;  // seen by the race detector, as load() is not
}
inline uint64_t load8(const void* address) { return load(static_cast<const uint64_t*>(address)); }
inline uint32_t count_ones(uint32_t x) { return static_cast<uint32_t>(__builtin_popcount(x)); }
inline uint32_t lowest_one(uint32_t x) { return static_cast<uint32_t>(__builtin_ctz(x)); }
inline uint32_t highest_one(uint32_t x) { return 31 - static_cast<uint32_t>(__builtin_clz(x)); }
inline void hide(uint32_t&) {}
template <class T>
void keep_in_memory(T& value) {
  simt::keep_local(&value, sizeof value);
}
HOOKSTATS_PREDICATED void add_if_reached(float x, float edge, uint32_t step, uint32_t& sum) {
  if (x >= edge) sum += step;
}
inline float saturate(float x) { return std::fmin(std::fmax(x, 0.0f), 1.0f); }
HOOKSTATS_PREDICATED void add_if_finite(float x, float factor, float offset, float& s1, float& s2,
                                        float& l1, float& least, float& greatest, float& finite) {
  if (!(std::fabs(x) < std::numeric_limits<float>::infinity())) return;
  const float d = std::fma(x, factor, offset);
  s1 += d;
  s2 = std::fma(d, d, s2);
  l1 += std::fabs(x);
  least = std::fmin(least, x);
  greatest = std::fmax(greatest, x);
  finite += 1.0f;
}
inline float widen_half(uint16_t bits) { return widen(Half{bits}); }

template <class T>
uint32_t least_word(uint32_t a, uint32_t b) {
  return extreme_word<T>(a, b, false);
}
template <class T>
uint32_t greatest_word(uint32_t a, uint32_t b) {
  return extreme_word<T>(a, b, true);
}
template <class T>
auto zeros_of(uint32_t word) {
  if constexpr (sizeof(T) == 4) {
    return float_from_bits(word) == 0 ? 1.0f : 0.0f;
  } else {
    return ((word & 0x7fffu) == 0 ? 0xffffu : 0) | ((word & 0x7fff0000u) == 0 ? 0xffff0000u : 0);
  }
}

}  // namespace hookstats::cuda

#else

#include <cuda_runtime.h>

#include <type_traits>

#define HOOKSTATS_KERNEL __global__
#define HOOKSTATS_DEVICE __device__ __forceinline__
#define HOOKSTATS_OUT_OF_LINE inline __device__ __noinline__
#define HOOKSTATS_PREDICATED HOOKSTATS_DEVICE
#define HOOKSTATS_GRID_CONSTANT __grid_constant__
#define HOOKSTATS_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define HOOKSTATS_UNROLL _Pragma("unroll")
#define HOOKSTATS_NO_UNROLL _Pragma("unroll 1")

namespace hookstats::cuda {

HOOKSTATS_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
HOOKSTATS_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
HOOKSTATS_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
HOOKSTATS_DEVICE int grid_blocks() { return static_cast<int>(gridDim.x); }
HOOKSTATS_DEVICE int lane() { return thread_index() % kWarp; }
HOOKSTATS_DEVICE int warp() { return thread_index() / kWarp; }

HOOKSTATS_DEVICE void sync_block() { __syncthreads(); }
HOOKSTATS_DEVICE void sync_warp() { __syncwarp(); }
HOOKSTATS_DEVICE bool any_in_block(bool yes) { return __syncthreads_or(yes) != 0; }
HOOKSTATS_DEVICE bool any_in_warp(bool yes) { return __any_sync(0xffffffffu, yes) != 0; }

template <class T>
HOOKSTATS_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T>
HOOKSTATS_DEVICE T shuffle_down(T value, int delta) {
  return __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(delta));
}
template <class T>
HOOKSTATS_DEVICE T shuffle_from(T value, int source) {
  return __shfl_sync(0xffffffffu, value, source);
}

HOOKSTATS_DEVICE char* shared_memory() {
  extern __shared__ __align__(16) char dynamic_shared[];
  return dynamic_shared;
}

// Shared memory by its own addresses of 32 bits: of a pointer the compiler does not always know
// that it is to shared memory, and where it does, it finds out for each access where that memory
// begins.
HOOKSTATS_DEVICE uint32_t shared_place(const void* address) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}
// Without a result: the hardware then merges a warp's additions to one counter.
HOOKSTATS_DEVICE void add_at(uint32_t place, uint32_t n) {
  asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(place), "r"(n) : "memory");
}
// What no thread writes while others may load it: the compiler may move this, but not to before
// where the place was hidden.
HOOKSTATS_DEVICE float load_at(uint32_t place) {
  float x;
  asm("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(place));
  return x;
}

HOOKSTATS_DEVICE void add_shared(uint32_t* counter, uint32_t n) {
  add_at(shared_place(counter), n);
}
HOOKSTATS_DEVICE void add_global(int64_t* counter, int64_t n) {
  atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(n));
}

// Counts the calling block, and returns how many were counted before. A block that is counted later
// sees everything that the calling thread wrote before.
HOOKSTATS_DEVICE uint32_t count_block(uint32_t* counter) {
  __threadfence();
  const uint32_t before = atomicAdd(counter, 1u);
  __threadfence();
  return before;
}

struct alignas(16) Bytes16 {
  uint32_t word[4];
};
// Past L1, where nothing of a tensor is read twice; L2 keeps it for the layer that reads it next.
HOOKSTATS_DEVICE Bytes16 load16(const void* address) {
  const uint4 v = __ldcg(static_cast<const uint4*>(address));
  return {{v.x, v.y, v.z, v.w}};
}
template <class T>
HOOKSTATS_DEVICE T load(const T* address) {
  return __ldg(address);
}
HOOKSTATS_DEVICE uint64_t load8(const void* address) {
  const uint2 v = __ldcg(static_cast<const uint2*>(address));
  return uint64_t{v.y} << 32 | v.x;
}
// What other blocks wrote in this launch.
template <class T>
HOOKSTATS_DEVICE T load_fresh(const T* address) {
  return __ldcg(address);
}

// Which bits of a word, which is not 0, are ones.
HOOKSTATS_DEVICE uint32_t count_ones(uint32_t x) { return static_cast<uint32_t>(__popc(x)); }
HOOKSTATS_DEVICE uint32_t lowest_one(uint32_t x) { return static_cast<uint32_t>(__ffs(x)) - 1; }
HOOKSTATS_DEVICE uint32_t highest_one(uint32_t x) { return 31 - static_cast<uint32_t>(__clz(x)); }

// Hides from the compiler what a value is made of. Volatile, so that what takes the value stays
// behind the barriers that are before this.
HOOKSTATS_DEVICE void hide(uint32_t& value) { asm volatile("" : "+r"(value)); }

// Has the compiler keep a value in memory, from where registers would be short in a loop that has
// no use for it: it would rather move there what the loop uses.
template <class T>
HOOKSTATS_DEVICE void keep_in_memory(T& value) {
  asm volatile("" ::"l"(&value) : "memory");
}

// One step of shifted sums, which skips non-finite values by predicates, at no cost. The compiler
// would make branches of the same in C++.
HOOKSTATS_DEVICE void add_if_finite(float x, float factor, float offset, float& s1, float& s2,
                                    float& l1, float& least, float& greatest, float& finite) {
  asm("{\n"
      ".reg .pred p;\n"
      ".reg .f32 a, d;\n"
      "abs.f32 a, %6;\n"
      "setp.lt.f32 p, a, 0f7F800000;\n"
      "fma.rn.f32 d, %6, %7, %8;\n"
      "@p add.f32 %0, %0, d;\n"
      "@p fma.rn.f32 %1, d, d, %1;\n"
      "@p add.f32 %2, %2, a;\n"
      "@p min.f32 %3, %3, %6;\n"
      "@p max.f32 %4, %4, %6;\n"
      "@p add.f32 %5, %5, 0f3F800000;\n"
      "}"
      : "+f"(s1), "+f"(s2), "+f"(l1), "+f"(least), "+f"(greatest), "+f"(finite)
      : "f"(x), "f"(factor), "f"(offset));
}

// Adds `step` to `sum` if x has reached an edge: in C++, a select and an addition.
HOOKSTATS_DEVICE void add_if_reached(float x, float edge, uint32_t step, uint32_t& sum) {
  asm("{\n"
      ".reg .pred p;\n"
      "setp.ge.f32 p, %1, %2;\n"
      "@p add.u32 %0, %0, %3;\n"
      "}"
      : "+r"(sum)
      : "f"(x), "f"(edge), "r"(step));
}

// Both in one instruction; NaN saturates to 0.
HOOKSTATS_DEVICE float saturate(float x) { return __saturatef(x); }
HOOKSTATS_DEVICE float widen_half(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// One instruction for both elements of a word.
template <class T>
HOOKSTATS_DEVICE uint32_t least_word(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  uint32_t word;
  if constexpr (std::is_same_v<T, Half>) {
    asm("min.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    asm("min.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  }
#endif
  return extreme_word<T>(a, b, false);
}
template <class T>
HOOKSTATS_DEVICE uint32_t greatest_word(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  uint32_t word;
  if constexpr (std::is_same_v<T, Half>) {
    asm("max.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  }
#endif
  return extreme_word<T>(a, b, true);
}

// Of a word of fp32, 1 if it is zero: in C++, a comparison and a select. Of two elements, all bits
// of those that are zero; both formats of 16 bits have the same zeros.
template <class T>
HOOKSTATS_DEVICE auto zeros_of(uint32_t word) {
  if constexpr (sizeof(T) == 4) {
    float one;
    asm("set.eq.f32.f32 %0, %1, 0f00000000;" : "=f"(one) : "f"(float_from_bits(word)));
    return one;
  } else {
    uint32_t mask;
    asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(word), "r"(0));
    return mask;
  }
}

}  // namespace hookstats::cuda

#endif
