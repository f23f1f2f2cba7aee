"""What the module hooks do where dynamo traces them: operators on tensors, which a graph can hold.

`TracedHook.observe` is traced, never run. Python that has to run at that time, and never again, is
in functions whose results dynamo takes for constants: what they return has no guards. What needs
autograd's own view of a tensor is in functions that dynamo puts into its graph as they are: "eager"
backends run them, AOTAutograd traces through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _current_graph_task_id
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._C._functorch import maybe_current_level
from torch.compiler import allow_in_graph, is_exporting

from hookstats.arena.arena import Arena
from hookstats.arena.graph_states import AWAITED, RECOMPUTED, State
from hookstats.hooks.dynamo import look_at_tracer
from hookstats.hooks.leaves import Leaf
from hookstats.hooks.sites import Sites
from hookstats.hooks.views import ViewPart
from hookstats.kernels.once_ops import count_once_, update_once_
from hookstats.kernels.ops import update_

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _while_tracing(function: _Function) -> _Function:
    # All that torch.compiler.assume_constant_result does, but for importing dynamo: a second.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_in_graph_functions: list[Callable[..., Any]] = []


def _in_graph(function: _Function) -> _Function:
    _in_graph_functions.append(function)
    return function


def _allow_in_graph() -> None:
    """Tell dynamo of the functions that it is to put into graphs; where it traces, it is there."""
    while _in_graph_functions:
        function = allow_in_graph(_in_graph_functions.pop())  # type: ignore[no-untyped-call]
        # Its result is nothing, and so nothing but this keeps a backend from leaving it out.
        torch.fx.node.has_side_effect(function)


class TracedHook:
    """One module hook's part in compiled code."""

    def __init__(self, arena: Arena, values: Sites | None, gradients: Sites | None) -> None:
        self.arena = arena
        self.values = values
        self.gradients = gradients

    def observe(self, found: Iterable[Leaf]) -> None:
        """Put into the graph what folds in the tensors `found`, and their gradients."""
        # Imported here: it takes its time, and where dynamo traces it is there.
        from torch.fx.experimental.symbolic_shapes import has_static_value

        if is_exporting() or _hookstats_in_transform():
            return
        for path, tensor in found:
            ndim = tensor.dim()
            dim = _hookstats_channel_dim(self, ndim)
            if dim is not None and -ndim <= dim < ndim:
                _constant(tensor.shape[dim])
            shape = tuple([_constant(n) if has_static_value(n) else -1 for n in tensor.shape])
            plan = _hookstats_plan(
                self,
                path,
                shape,
                tensor.dtype,
                tensor.device,
                tensor.layout,
                tensor.requires_grad,
                tensor.requires_grad and tensor.is_leaf,
            )
            for counter, recomputed in plan.skipped:
                _count(counter, recomputed)
            if plan.value is not None:
                _fold(tensor, dim, *plan.value)
            if plan.gradient is not None:
                _await_gradient(tensor, dim, *plan.gradient)


def _constant(n: int) -> int:
    """`n`, which the graph is then specialised for where it was dynamic."""
    return len(range(n))


class _Plan:
    """What a graph is to do with one tensor: arguments of the functions below."""

    def __init__(self) -> None:
        self.skipped: tuple[tuple[Tensor, Tensor | None], ...] = ()
        self.value: tuple[State, Tensor, Tensor | None] | None = None
        self.gradient: tuple[State, Tensor, Tensor, Tensor | None] | None = None


@_while_tracing
def _hookstats_in_transform() -> bool:
    """Whether the code is transformed by torch.func, which nothing outside may be changed in."""
    _allow_in_graph()  # this function is the first that a trace runs
    return maybe_current_level() is not None


@_while_tracing
def _hookstats_channel_dim(hook: TracedHook, ndim: int) -> int | None:
    sites = hook.gradients if hook.values is None else hook.values
    return None if sites is None else sites.rule(ndim)


