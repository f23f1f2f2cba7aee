"""Distributed training: the part of a tensor that this rank has, and what its channels are.

Every rank records its own part. Nothing here communicates, so ranks may watch different things.
"""

from __future__ import annotations

import sys

from torch import Tensor
from torch._C import _disabled_torch_dispatch_impl
from torch.nn.parameter import is_lazy

from hookstats import channels
from hookstats.channels import Rule

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


def parameter_rule(parameter: Tensor) -> Rule:
    """Where `parameter` and its gradient have their channels: dimension 0.

    What FSDP1 flattened is a run of elements, on each rank another one: it has no channels.
    """
    if is_lazy(parameter):
        return channels.parameter_rule
    if getattr(parameter, "_fsdp_flattened", False):
        return lambda ndim: None
    whole = parameter.dim()
    return lambda ndim: channels.parameter_rule(ndim) if ndim == whole else None


def _is(tensor: Tensor, module: str, name: str) -> bool:
    # Not imported here: without it there is no such tensor, and it takes its time.
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(tensor, cls)
