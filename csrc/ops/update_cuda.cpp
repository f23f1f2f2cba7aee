// The CUDA backend of update_ and update_many_.
//
// All work goes to the current stream. Nothing waits for the device or reads its memory: the
// kernels get a pointer to the edges of linear bins.
#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/streams.h"
#include "cuda/update.h"
#include "ops/arguments.h"
#include "ops/kernels.h"
#include "ops/update.h"

namespace hookstats {

namespace {

using torch::stable::Tensor;

constexpr int32_t kMostDevices = 128;  // torch has fewer

cuda::Stream current_stream(int32_t device) {
  cuda::Stream stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return stream;
}

const cuda::Device& device_at(int32_t index) {
  static std::array<std::once_flag, kMostDevices> read;
  static std::array<cuda::Device, kMostDevices> devices;
  const auto at = static_cast<size_t>(index);
  std::call_once(read[at], [at, index] { devices[at] = cuda::device(index); });
  return devices[at];
}

// Makes a device the current one, if another one is: nearly always it is already.
class OnDevice {
 public:
  explicit OnDevice(int32_t index) {
    int current = -1;
    if (cudaGetDevice(&current) != cudaSuccess || current != index) guard_.emplace(index);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

// The streams of a device. Never destroyed: at exit the driver may be gone before this library.
cuda::Streams& streams_of(int32_t device) {
  static auto* const streams = new std::array<cuda::Streams, kMostDevices>;
  STD_TORCH_CHECK(0 <= device && device < kMostDevices, "device is ", device,
                  "; expected an index below ", kMostDevices);
  return (*streams)[static_cast<size_t>(device)];
}

// Workspaces of the stream.
class OfStream final : public cuda::Lender {
 public:
  OfStream(cuda::Streams& streams, cuda::Stream stream) : streams_(streams), stream_(stream) {}
  cuda::Workspace lend(size_t bytes) override { return streams_.workspace(stream_, bytes); }

 private:
  cuda::Streams& streams_;
  const cuda::Stream stream_;
};

// Workspaces of a graph that is captured, one for each launch: it may be replayed on any stream.
// From torch's allocator, which puts what the stream asks for into the graph's memory.
class OfGraph final : public cuda::Lender {
 public:
  explicit OfGraph(cuda::Stream stream) : stream_(stream) {}
  OfGraph(const OfGraph&) = delete;
  OfGraph& operator=(const OfGraph&) = delete;
  ~OfGraph() {
    // Nothing is to be done where that fails.
    for (void* const data : lent_) (void)aoti_torch_cuda_caching_allocator_raw_delete(data);
  }

  cuda::Workspace lend(size_t bytes) override {
    cuda::Workspace workspace{nullptr, bytes};
    TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_caching_allocator_raw_alloc(bytes, &workspace.data));
    lent_.push_back(workspace.data);
    const cudaError_t error =
        cudaMemsetAsync(workspace.data, 0, bytes, static_cast<cudaStream_t>(stream_));
    STD_TORCH_CHECK(error == cudaSuccess, "hookstats could not clear a workspace of ", bytes,
                    " bytes: ", cudaGetErrorString(error));
    return workspace;
  }

 private:
  const cuda::Stream stream_;
  std::vector<void*> lent_;
};

void launch(const UpdateParams* params, int64_t count, int32_t index, bool captured) {
  const OnDevice on(index);
  const cuda::Stream stream = current_stream(index);
  if (captured) {
    OfGraph lender(stream);
    return cuda::update_many(device_at(index), params, count, lender, stream);
  }
  cuda::Streams& streams = streams_of(index);
  OfStream lender(streams, stream);
  cuda::update_many(device_at(index), params, count, lender, stream);
  streams.launched(stream);  // who closes a step has to know of it
}

bool is_capturing(int32_t device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const auto stream = static_cast<cudaStream_t>(current_stream(device));
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    // Of the legacy stream, which must not even be asked while others are captured.
    (void)cudaGetLastError();
    return true;
  }
  return status != cudaStreamCaptureStatusNone;
}

struct CudaBackend {
  static Place place(const Tensor& x) {
    STD_TORCH_CHECK(x.is_cuda(),
                    "the first tensor is not on CUDA, as its state is; expected both "
                    "on one device");
    return {torch::headeronly::DeviceType::CUDA, "cuda", x.get_device_index()};
  }

  static Bins linear(const Tensor& edges, Histogram) {
    return described_bins(edges.size(0) - 1, static_cast<const float*>(edges.const_data_ptr()));
  }

  static void divide(UpdateParams& params, const Tensor& scale) {
    params.device_scale = static_cast<const float*>(scale.const_data_ptr());
  }

  // The kernels read one byte a row: a mask of anything else is copied on the device.
  static KeptRows keep(const Tensor& mask, KeptRows shape, std::optional<Tensor>& copy) {
    if (mask.element_size() != 1 || !mask.is_contiguous()) {
      copy =
          torch::stable::contiguous(torch::stable::to(mask, torch::headeronly::ScalarType::Bool));
    }
    const void* const flags = (copy ? *copy : mask).const_data_ptr();
    shape.flags = static_cast<const uint8_t*>(flags);
    shape.count = shape.total();
    return shape;
  }

  static constexpr Kernels kernels{launch, is_capturing};
};

int64_t cuda_entry(int64_t params_size) { return entry(CudaBackend::kernels, params_size); }

void close_streams(int64_t device) {
  const auto index = static_cast<int32_t>(device);
  const OnDevice on(index);
  streams_of(index).close(current_stream(index));
}

void wait_for_streams(int64_t device) {
  const auto index = static_cast<int32_t>(device);
  const OnDevice on(index);
  streams_of(index).wait(current_stream(index));
}

void ignore_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
  STD_TORCH_CHECK(error == cudaSuccess,
                  "cudaThreadExchangeStreamCaptureMode: ", cudaGetErrorString(error));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CUDA, m) {
  m.impl("update_", TORCH_BOX(&update<CudaBackend>));
  m.impl("update_many_", TORCH_BOX(&update_many<CudaBackend>));
}

STABLE_TORCH_LIBRARY_IMPL(hookstats, CompositeExplicitAutograd, m) {
  m.impl("cuda_entry", TORCH_BOX(&cuda_entry));
  m.impl("cuda_close", TORCH_BOX(&close_streams));
  m.impl("cuda_wait", TORCH_BOX(&wait_for_streams));
  m.impl("ignore_captures", TORCH_BOX(&ignore_captures));
}

}  // namespace hookstats