@_while_tracing
def _hookstats_plan(
    hook: TracedHook,
    path: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    layout: torch.layout,
    requires_grad: bool,
    is_leaf: bool,
) -> _Plan:
    look_at_tracer()
    plan = _Plan()
    unreadable = None if layout is torch.strided else f"layout {str(layout)[len('torch.') :]}"
    # What a checkpoint runs now it will run in the backward too, but for a reentrant one, which
    # had it run without gradients, and now has a graph of its own in the backward.
    in_checkpoint = _top_saved_tensors_default_hooks(True) is not None
    in_backward = _current_graph_task_id() != -1

    with hook.arena.lock:
        if hook.values is not None:
            site = hook.values[path]
            recomputed = (
                site.graph.counter(RECOMPUTED, device) if in_checkpoint or in_backward else None
            )
            found = unreadable or site.trace(shape, dtype, device)
            if isinstance(found, str):
                plan.skipped += ((site.graph.counter(found, device), recomputed),)
            else:
                plan.value = found.state, found.folded, recomputed
        if hook.gradients is not None:
            site = hook.gradients[path]
            recomputed = site.graph.counter(RECOMPUTED, device) if in_checkpoint else None
            without = "leaf" if is_leaf else None if requires_grad else "requires no gradient"
            found = unreadable or without or site.trace(shape, dtype, device)
            if isinstance(found, str):
                plan.skipped += ((site.graph.counter(found, device), recomputed),)
            else:
                awaited = site.graph.counter(AWAITED, device)
                plan.gradient = found.state, found.folded, awaited, recomputed
    return plan


@_in_graph
def _count(counter: Tensor, recomputed: Tensor | None) -> None:
    if recomputed is not None or _is_run(counter):
        count_once_(counter, recomputed)
    else:
        counter.add_(1)


@_in_graph
def _fold(
    x: Tensor, dim: int | None, state: State, folded: Tensor, recomputed: Tensor | None
) -> None:
    _count(folded, recomputed)
    once = recomputed is not None or _is_run(folded)
    (update_once_ if once else update_)(x.detach(), dim, *state)


@_in_graph
def _await_gradient(
    x: Tensor,
    dim: int | None,
    state: State,
    came: Tensor,
    awaited: Tensor,
    recomputed: Tensor | None,
) -> None:
    _count(awaited, recomputed)
    if _is_run(came) and _current_graph_task_id() != -1:
        return  # a recomputation: the gradient comes to the call before
    _save_without_version((*state, came))
    base = x._base
    if base is None or base.is_leaf:
        x.register_hook(_Gradient(dim, state, came, None))  # type: ignore[no-untyped-call]
        return
    hook = _Gradient(dim, state, came, x)
    base.register_hook(_BaseGradient(hook, x, base))  # type: ignore[no-untyped-call]
    x.register_hook(hook)  # type: ignore[no-untyped-call]


def _save_without_version(tensors: Iterable[Tensor | None]) -> None:
    """Have AOTAutograd's graphs keep `tensors` for the backward without a check of their versions.

    They change in between, by another backward or because a step closes, and are meant to.
    """
    with suppress(ImportError, AttributeError):
        from torch._dynamo import compiled_autograd, config
        from torch.fx.experimental.proxy_tensor import _get_proxies

        if config.compiled_autograd or compiled_autograd.compiled_autograd_enabled:
            return  # it misses the tensors that are kept so
        for tensor in tensors:
            for proxy in () if tensor is None else _get_proxies(tensor):
                proxy.node.meta["saved_tensor_with_no_vc_check"] = True


def _is_run(counter: Tensor) -> bool:
    """Whether the graph is run as it is, by an "eager" backend, rather than traced once more.

    Checkpoints in it then recompute, and mind the versions of all that their part of it is given.
    """
    return type(counter) is Tensor


class _Gradient:
    """Tensor hook: `hooks.GradientHook` where there is nothing to count in Python."""

    def __init__(self, dim: int | None, state: State, came: Tensor, view: Tensor | None) -> None:
        """view: the tensor, if it is a view."""
        self._dim = dim
        self._state = state
        self._came = came
        self._probe: Tensor | None = None
        if view is not None:
            self._probe = view.detach()  # shares the version counter
            self._version = view._version

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None and not self.is_replaced():
            self.fold(gradient.detach())

    def is_replaced(self) -> bool:
        """Whether the tensor is a view of something that was changed in place since."""
        return self._probe is not None and self._probe._version != self._version

    def fold(self, gradient: Tensor) -> None:
        """Fold a gradient in, and count it."""
        update_(gradient, self._dim, *self._state)
        (self._came.data if _is_run(self._came) else self._came).add_(1)


class _BaseGradient:
    """Tensor hook for the base of a view: `hooks.BaseHook`, of a `_Gradient`."""

    def __init__(self, hook: _Gradient, view: Tensor, base: Tensor) -> None:
        self._hook = hook
        self._part = ViewPart(view, base)

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None and self._hook.is_replaced():
            self._hook.fold(self._part.of(gradient.detach()))
