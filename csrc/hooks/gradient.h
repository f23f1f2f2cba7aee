// Hooks in the autograd graph, which fold the gradient of one tensor into its site.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "hooks/site.h"

namespace hookstats::hooks {

// Registers the hooks on a non-leaf tensor that requires grad. Backward runs them without the GIL.
//
// A view that is changed in place later is replaced in the graph, and the view's hook then gets
// part of the gradient or none. The gradient of the base has all of it, so a hook on the base takes
// over.
void await_gradient(const std::shared_ptr<Site>& site, const at::Tensor& x);

}  // namespace hookstats::hooks
