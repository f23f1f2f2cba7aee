"""The hooks of tensors, which hand on the gradient of a call's tensor, or of a view."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hookstats._torch import DisableTorchDispatch, is_plain
from hookstats.hooks.inert import Hook
from hookstats.hooks.readable import is_distributed, unreadable, without_torch_function
from hookstats.records import reasons

_NOTHING = torch.empty(0, device="cpu")

Receive = Callable[[Tensor, bool], object]
"""Takes a gradient that arrived, and whether no other one arrived for its tensor before."""


class GradientHook(Hook):
    """Tensor hook for one call's tensor: hands on the gradient, once per backward.

    For a view that is replaced in the graph (see `View`), `BaseHook` takes over.
    """

    __slots__ = ("_first", "_receive", "disable", "view")
    __torch_unserializable__ = True  # a tensor is saved without the hook, and without a warning

    def __init__(
        self, receive: Receive, disable: Callable[[Exception], object], view: View | None
    ) -> None:
        """As `register`; view: if the tensor is one, and has a `BaseHook`, too."""
        self._receive = receive
        self.disable = disable
        self.view = view
        self._first = True

    def __call__(self, gradient: Tensor | None) -> None:
        # An undefined gradient is None.
        if gradient is not None and not (self.view is not None and self.view.is_replaced()):
            self.hand_on(gradient)

    def hand_on(self, gradient: Tensor) -> None:
        """Give a gradient to the receiver, with whether it is the first."""
        first, self._first = self._first, False
        self._receive(gradient, first)


class BaseHook(Hook):
    """Tensor hook for the base of a view: takes a replaced view's gradient out of the base's.

    That is the gradient of the values at the view's place, even if other tensors use the base.
    """

    __slots__ = ("_hook", "_view")
    __torch_unserializable__ = True

    def __init__(self, hook: GradientHook, view: View) -> None:
        self._hook = hook
        self._view = view

    def __call__(self, gradient: Tensor | None) -> None:
        hook, view = self._hook, self._view
        if gradient is None or not view.is_replaced():
            return
        try:
            with without_torch_function():
                if is_distributed(gradient):  # the memory of shards has no part that is the view
                    raise ValueError("a distributed view changed in place")
                part = view.part_of(gradient.detach())
        except Exception as error:
            hook.disable(error)
        else:
            hook.hand_on(part)


def why_no_gradient(tensor: Tensor) -> str | None:
    """Why a hook cannot wait for the gradient of `tensor`; None if it can."""
    # The placements of a DTensor's gradient may differ from the DTensor's.
    if not is_distributed(tensor) and (reason := unreadable(tensor)) is not None:
        return reason
    if not tensor.requires_grad:
        return reasons.NO_GRADIENT
    # Reading grad_fn also updates it if the tensor's base was changed in place: register_hook
    # crashes on a stale grad_fn.
    try:
        return reasons.LEAF if tensor.grad_fn is None else None
    except torch.AcceleratorError:
        raise  # the device is lost
    except RuntimeError:
        return reasons.STALE_VIEW


def register(
    receive: Receive, disable: Callable[[Exception], object], tensor: Tensor
) -> list[RemovableHandle]:
    """Register the hooks that hand the gradient of `tensor` on, once per backward.

    disable: called where the gradient of a view cannot be taken out of that of its base.
    """
    base = awaited_base(tensor)
    view = None if base is None else View(tensor, base)
    hook = GradientHook(receive, disable, view)
    handles = []
    if base is not None and view is not None:
        handles.append(base.register_hook(BaseHook(hook, view)))  # type: ignore[no-untyped-call]
    return [*handles, tensor.register_hook(hook)]  # type: ignore[no-untyped-call]


class View:
    """Whether a view was replaced in the graph, and where it lies in its base.

    A view that is changed in place is replaced in the graph. The gradient of the replaced view,
    which its hooks get, is then a part of the gradient or none; that of the base has all of it.
    This keeps no values of either tensor.
    """

    __slots__ = ("_base_stride", "_offset", "_probe", "_shape", "_stride", "_version")

    def __init__(self, view: Tensor, base: Tensor) -> None:
        self._probe = _without_values(view)
        self._version = view._version
        self._shape = view.shape
        self._stride = view.stride()
        self._offset = view.storage_offset() - base.storage_offset()
        self._base_stride = base.stride()

    def is_replaced(self) -> bool:
        """Whether the view, or its base, was changed in place since this was made."""
        return self._probe._version != self._version

    def part_of(self, gradient: Tensor) -> Tensor:
        """The part of `gradient`, the base's and detached, that lies where the view lies."""
        if gradient.stride() != self._base_stride:
            gradient = self.like_base(gradient)
        offset = gradient.storage_offset() + self._offset
        return gradient.as_strided(self._shape, self._stride, offset)

    def like_base(self, gradient: Tensor) -> Tensor:
        copy = torch.empty_strided(
            gradient.shape, self._base_stride, dtype=gradient.dtype, device=gradient.device
        )
        return copy.copy_(gradient)


def awaited_base(tensor: Tensor) -> Tensor | None:
    """The base to which a hook belongs, too, that awaits the gradient of `tensor`; None if `tensor`
    is no view, or its base is a leaf, whose views cannot be changed in place."""
    base = tensor._base
    return None if base is None or base.is_leaf else base


def _without_values(tensor: Tensor) -> Tensor:
    """A tensor that shares the version counter of `tensor`, and not its values."""
    if not (is_plain(tensor) or is_distributed(tensor)):
        return tensor.detach()  # while a graph is traced: it has no values
    with DisableTorchDispatch():
        probe = tensor.detach()
    probe.data = _NOTHING
    return probe
