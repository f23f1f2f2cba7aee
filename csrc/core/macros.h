// Marks functions that compile for host and device alike.
#pragma once

#if defined(__CUDACC__)
#define HOOKSTATS_HOST_DEVICE __host__ __device__
#else
#define HOOKSTATS_HOST_DEVICE
#endif
