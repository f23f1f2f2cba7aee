// The kernels for fp32 in vectors.
#include "cuda/kernels.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Vectors<float>);
}
