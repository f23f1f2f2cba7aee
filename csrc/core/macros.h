// Marks functions that compile for host and device alike. HOOKSTATS_CALLER marks such a template
// that calls its argument, which may be for the host or the device alone.
#pragma once

#if defined(__CUDACC__)
#define HOOKSTATS_HOST_DEVICE __host__ __device__
#define HOOKSTATS_CALLER _Pragma("nv_exec_check_disable")
#else
#define HOOKSTATS_HOST_DEVICE
#define HOOKSTATS_CALLER
#endif
