"""What module hooks do while dynamo traces them: call operators, which a graph can hold.

Dynamo traces `TracedHook.observe` and never runs it. Python that has to run during the trace, and
never again, is in functions whose results dynamo takes for constants, without guards. Code that
needs autograd's view of a tensor is in functions that dynamo puts into its graph as they are:
"eager" backends run these functions, AOTAutograd traces through them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.compiler import allow_in_graph, is_exporting

from hookstats._torch import (
    Placed,
    becomes_cuda_graph,
    can_save_without_version,
    current_graph_task_id,
    has_static_value,
    is_dtensor,
    is_transforming,
    local_shard,
    mark_constant,
    placed,
    save_without_version,
    top_saved_tensors_hooks,
    traced_operators,
)
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.buffers.graph_states import AWAITED, of_backward
from hookstats.hooks.dynamo import look_at_tracer
from hookstats.hooks.gradients import register
from hookstats.hooks.leaves import Leaf
from hookstats.hooks.readable import refused_placement, short
from hookstats.hooks.widths import Sites
from hookstats.kernels.once_ops import count_once_, update_once_
from hookstats.kernels.ops import update_
from hookstats.records.reasons import (
    EMPTY_SHARD,
    EVALUATION,
    LEAF,
    MASK_UNFIT,
    NO_GRADIENT,
    OLD_COMPILER,
    PARTIAL,
    RECOMPUTATION,
)
from hookstats.stats.mask import covered_dims
from hookstats.stats.messages import warn
from hookstats.stats.state import State

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _while_tracing(function: _Function) -> _Function:
    mark_constant(function)
    return function


_in_graph_functions: list[Callable[..., Any]] = []


def _in_graph(function: _Function) -> _Function:
    _in_graph_functions.append(function)
    return function


def _allow_in_graph() -> None:
    """Tell dynamo which functions to put into graphs; called in a trace, when dynamo is loaded."""
    while _in_graph_functions:
        function = allow_in_graph(_in_graph_functions.pop())  # type: ignore[no-untyped-call]
        # Only this keeps a backend from leaving out a function without a result.
        torch.fx.node.has_side_effect(function)


class TracedHook:
    """The part of one module hook in compiled code."""

    def __init__(
        self, buffers: DoubleBuffer, values: Sites | None, gradients: Sites | None, phase: int = 0
    ) -> None:
        # Constant functions take no objects before torch 2.12. Dynamo guards on the key's value,
        # so that no graph of one hook serves another.
        self.key = str(next(_keys))
        _traced_hooks[self.key] = self
        self.buffers = buffers
        self.values = values
        self.gradients = gradients
        self.phase = phase

    def sites(self) -> list[Sites]:
        return [sites for sites in (self.values, self.gradients) if sites is not None]

    def observe(self, module: nn.Module, found: Iterable[Leaf]) -> None:
        """Put into the graph the calls that accumulate the tensors `found`, and their gradients."""
        if _hookstats_leaves_call_out(self.key):
            return
        # Dynamo guards on what this reads; in training it reads no `training`.
        may_evaluate = not torch.is_grad_enabled() and not module.training
        key = self.key
        mask = self.buffers.mask.in_trace()
        for path, tensor in found:
            is_sharded = _is_dtensor(tensor)
            dtensor: Any = tensor
            part = dtensor.to_local() if is_sharded else tensor
            ndim = tensor.dim()
            dim = _hookstats_fixed_dim(key, path, ndim, tensor.dtype)
            if dim is not None and -ndim <= dim < ndim:
                _constant(part.shape[dim])
            shape = tuple([_constant(n) if has_static_value(n) else -1 for n in part.shape])
            plan = _hookstats_plan(
                key,
                path,
                shape,
                tensor.dtype,
                tensor.device,
                tensor.layout,
                tensor.requires_grad,
                tensor.requires_grad and tensor.is_leaf,
                may_evaluate,
                dtensor.device_mesh if is_sharded else None,
                dtensor.placements if is_sharded else None,
                tuple(tensor.shape) if is_sharded else None,
                mask is not None,
            )
            for counter, recomputed in plan.skipped:
                _count(counter, recomputed)
            if plan.value is not None:
                _accumulate(tensor, mask, *plan.value)
            if plan.gradient is not None:
                _await_gradient(tensor, mask, *plan.gradient)


def _is_dtensor(tensor: Tensor) -> bool:
    return type(tensor).__name__ == "DTensor"


def _constant(n: int) -> int:
    """`n`; a graph with a dynamic size is specialised for it."""
    return len(range(n))


class _Plan:
    """What a graph is to do with one tensor, as arguments of the functions below."""

    def __init__(self) -> None:
        self.skipped: tuple[tuple[Tensor, Tensor | None], ...] = ()
        self.value: tuple[int | None, State, Tensor, Tensor | None, Tensor | None] | None = None
        self.gradient: (
            tuple[int | None, State, Tensor, Tensor | None, Tensor, Tensor | None, Tensor | None]
            | None
        ) = None


_keys = itertools.count()
_traced_hooks: WeakValueDictionary[str, TracedHook] = WeakValueDictionary()


_PURE = {"cond", "switch", "while_loop", "while_loop_stack_output", "scan", "associative_scan"}
_PURE |= {"map_impl", "invoke_subgraph", "local_map_hop"}
"""The operators whose bodies may not accumulate anything into states outside of them."""


@_while_tracing
def hookstats_leaves_out() -> bool:
    """Whether the code is exported, torch.func transforms it, or it is the body of an operator that
    may change nothing outside."""
    _allow_in_graph()  # here, since a trace runs this function first
    # Dynamo itself takes is_exporting() for True before torch 2.12, whatever it traces for.
    transformed = is_exporting() or is_transforming()
    return transformed or not _PURE.isdisjoint(traced_operators())


@_while_tracing
def _hookstats_leaves_call_out(key: str) -> bool:
    """Whether a call of the module whose hook has `key` is left out; dynamo guards on the key."""
    if not hookstats_leaves_out():
        return False
    if not is_exporting():
        _note_trace(_traced_hooks[key])
    return True


def has_operators(buffers: DoubleBuffer) -> bool:
    """Whether the code that dynamo traces accumulates anything; dynamo guards on what this reads.

    Without a second graph for steps that are not recorded, operators have to find that out. So it
    is with CUDA graphs: another one would be captured in the midst of a training.
    """
    return _hookstats_becomes_cuda_graph() or buffers.recording


@_while_tracing
def _hookstats_becomes_cuda_graph() -> bool:
    return becomes_cuda_graph()


def _note_trace(hook: TracedHook) -> None:
    for sites in hook.sites():
        sites.traced = True


@_while_tracing
def _hookstats_fixed_dim(key: str, path: str, ndim: int, dtype: torch.dtype) -> int | None:
    hook = _traced_hooks[key]
    sites = hook.gradients if hook.values is None else hook.values
    with hook.buffers.lock:
        return None if sites is None else sites[path].fixed_dim(ndim, dtype)


@_while_tracing
def _hookstats_plan(
    key: str,
    path: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    layout: torch.layout,
    requires_grad: bool,
    is_leaf: bool,
    may_evaluate: bool,
    mesh: Any,
    placements: Any,
    whole: tuple[int, ...] | None,
    masked: bool,
) -> _Plan:
    look_at_tracer()
    hook = _traced_hooks[key]
    _note_trace(hook)
    plan = _Plan()
    unreadable = None if layout is torch.strided else f"layout {short(layout)}"
    dtensor = None if whole is None else Placed(mesh, tuple(placements), whole)
    refused = None if whole is None else refused_placement(placements)
    if whole is not None and unreadable is None and 0 in shape and 0 not in whole:
        unreadable = EMPTY_SHARD
    if may_evaluate and hook.phase == 0 and hook.buffers.is_evaluation():
        unreadable = EVALUATION
    # A checkpoint will run the graph again in the backward. A reentrant checkpoint ran the code
    # without gradients before, and compiles another graph for the backward now.
    in_checkpoint = top_saved_tensors_hooks(True) is not None
    in_backward = current_graph_task_id() != -1

    with hook.buffers.lock:
        for sites in hook.sites():
            of_values = sites is hook.values
            widths = sites[path]
            site = widths.find_like(shape, dtype, device) or widths.first
            runs_again = in_checkpoint or (of_values and in_backward)
            recomputed = site.graph.counter(RECOMPUTATION, device) if runs_again else None
            reason = refused if of_values else _without_gradient(requires_grad, is_leaf)
            found = unreadable or reason or site.trace(shape, dtype, device, dtensor)
            if isinstance(found, str):
                plan.skipped += ((site.graph.counter(found, device), recomputed),)
                continue
            dim = site.channel_dim(len(shape), dtype)
            unmasked = site.graph.counter(MASK_UNFIT, device) if masked else None
            if of_values:
                plan.value = dim, found.state, found.accumulated, unmasked, recomputed
                continue
            awaited = site.graph.counter(AWAITED, device)
            partial = None if dtensor is None else site.graph.counter(PARTIAL, device)
            counters = found.accumulated, unmasked, awaited, partial, recomputed
            plan.gradient = dim, of_backward(found.state), *counters
    return plan


def _without_gradient(requires_grad: bool, is_leaf: bool) -> str | None:
    """Why no gradient of a tensor is recorded in compiled code; None if it is."""
    if is_leaf or not requires_grad:
        return LEAF if is_leaf else NO_GRADIENT
    if can_save_without_version():
        return None
    warn(
        f"hookstats: on torch {torch.__version__}, gradients of activations in compiled code are "
        "not recorded; torch 2.11 records them"
    )
    return OLD_COMPILER


@_in_graph
def _count(counter: Tensor, recomputed: Tensor | None) -> None:
    if recomputed is not None or _is_run(counter):
        count_once_(counter, recomputed)
    else:
        counter.add_(1)


@_in_graph
def _accumulate(
    x: Tensor,
    mask: Tensor | None,
    dim: int | None,
    state: State,
    accumulated: Tensor,
    unmasked: Tensor | None,
    recomputed: Tensor | None,
) -> None:
    _count(accumulated, recomputed)
    x = _local(x.detach())
    fitting = _fitting(mask, x, dim)
    once = recomputed is not None or _is_run(accumulated)
    if unmasked is not None and fitting is None:
        if once:  # a recomputation is no tensor that counts with all its rows
            count_once_(unmasked)
        else:
            unmasked.add_(1)
    (update_once_ if once else update_)(x, dim, *state, fitting)


def _fitting(mask: Tensor | None, x: Tensor, dim: int | None) -> Tensor | None:
    """The mask, if it says which rows of `x` count."""
    if mask is None or mask.device != x.device:
        return None
    try:
        return mask if covered_dims(mask.shape, x.shape, dim) else None
    except RuntimeError:  # a size that only the run of the graph will know
        return None


def _has_summands(gradient: Tensor) -> bool:
    return is_dtensor(gradient) and bool(refused_placement(placed(gradient).placements))


def _local(x: Tensor) -> Tensor:
    return local_shard(x) if is_dtensor(x) else x


@_in_graph
def _await_gradient(
    x: Tensor,
    mask: Tensor | None,
    dim: int | None,
    state: State,
    came: Tensor,
    unmasked: Tensor | None,
    awaited: Tensor,
    partial: Tensor | None,
    recomputed: Tensor | None,
) -> None:
    _count(awaited, recomputed)
    if _is_run(came) and current_graph_task_id() != -1:
        return  # a recomputation: the hooks of the first call get the gradient
    save_without_version((*state, came, unmasked, awaited, partial))
    refused = None if partial is None else (awaited, partial)
    into = _Into(dim, state, came, mask, unmasked, refused)
    register(into.receive, into.disable, x)


def _is_run(counter: Tensor) -> bool:
    """Whether an "eager" backend runs the graph as it is; others trace the graph once more.

    Checkpoints in a graph that runs recompute, and check the versions of their arguments.
    """
    return type(counter) is Tensor


class _Into(NamedTuple):
    """What takes the gradients of a tensor."""

    dim: int | None
    state: State
    came: Tensor
    mask: Tensor | None
    """That of the call which had the tensor."""
    unmasked: Tensor | None
    """How many gradients the mask does not fit."""
    refused: tuple[Tensor, Tensor] | None
    """Where each rank may have a summand of a gradient: how many are awaited, and were refused."""

    def receive(self, gradient: Tensor, first: bool) -> None:
        """Accumulate a gradient, and count it, both on the device."""
        gradient = gradient.detach()
        if self.refused is not None and _has_summands(gradient):
            for counter, change in zip(self.refused, (-1, 1), strict=True):
                _add(counter, change)
            return
        gradient = _local(gradient)
        fitting = _fitting(self.mask, gradient, self.dim)
        update_(gradient, self.dim, *self.state, fitting)
        _add(self.came, 1)
        if self.unmasked is not None and fitting is None:
            _add(self.unmasked, 1)

    def disable(self, error: Exception) -> None:
        """A graph cannot go on without the gradient that it is to accumulate."""
        raise error


def _add(counter: Tensor, change: int) -> None:
    (counter.data if _is_run(counter) else counter).add_(change)
