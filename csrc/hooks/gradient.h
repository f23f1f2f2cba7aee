// Hooks in the autograd graph, which accumulate the gradient of one tensor into its site.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "hooks/site.h"

namespace hookstats::hooks {

// Registers the hooks on a tensor that requires grad. Backward runs them without the GIL. Under the
// double buffer's lock, as the gradient gets the mask that the double buffer has now.
//
// A view that is changed in place later is replaced in the graph, and the view's hook then gets
// part of the gradient or none. The gradient of the base has all of it, so a hook on the base takes
// over. Where the tensor has no place in the graph, there is no hook, and the result is the reason.
const Reason* await_gradient(const std::shared_ptr<Site>& site, const at::Tensor& x);

}  // namespace hookstats::hooks
