// The tensor hooks of autograd: one on a tensor, and for a view a second one on its base.
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "hooks/site.h"

namespace hookstats::hooks {

namespace {

// State that the hooks of one tensor share.
struct Awaited {
  explicit Awaited(std::shared_ptr<Site> site)
      : site(std::move(site)), mask(this->site->buffers().mask()) {}

  std::shared_ptr<Site> site;
  std::shared_ptr<const Mask> mask;  // of the tensor's call, or null
  std::atomic<bool> first{true};
  // A view's version counter, which the view shares with its base, and its version at the start.
  c10::VariableVersion counter;
  std::optional<uint32_t> version;

  bool is_replaced() const { return version && counter.current_version() != *version; }
  void receive(const at::Tensor& gradient) { site->receive(gradient, first.exchange(false), mask); }
};

struct ForTensor {
  std::shared_ptr<Awaited> awaited;

  void operator()(const at::Tensor& gradient) const {
    if (!awaited->is_replaced()) awaited->receive(gradient);
  }
};

struct ForBase {
  std::shared_ptr<Awaited> awaited;
  std::vector<int64_t> sizes, strides, base_strides;
  int64_t offset;

  void operator()(const at::Tensor& gradient) const {
    if (!awaited->is_replaced()) return;
    // The memory of shards has no part that is the view.
    if (!Site::is_strided(gradient))
      throw std::runtime_error("a distributed view changed in place");
    awaited->receive(of_view(gradient));
  }

  // The part of the base's gradient that lies where the view lies in the base.
  at::Tensor of_view(const at::Tensor& gradient) const {
    const at::NoGradGuard no_grad;
    at::Tensor whole = gradient.detach();
    if (whole.strides() != base_strides) {
      const at::Tensor copy = at::empty_strided(whole.sizes(), base_strides, whole.options());
      whole = copy.copy_(whole);
    }
    return whole.as_strided(sizes, strides, whole.storage_offset() + offset);
  }
};

template <class Observe>
class TensorHook : public torch::autograd::FunctionPreHook {
 public:
  TensorHook(Observe observe, const at::Tensor& x)
      : observe_(std::move(observe)), output_(x.output_nr()) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    run(observe_, grads[output_]);
    return grads;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    const auto hook = [observe = observe_](const at::TensorBase& gradient) {
      run(observe, at::Tensor(gradient));
      return at::TensorBase();
    };
    args.add_cpp_single_tensor_pre_hook(hook, output_);
  }

 private:
  static void run(const Observe& observe, const at::Tensor& gradient) {
    if (gradient.defined()) observe.awaited->site->attempt([&] { observe(gradient); });
  }

  Observe observe_;
  size_t output_;
};

template <class Observe>
void add_hook(const at::Tensor& x, Observe observe) {
  x.grad_fn()->add_tensor_pre_hook(std::make_unique<TensorHook<Observe>>(std::move(observe), x));
}

}  // namespace

const char* await_gradient(const std::shared_ptr<Site>& site, const at::Tensor& x) {
  try {
    if (x.grad_fn() == nullptr) return kLeaf;
  } catch (const c10::AcceleratorError&) {
    throw;  // the device is lost
  } catch (const c10::Error&) {
    // Asking makes the place of a view in the graph anew, after a change of its base in place; of
    // some views, such as one of several outputs, there is none then.
    return kStaleView;
  }
  const auto awaited = std::make_shared<Awaited>(site);
  if (x.is_view() && !x._base().is_leaf()) {
    const at::Tensor base(x._base());
    awaited->counter = x.unsafeGetTensorImpl()->version_counter();
    awaited->version = awaited->counter.current_version();
    add_hook(base, ForBase{awaited, x.sizes().vec(), x.strides().vec(), base.strides().vec(),
                           x.storage_offset() - base.storage_offset()});
  }
  add_hook(x, ForTensor{awaited});
  return nullptr;
}

}  // namespace hookstats::hooks
