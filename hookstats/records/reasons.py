"""Why a tensor or a call has no statistics: every reason that has a fixed text in the coverage.

The C++ hooks have some of these texts, too (csrc/hooks/site.h). Reasons with
details, such as "dtype int64" or "layout sparse_coo", are made where a tensor is examined.
"""

from __future__ import annotations

from typing import Final

DISABLED: Final = "disabled"
"""An error disabled the site; the coverage has the error."""
RECOMPUTATION: Final = "recomputation"
"""A backward ran the forward again, for a checkpoint; the first run was counted."""
EVALUATION: Final = "evaluation"
"""The model was in eval mode and gradients were off, where an optimizer closes the steps."""
NO_GRADIENT: Final = "requires no gradient"
LEAF: Final = "leaf"
"""No operation computed the tensor; its gradient is that of a parameter or an input."""
NOT_RECORDED: Final = "step not recorded"
"""The gradient came in a step that is not recorded."""
CHANGED_BY_THREAD: Final = "changed by another thread"
"""Another thread changed the tensor during the call of the hook."""
NO_TENSOR: Final = "no tensor"
"""The call had no tensor of that kind."""
NO_STORAGE: Final = "no storage"
"""The tensor's memory was freed, or belongs to a transform."""
NO_CHANNELS: Final = "no channels"
"""The channel dimension has size 0."""
META: Final = "meta tensor"
NESTED: Final = "nested tensor"
EMPTY_SHARD: Final = "empty shard"
"""This rank has no part of the distributed tensor."""
PARTIAL: Final = "DTensor Partial(sum)"
"""Each rank has a summand of the values."""
STALE_VIEW: Final = "stale view"
"""The view's base was changed in place, and the view, such as one of several outputs of a function
or one made without gradients, has no place in the graph any more."""
OLD_COMPILER: Final = "compiled code of torch 2.10"
"""That torch compares versions of all that a compiled backward uses, and the states change."""
TRANSFORM: Final = "torch.func transform"
GRAPH_CAPTURE: Final = "CUDA graph capture"
"""Replays of a graph run kernels, and no hooks."""
JIT_TRACE: Final = "torch.jit.trace"
FORWARD_MODE: Final = "forward-mode derivative"
SHAPE_INFERENCE: Final = "shape inference"
"""A stage of a pipeline ran to learn shapes, before the training's first call."""
MASK_UNFIT: Final = "mask does not fit"
"""The tensor is in the statistics with all its rows: its first dimensions are not those of the
mask, one of them has the channels, or the mask is on another device."""
NOT_SAMPLED: Final = "not sampled"
"""`capture` keeps a sample of the calls, and this call is not in it."""
MAX_BYTES: Final = "max_bytes"
"""`capture` dropped the call to keep within its memory limit."""
