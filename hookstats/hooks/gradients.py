"""The hooks of tensors, which hand the gradient of one call's tensor to a receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hookstats._torch import is_plain
from hookstats.hooks.inert import Hook
from hookstats.hooks.readable import is_distributed, unreadable, without_torch_function
from hookstats.hooks.views import View, awaited_base
from hookstats.records import reasons


class Receiver(Protocol):
    """Takes the gradients of one tensor, as a `Site` does."""

    def receive(self, gradient: Tensor, first: bool) -> None:
        """Take a gradient that arrived; `first`: no other gradient arrived for its tensor."""

    def refuse(self, gradient: Tensor, first: bool) -> None:
        """Count the gradient of a view's base if the view's part cannot be taken out of it."""

    def disable(self, error: Exception) -> object:
        """Take no more gradients because of `error`, and warn; raises nothing but device errors."""


class GradientHook(Hook):
    """Tensor hook for one call's tensor: hands the gradient to a receiver, once per backward.

    For a view that is replaced in the graph (see `View`), `BaseHook` takes over.
    """

    __slots__ = ("_first", "receiver", "view")
    __torch_unserializable__ = True  # a tensor is saved without the hook, and without a warning

    def __init__(self, receiver: Receiver, view: View | None) -> None:
        """view: if the tensor is one, and has a `BaseHook`, too."""
        self.receiver = receiver
        self.view = view
        self._first = True

    def __call__(self, gradient: Tensor | None) -> None:
        # An undefined gradient is None.
        if gradient is not None and not (self.view is not None and self.view.is_replaced()):
            self.hand_on(self.receiver.receive, gradient)

    def hand_on(self, receive: Callable[[Tensor, bool], None], gradient: Tensor) -> None:
        """Give a gradient to the receiver, with whether it is the first."""
        first, self._first = self._first, False
        receive(gradient, first)


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
                taken = is_plain(gradient) and not unreadable(gradient)
                part = view.part_of(gradient.detach()) if taken else gradient
        except Exception as error:
            hook.receiver.disable(error)
        else:
            hook.hand_on(hook.receiver.receive if taken else hook.receiver.refuse, part)


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


def register(receiver: Receiver, tensor: Tensor) -> list[RemovableHandle]:
    """Register the hooks that hand the gradient of `tensor`, once per backward, to `receiver`."""
    base = awaited_base(tensor)
    view = None if base is None else View(tensor, base)
    hook = GradientHook(receiver, view)
    handles = []
    if base is not None and view is not None:
        handles.append(base.register_hook(BaseHook(hook, view)))  # type: ignore[no-untyped-call]
    return [*handles, tensor.register_hook(hook)]  # type: ignore[no-untyped-call]
