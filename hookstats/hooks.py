"""The hooks of modules and tensors: thin callables, and the sites they feed.

None of them returns anything, holds a tensor with values, or raises. Each asks first whether its
arena is recording: that is all it costs where it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from torch import Tensor, nn
from torch._C import (
    DisableTorchFunction,
    _current_graph_task_id,
    _get_tracing_state,
)
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from hookstats import native
from hookstats.accumulators import Arena
from hookstats.leaves import Leaf, argument_leaves, leaves
from hookstats.sharding import is_distributed, is_plain
from hookstats.sites import Site, Sites, unreadable
from hookstats.traced import TracedHook, run_untraced
from hookstats.versions import Version
from hookstats.views import ViewPart


class Inert:
    """What a copy of a watched model has in a hook's place: it does nothing."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        pass


class Hook:
    """A hook that belongs to one model: copied or pickled with it, it becomes inert."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[type[Inert], tuple[()]]:
        return Inert, ()


class _ModuleHook(Hook):
    """Folds the tensors of one module's calls in, and has their gradients folded in."""

    __slots__ = ("_traced", "arena", "gradients", "values")

    def __init__(self, arena: Arena, values: Sites | None, gradients: Sites | None) -> None:
        self.arena = arena
        self.values = values
        self.gradients = gradients
        self._traced = TracedHook(arena, values, gradients)

    def _observe(self, found: Iterable[Leaf]) -> None:
        """Count and fold in the tensors of a call, and await their gradients."""
        values, gradients = self.values, self.gradients
        with self.arena.lock, DisableTorchFunction():
            reason = detour()
            empty = True
            try:
                for path, tensor in found:
                    empty = False
                    if values is not None:
                        if reason is None:
                            values[path].observe(tensor)
                        else:
                            values[path].skip(reason)
                    if gradients is not None:
                        _await_gradient(gradients[path], tensor, reason)
                if empty:
                    self._skip("no tensor")
            except Exception as error:  # from a container of the user's
                self._skip("disabled", error)

    def _skip(self, reason: str, error: Exception | None = None) -> None:
        """Count a call of which there is no leaf to count."""
        for sites in (self.values, self.gradients):
            if sites is not None:
                if error is not None:
                    sites[""].disable(error)
                sites[""].skip(reason)


