// The kernels for every dtype, element by element.
#include "cuda/launch_agent.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Scalars);
}
