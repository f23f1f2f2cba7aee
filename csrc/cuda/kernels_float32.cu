// The kernels for fp32 in vectors.
#include "cuda/launch_agent.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Vectors<float>);
}
