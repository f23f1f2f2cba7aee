"""Whether a tensor's values can be read on this rank, and whether a call is the training's own.

Every rank records its own part of a distributed tensor. Nothing here communicates, so ranks may
watch different sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from hookstats._torch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    current_graph_task_id,
    infers_shapes,
    is_dtensor,
    is_faking,
    is_forward_mode,
    is_pending,
    is_plain,
    is_torch_function_enabled,
    is_transforming,
    jit_tracing_state,
    local_shard,
    wait_for,
)
from hookstats.buffers.lock import IS_NEEDED, Whole
from hookstats.kernels.backends import backend_of
from hookstats.records import reasons
from hookstats.stats.messages import error_text, notify


def is_distributed(tensor: Tensor) -> bool:
    """Whether `tensor` is spread over ranks, or the result of a collective still under way."""
    return not is_plain(tensor) and (is_dtensor(tensor) or is_pending(tensor))


def classify(tensor: Tensor) -> Tensor | str:
    """This rank's values of `tensor`, or the reason that they cannot be read now.

    Waits for the result of a collective that is still under way, as the first use of it would.
    """
    return reasons.GRAPH_CAPTURE if is_captured(tensor) else own_values(tensor)


def is_captured(tensor: Tensor) -> bool:
    """Whether what reads the tensor becomes part of a graph, whose replays run no hooks."""
    return backend_of(tensor.device).is_capturing()


def own_values(tensor: Tensor) -> Tensor | str:
    """As `classify`, also while a graph is captured, which then reads them in each replay."""
    if (reason := unreadable(tensor)) is not None:
        return reason
    if is_plain(tensor):
        return tensor
    tensor = local_shard(tensor) if is_dtensor(tensor) else tensor
    return wait_for(tensor) if is_pending(tensor) else tensor


def unreadable(tensor: Tensor) -> str | None:
    """Why the memory of `tensor` does not hold its values; None if it does. Cheap: this neither
    reads nor waits."""
    if not is_plain(tensor) and (reason := _refusal(tensor)) is not None:
        return reason
    if is_transforming():
        return reasons.TRANSFORM
    if tensor.layout is not torch.strided:
        return f"layout {short(tensor.layout)}"
    return reasons.NESTED if tensor.is_nested else None


def _refusal(tensor: Tensor) -> str | None:
    """Why the values of `tensor`, which has its own dispatch, cannot be read; None if they can."""
    if is_dtensor(tensor):
        if reason := refused_placement(tensor.placements):  # type: ignore[attr-defined]
            return reason
        part = local_shard(tensor)
        if not part.numel() and tensor.numel():
            return reasons.EMPTY_SHARD
        return None if is_plain(part) else _refusal(part)
    if is_pending(tensor):
        return None
    return type(tensor).__name__  # FakeTensor, a jagged NestedTensor, ...


def refused_placement(placements: Iterable[Any]) -> str | None:
    """The placement by which a rank has one summand of each value; None if there is none.

    By others a rank has a shard or a replica. Those of a gradient may differ from its activation's.
    """
    return next((f"DTensor {one!r}" for one in placements if one.is_partial()), None)


def local_shape(tensor: Tensor) -> torch.Size:
    """The shape of this rank's part of a tensor, which this neither reads nor waits for."""
    return (local_shard(tensor) if is_distributed(tensor) and is_dtensor(tensor) else tensor).shape


def detour() -> str | None:
    """Why a forward call is not one of the training's own; None if it is."""
    if current_graph_task_id() != -1:
        return reasons.RECOMPUTATION
    if jit_tracing_state() is not None:
        return reasons.JIT_TRACE
    if is_forward_mode():
        return reasons.FORWARD_MODE
    return reasons.SHAPE_INFERENCE if infers_shapes() else None


def _without_torch_function() -> AbstractContextManager[object]:
    return Whole(DisableTorchFunction(), lambda: not is_torch_function_enabled())


without_torch_function: Callable[[], AbstractContextManager[object]] = (
    _without_torch_function if IS_NEEDED else DisableTorchFunction
)
"""Context in which no __torch_function__ is called on this thread."""


def own_dispatch() -> AbstractContextManager[object]:
    """Context of what hooks do with tensors: no __torch_function__ of the user's sees it, and it
    computes values where a FakeTensorMode is on, too."""
    if not is_faking():
        return without_torch_function()
    context = ExitStack()
    context.enter_context(DisableTorchFunction())
    context.enter_context(DisableTorchDispatch())
    return context


@contextmanager
def reporting(failures: dict[str, str], what: str, outcome: str = "") -> Iterator[None]:
    """Context of what hooks compute beside the statistics of tensors, without gradients: an error,
    but that of a lost device, ends the block, and is told the first time."""
    with torch.no_grad(), own_dispatch():
        try:  # within: an error of these contexts, taken here, would leave no block to run
            yield
        except torch.AcceleratorError:
            raise
        except Exception as error:
            notify(failures, what, error_text(error) + outcome)


def short(dtype_or_layout: object) -> str:
    """The name of a dtype or layout, without the prefix "torch."."""
    return str(dtype_or_layout).removeprefix("torch.")
