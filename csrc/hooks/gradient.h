// Hooks in the autograd graph, which fold the gradient of one tensor into its site.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "hooks/site.h"

namespace hookstats::hooks {

// Registers them on a non-leaf tensor that requires grad. Backward runs them without the GIL.
//
// A view that is changed in place later is replaced in the graph, and its hook then gets a part of
// the gradient or none. Its base's gradient has all of it: a second hook there takes over.
void await_gradient(const std::shared_ptr<Site>& site, const at::Tensor& x);

}  // namespace hookstats::hooks
