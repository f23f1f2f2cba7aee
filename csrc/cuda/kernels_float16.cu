// The kernels for fp16 in vectors.
#include "cuda/launch_agent.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Vectors<Half>);
}
