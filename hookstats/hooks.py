"""The hooks: thin callables that a module, a tensor or an optimizer calls, and the sites they feed.

None of them returns anything, holds a tensor with values, or raises. Each asks first whether its
arena is recording: that is all it costs where it is not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction, _current_graph_task_id, _get_tracing_state
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from hookstats.accumulators import Arena
from hookstats.leaves import Leaf, argument_leaves, leaves
from hookstats.sites import Site, Sites, unreadable
from hookstats.traced import TracedHook, run_untraced

_NOTHING = torch.empty(0, device="cpu")


class Inert:
    """What a copy of a watched model has in a hook's place: it does nothing."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        pass


class _Hook:
    """A hook that belongs to one model: copied or pickled with it, it becomes inert."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[type[Inert], tuple[()]]:
        return Inert, ()


class _ModuleHook(_Hook):
    """Folds the tensors of one module's calls in, and has their gradients folded in."""

    __slots__ = ("_arena", "_gradients", "_traced", "_values")

    def __init__(self, arena: Arena, values: Sites | None, gradients: Sites | None) -> None:
        self._arena = arena
        self._values = values
        self._gradients = gradients
        self._traced = TracedHook(arena, values, gradients)

    def _observe(self, found: Iterable[Leaf]) -> None:
        values, gradients = self._values, self._gradients
        with self._arena.lock, DisableTorchFunction():
            reason = _detour()
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
                        _await_gradient(self._arena, gradients[path], tensor, reason)
                if empty:
                    self._skip("no tensor")
            except Exception as error:  # from a container of the user's
                self._skip("disabled", error)

    def _skip(self, reason: str, error: Exception | None = None) -> None:
        """Count a call of which there is no leaf to count."""
        for sites in (self._values, self._gradients):
            if sites is not None:
                if error is not None:
                    sites[""].disable(error)
                sites[""].skip(reason)


class OutputHook(_ModuleHook):
    """Forward hook of one module, for its outputs."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if self._arena.recording:
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
        self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        if self._arena.recording:
            if is_dynamo_compiling():
                self._traced.observe(argument_leaves(args, kwargs))
            else:
                self._observe(argument_leaves(args, kwargs))


for _hook in (OutputHook, InputHook):
    run_untraced(_hook.__call__)


class GradientHook(_Hook):
    """Tensor hook for one call's tensor: folds its gradient in, once a backward.

    A view that is changed in place later is replaced in the graph, and this hook then gets a part
    of the gradient or none. Its base's gradient has all of it, so there `BaseHook` takes over.
    """

    __slots__ = ("_arena", "_awaited", "_probe", "_version", "site")
    __torch_unserializable__ = True  # saved with a tensor, it is left out without a warning

    def __init__(self, arena: Arena, site: Site, view: Tensor | None) -> None:
        """view: the tensor, if it is a view."""
        self._arena = arena
        self.site = site
        self._awaited = True
        self._probe: Tensor | None = None
        if view is not None:
            # It has no values, but shares the version counter of the view and its base.
            self._probe = view.detach()
            self._probe.data = _NOTHING
            self._version = view._version

    def __call__(self, gradient: Tensor | None) -> None:
        if not self.is_replaced():
            self.fold(gradient)

    def is_replaced(self) -> bool:
        """Whether the tensor is a view of something that was changed in place since."""
        return self._probe is not None and self._probe._version != self._version

    def fold(self, gradient: Tensor | None) -> None:
        """Count a gradient that came and fold it in; None is an undefined one."""
        if gradient is None:
            return
        arena, site = self._arena, self.site
        with arena.lock, DisableTorchFunction():
            reason = site.fold(gradient) if arena.recording else "step not recorded"
            site.backwards += 1
            if self._awaited:
                self._awaited = False
                site.missing -= 1
                site.settle(reason)


class BaseHook(_Hook):
    """Tensor hook for the base of a view: its gradient stands in for that of a replaced view.

    That is the gradient of the values at the view's place, also where others use the base.
    """

    __slots__ = ("_base_stride", "_hook", "_offset", "_shape", "_stride")
    __torch_unserializable__ = True

    def __init__(self, hook: GradientHook, view: Tensor, base: Tensor) -> None:
        self._hook = hook
        self._shape = view.shape
        self._stride = view.stride()
        self._offset = view.storage_offset() - base.storage_offset()
        self._base_stride = base.stride()

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is None or not self._hook.is_replaced():
            return
        try:
            with DisableTorchFunction():
                part = gradient if unreadable(gradient) else self._of_view(gradient.detach())
        except Exception as error:
            self._hook.site.disable(error)
        else:
            self._hook.fold(part)

    def _of_view(self, gradient: Tensor) -> Tensor:
        """The part of the base's gradient that lies where the view lies in the base."""
        if gradient.stride() != self._base_stride:
            laid_out = torch.empty_strided(
                gradient.shape, self._base_stride, dtype=gradient.dtype, device=gradient.device
            )
            gradient = laid_out.copy_(gradient)
        offset = gradient.storage_offset() + self._offset
        return gradient.as_strided(self._shape, self._stride, offset)


