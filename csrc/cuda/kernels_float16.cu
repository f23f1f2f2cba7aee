// The kernels for fp16 in vectors.
#include "cuda/kernels.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Vectors<Half>);
}
