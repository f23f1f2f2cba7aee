"""Whether the values of a tensor can be read on this rank, and whether a call is training's own.

Every rank records its own part of a distributed tensor. Nothing here communicates, so ranks may
watch different things.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch._C import (
    _current_graph_task_id,
    _disabled_torch_dispatch_impl,
    _get_tracing_state,
)
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad

_DTENSOR = ("torch.distributed.tensor", "DTensor")
_PENDING = ("torch.distributed._functional_collectives", "AsyncCollectiveTensor")


def is_plain(tensor: Tensor) -> bool:
    """Whether `tensor` has no dispatch of its own, so that its memory holds its values."""
    return type(tensor).__torch_dispatch__ is _disabled_torch_dispatch_impl


def is_distributed(tensor: Tensor) -> bool:
    """Whether `tensor` is spread over ranks, or the result of a collective still under way."""
    return not is_plain(tensor) and (_is(tensor, *_DTENSOR) or _is(tensor, *_PENDING))


def refusal(tensor: Tensor) -> str | None:
    """Why no values of `tensor`, of a subclass with a dispatch of its own, can be read here.

    A DTensor has a shard or a replica on each rank, by its own placements: a gradient may have
    others than its activation. Where one of them is Partial, that is one summand of the values.
    """
    if _is(tensor, *_DTENSOR):
        for placement in tensor.placements:  # type: ignore[attr-defined]
            if placement.is_partial():
                return f"DTensor {placement!r}"
        part: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
        if not part.numel() and tensor.numel():
            return "empty shard"
        return None if is_plain(part) else refusal(part)
    if _is(tensor, *_PENDING):
        return None
    return type(tensor).__name__  # FakeTensor, a jagged NestedTensor, ...


def local_part(tensor: Tensor) -> Tensor:
    """The values of a tensor that has no `refusal`, as this rank has them.

    The result of a collective that is still under way is waited for, as its first use would.
    """
    if _is(tensor, *_DTENSOR):
        tensor = tensor._local_tensor  # type: ignore[attr-defined]
    if _is(tensor, *_PENDING):
        tensor = tensor.trigger_wait()  # type: ignore[attr-defined]
    return tensor


def _is(tensor: Tensor, module: str, name: str) -> bool:
    # Not imported here: without it there is no such tensor, and it takes its time.
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(tensor, cls)


def unreadable(tensor: Tensor) -> str | None:
    """Why `tensor` has no plain memory with its values, None if it has; cheap."""
    if not is_plain(tensor) and (reason := refusal(tensor)) is not None:
        return reason
    if maybe_current_level() is not None:
        return "torch.func transform"
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return "CUDA graph capture"  # which replays kernels, and no hooks
    if tensor.layout is not torch.strided:
        return f"layout {short(tensor.layout)}"
    return "nested tensor" if tensor.is_nested else None


def detour() -> str | None:
    """Why a forward call is not one of the training's own, None if it is."""
    if _current_graph_task_id() != -1:
        return "recomputation"
    if _get_tracing_state() is not None:
        return "torch.jit.trace"
    if forward_ad._current_level != -1:
        return "forward-mode derivative"
    return None


def short(dtype_or_layout: object) -> str:
    """The name of a dtype or layout, without the torch of it."""
    return str(dtype_or_layout).removeprefix("torch.")