class StepHook(_Hook):
    """Step hook of one optimizer: observes its parameters, then says that it steps.

    An optimizer that is given a closure computes the gradients itself, in its step: there it is
    the hook after the step that does so, else the one before.
    """

    __slots__ = ("_after", "_arena", "_parameters", "_then")

    def __init__(
        self, arena: Arena, parameters: Parameters, then: Callable[[], None], *, after: bool
    ) -> None:
        self._arena = arena
        self._parameters = parameters
        self._then = then
        self._after = after

    def __call__(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if (closure is not None) is not self._after:
            return
        if self._arena.recording:
            self._parameters.observe(p for group in optimizer.param_groups for p in group["params"])
        self._then()


class Parameters:
    """The watched parameters: their values and gradients as an optimizer is about to use them."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._sites: dict[int, tuple[weakref.ref[Tensor], Site | None, Site | None]] = {}

    def add(self, parameter: Tensor, value: Site | None, gradient: Site | None) -> None:
        """Watch `parameter`, without keeping it alive."""
        self._sites[id(parameter)] = weakref.ref(parameter), value, gradient

    def observe(self, parameters: Iterable[Tensor]) -> None:
        """Fold in those of `parameters` that are watched."""
        with self._arena.lock, DisableTorchFunction():
            for parameter in parameters:
                reference, value, gradient = self._sites.get(id(parameter), (None, None, None))
                if reference is None or reference() is not parameter:
                    continue
                if value is not None:
                    value.observe(parameter)
                if gradient is not None:
                    _observe_gradient(gradient, parameter)

    def observe_all(self) -> None:
        """Fold all of them in."""
        alive = [reference() for reference, _, _ in self._sites.values()]
        self.observe(parameter for parameter in alive if parameter is not None)


def _observe_gradient(site: Site, parameter: Tensor) -> None:
    if parameter.grad is not None:
        site.backwards += 1
        site.observe(parameter.grad)
    elif not parameter.requires_grad:
        site.skip("requires no gradient")
    else:
        site.forwards += 1
        site.missing += 1


def _await_gradient(arena: Arena, site: Site, tensor: Tensor, reason: str | None) -> None:
    """Register the hooks that fold the gradient of `tensor` in, or count why not."""
    site.forwards += 1
    try:
        if reason is None:
            reason = "disabled" if site.error is not None else unreadable(tensor)
        if reason is None and not tensor.requires_grad:
            reason = "requires no gradient"
        # Reading grad_fn also brings it up to date where the tensor is a view of something that
        # was changed in place: on a stale one, register_hook crashes.
        if reason is None and tensor.grad_fn is None:
            reason = "leaf"
        if reason is None:
            _register(arena, site, tensor)
            site.missing += 1
    except Exception as error:
        reason = site.disable(error)
    if reason is not None:
        site.skipped[reason] += 1


def _register(arena: Arena, site: Site, tensor: Tensor) -> None:
    base = tensor._base
    if base is None or base.is_leaf:
        tensor.register_hook(GradientHook(arena, site, None))  # type: ignore[no-untyped-call]
        return
    hook = GradientHook(arena, site, tensor)
    base.register_hook(BaseHook(hook, tensor, base))  # type: ignore[no-untyped-call]
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def _detour() -> str | None:
    """Why a forward call is not one of the training's own, None if it is."""
    if _current_graph_task_id() != -1:
        return "recomputation"
    if _get_tracing_state() is not None:
        return "torch.jit.trace"
    if forward_ad._current_level != -1:
        return "forward-mode derivative"
    return None
