// The kernels for bf16 in vectors.
#include "cuda/kernels.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Vectors<BFloat16>);
}
