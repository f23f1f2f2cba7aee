// The kernels for every dtype, element by element.
#include "cuda/kernels.cuh"

namespace hookstats::cuda {
HOOKSTATS_INSTANTIATE(Scalars);
}
