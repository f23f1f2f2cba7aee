"""Editor: a user's function for tensors in flight, and the check of what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hookstats.stats.printable import shown

EditFunction = Callable[[Tensor], Tensor | None]
"""The function that `edit` takes: from a tensor to its replacement; None keeps the tensor."""


class EditError(ValueError):
    """A function of `edit` did something that would fail silently; the message says where and what,
    and how to mend it."""


class Editor:
    """Applies one function to the tensors of one place, as long as it is active.

    place: the owner of the tensors, for messages: "Linear(in_features=2, out_features=3)".
    """

    __slots__ = ("active", "calls", "function", "place")

    def __init__(self, function: EditFunction, place: str) -> None:
        self.function = function
        self.place = place
        self.active = True
        self.calls = 0

    def apply(self, tensor: Tensor, kind: str) -> Tensor:
        """The function's replacement for `tensor`; `tensor` itself if the function keeps it.

        Args:
            tensor: the tensor in flight.
            kind: the kind of the tensor at the place: "output[1]", "gradient".
        Raises:
            EditError: the function changed its tensor in place, or its result does not fit.
        """
        self.calls += 1
        # Tensors of inference mode have no version.
        version = None if tensor.is_inference() else tensor._version
        edited = self.function(tensor)
        if version is not None and tensor._version != version:
            raise self.fault(
                kind,
                "changed its tensor in place, and everything that shares its memory with it: "
                "other gradients, the graph, its caller; expected a new tensor, as "
                "`return x * 2` rather than `x *= 2`",
            )
        if edited is None or edited is tensor:
            return tensor
        if not isinstance(edited, Tensor):
            raise self.fault(kind, f"returned {shown(edited)}; expected a torch.Tensor or None")
        if (edited.shape, edited.dtype, edited.device) != (
            tensor.shape,
            tensor.dtype,
            tensor.device,
        ):
            raise self.fault(kind, f"returned {_form(edited)}; expected {_form(tensor)}")
        return edited

    def error(self, kind: str, message: str) -> EditError:
        """An EditError that names the place."""
        return EditError(f"{kind} of {self.place}: {message}")

    def fault(self, kind: str, message: str) -> EditError:
        """An EditError that names the place, and the function that did what `message` says."""
        return self.error(kind, f"{_name(self.function)} {message}")


def _form(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}"


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name
