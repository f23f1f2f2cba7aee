"""The hooks of tensors: they hand the gradient of one call's tensor to a receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor
from torch._C import DisableTorchFunction
from torch.utils.hooks import RemovableHandle

from hookstats.hooks.inert import Hook
from hookstats.hooks.readable import is_distributed, is_plain, unreadable
from hookstats.hooks.views import Version, ViewPart


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