class OutputHook(_ModuleHook):
    """Forward hook of one module, for its outputs."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if self.arena.recording:
            if is_dynamo_compiling():
                self._traced.observe(leaves(output))
            else:
                self._observe(leaves(output))


class InputHook(_ModuleHook):
    """Forward pre-hook of one module, with keyword arguments, for its inputs.

    The gradient of an input is its total one, over all that use the tensor, not the module alone.
    """

    __slots__ = ()

    def __call__(
        self,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: Mapping[str, object] | None = None,
    ) -> None:
        # A hook that is removed by one before it is still called, but without them.
        if self.arena.recording and kwargs is not None:
            if is_dynamo_compiling():
                self._traced.observe(argument_leaves(args, kwargs))
            else:
                self._observe(argument_leaves(args, kwargs))


for _hook in (OutputHook, InputHook):
    run_untraced(_hook.__call__)


class Receiver(Protocol):
    """What takes the gradients of one tensor: a `Site`, for one."""

    def receive(self, gradient: Tensor, first: bool) -> None:
        """Take a gradient that came; `first`: no other came for its tensor yet."""

    def refuse(self, gradient: Tensor, first: bool) -> None:
        """Take note of the gradient of a view's base, of which the view's part cannot be taken."""

    def disable(self, error: Exception) -> object:
        """Take no gradient any more because of `error`, and say so; raises nothing but device
        errors."""


class GradientHook(Hook):
    """Tensor hook for one call's tensor: hands its gradient to a receiver, once a backward.

    A view that is changed in place later is replaced in the graph, and this hook then gets a part
    of the gradient or none. Its base's gradient has all of it, so there `BaseHook` takes over.
    """

    __slots__ = ("_first", "_version", "receiver")
    __torch_unserializable__ = True  # saved with a tensor, it is left out without a warning

    def __init__(self, receiver: Receiver, view: Tensor | None) -> None:
        """view: the tensor, if it is a view."""
        self.receiver = receiver
        self._first = True
        self._version = None if view is None else Version(view)

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None and not self.is_replaced():  # None: an undefined one
            self.hand_on(self.receiver.receive, gradient)

    def is_replaced(self) -> bool:
        """Whether the tensor is a view of something that was changed in place since."""
        return self._version is not None and self._version.is_past()

    def hand_on(self, receive: Callable[[Tensor, bool], None], gradient: Tensor) -> None:
        """Give a gradient to the receiver, and say whether it is the first."""
        first, self._first = self._first, False
        receive(gradient, first)


class BaseHook(Hook):
    """Tensor hook for the base of a view: its gradient stands in for that of a replaced view.

    That is the gradient of the values at the view's place, also where others use the base.
    """

    __slots__ = ("_hook", "_part")
    __torch_unserializable__ = True

    def __init__(self, hook: GradientHook, view: Tensor, base: Tensor) -> None:
        self._hook = hook
        self._part = ViewPart(view, base)

    def __call__(self, gradient: Tensor | None) -> None:
        hook = self._hook
        if gradient is None or not hook.is_replaced():
            return
        try:
            with DisableTorchFunction():
                taken = is_plain(gradient) and not unreadable(gradient)
                part = self._part.of(gradient.detach()) if taken else gradient
        except Exception as error:
            hook.receiver.disable(error)
        else:
            hook.hand_on(hook.receiver.receive if taken else hook.receiver.refuse, part)


def _await_gradient(site: Site, tensor: Tensor, reason: str | None) -> None:
    """Register the hooks that fold the gradient of `tensor` in, or count why not."""
    site.counts.forwards += 1
    try:
        if reason is None and site.counts.disabled:
            reason = "disabled"
        reason = reason or why_no_gradient(tensor)
        if reason is None:
            if site.native is not None and native.hooks is not None:
                native.hooks.await_gradient(site.native, tensor)
            else:
                register(site, tensor)
            site.counts.missing += 1
    except Exception as error:
        reason = site.disable(error)
    if reason is not None:
        site.counts.skip(reason)


def why_no_gradient(tensor: Tensor) -> str | None:
    """Why a hook is not to wait for the gradient of `tensor`, None if it may."""
    # The gradient of a DTensor has placements of its own.
    if not is_distributed(tensor) and (reason := unreadable(tensor)) is not None:
        return reason
    if not tensor.requires_grad:
        return "requires no gradient"
    # Reading grad_fn also brings it up to date where the tensor is a view of something that was
    # changed in place: on a stale one, register_hook crashes.
    return "leaf" if tensor.grad_fn is None else None


def register(receiver: Receiver, tensor: Tensor) -> list[RemovableHandle]:
    """Register the hooks that hand the gradient of `tensor`, one a backward, to `receiver`."""
    base = tensor._base
    if base is None or base.is_leaf:
        return [tensor.register_hook(GradientHook(receiver, None))]  # type: ignore[no-untyped-call]
    hook = GradientHook(receiver, tensor)
    return [
        base.register_hook(BaseHook(hook, tensor, base)),  # type: ignore[no-untyped-call]
        tensor.register_hook(hook),  # type: ignore[no-untyped-call]
    ]


def fastest(hook: OutputHook | InputHook) -> Callable[..., Any]:
    """What to register with a module: the C++ hook that stands for `hook`, or `hook` itself."""
    arena = hook.arena.native
    if native.hooks is None or arena is None:
        return hook
    kind = native.hooks.OutputHook if isinstance(hook, OutputHook) else native.hooks.InputHook
    front = kind(arena, hook, hook.values, hook.gradients)
    front.python = hook
    return cast(Callable[..., Any], front)


def _as_traced(self: Any, *args: Any) -> None:
    """What a tracer runs in a C++ hook's place."""
    self.python(*args)


if native.hooks is not None:
    for _kind in (native.hooks.OutputHook, native.hooks.InputHook):
        _kind.__deepcopy__ = Hook.__deepcopy__
        _kind.__reduce__ = Hook.__reduce__
        native.hooks.set_traced(_kind, _as_traced)


def detour() -> str | None:
    """Why a forward call is not one of the training's own, None if it is."""
    if _current_graph_task_id() != -1:
        return "recomputation"
    if _get_tracing_state() is not None:
        return "torch.jit.trace"
    if forward_ad._current_level != -1:
        return "forward-mode derivative"
    return None
