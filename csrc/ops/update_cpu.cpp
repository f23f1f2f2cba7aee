// The CPU backend of update_ and update_many_.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <string>
#include <vector>

#include "cpu/kernel.h"
#include "cpu/update.h"
#include "ops/arguments.h"
#include "ops/kernels.h"
#include "ops/update.h"

namespace hookstats {

namespace {

using torch::stable::Tensor;

void parallel_for(int64_t tasks, void (*body)(int64_t, int64_t, void*), void* context) {
  torch::stable::parallel_for(0, tasks, 1,
                              [=](int64_t begin, int64_t end) { body(begin, end, context); });
}

// A single tensor is shared out among the threads; of many tensors, each is one thread's. All
// tensors of a call have one word that says whether they are recorded.
void update_params(const UpdateParams* params, int64_t count, int32_t, bool) {
  if (params[0].recorded != nullptr && *params[0].recorded == 0) return;
  if (count == 1) {
    cpu::update(*params, parallel_for);
  } else {
    cpu::update_many(params, count, parallel_for);
  }
}

struct CpuBackend {
  static Place place(const Tensor&) { return kCpu; }

  // The kernels have a copy of the edges, which lasts until the thread's next call.
  static Bins linear(const Tensor& edges, Histogram histogram) {
    cpu::Scratch& scratch = cpu::thread_scratch();
    std::vector<float>& kept =
        histogram == Histogram::kTensor ? scratch.tensor_edges : scratch.channel_edges;
    const int64_t size = edges.size(0);
    const float* values = static_cast<const float*>(edges.const_data_ptr());
    kept.assign(values, values + size);
    for (int64_t i = 0; i + 1 < size; ++i) {
      STD_TORCH_CHECK(values[i] < values[i + 1] && values[i + 1] - values[i + 1] == 0.0f,
                      bins_argument(histogram), " has edges ", values[i], ", ", values[i + 1],
                      " at ", i, "; expected finite ascending edges");
    }
    return linear_bins(kept.data(), size - 1);
  }

  static void divide(UpdateParams& params, const Tensor& scale) {
    params.scale = *static_cast<const float*>(scale.const_data_ptr());
  }

  static KeptRows keep(const Tensor& mask, KeptRows shape, std::optional<Tensor>&) {
    return read_mask(mask, shape, cpu::thread_scratch().kept_rows);
  }

  static constexpr Kernels kernels{update_params, nullptr};
};

int64_t cpu_entry(int64_t params_size) { return entry(CpuBackend::kernels, params_size); }

std::string cpu_capability() { return cpu::capability(); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hookstats, CPU, m) {
  m.impl("update_", TORCH_BOX(&update<CpuBackend>));
  m.impl("update_many_", TORCH_BOX(&update_many<CpuBackend>));
}

STABLE_TORCH_LIBRARY_IMPL(hookstats, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&cpu_capability));
  m.impl("cpu_entry", TORCH_BOX(&cpu_entry));
}

}  // namespace hookstats
