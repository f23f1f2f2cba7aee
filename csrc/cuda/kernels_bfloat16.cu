// The kernels for bf16 in vectors.
#include "cuda/launch_agent.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Vectors<BFloat16>);
}
