"""CapturedCall: what was captured of one call of a module, forward and backward together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

Leaves = dict[str, Tensor | str]
"""The tensors of one kind by their paths; where one was left out, the reason."""

MISSING = "missing"
"""What is said of a gradient that has not come."""


class CapturedCall:
    """One call of a module. What was captured of it, detached, is in four attributes.

    `input`, `output`, `grad_input`, `grad_output`: a tensor; a tuple of them where the call has
    several, in the order of `leaves.leaves`, with None for each that was left out; None where
    there is none at all. A gradient has the place in its tuple that its tensor has, and is None
    until a backward brings it. One of a kind that is not captured raises AttributeError.

    Attributes:
        name: the qualified name of the module, "" for the root.
        index: which call of its module it is, from 0; recomputations are no calls.
        kinds: what is captured.
        nbytes: bytes of the elements that are kept.
    """

    __slots__ = ("__weakref__", "_backwards", "_leaves", "index", "kinds", "name", "nbytes")

    def __init__(self, name: str, index: int, kinds: tuple[str, ...]) -> None:
        self.name = name
        self.index = index
        self.kinds = kinds
        self.nbytes = 0
        self._leaves: dict[str, Leaves] = {}
        self._backwards: dict[str, dict[int, Leaves]] = {}

    @property
    def input(self) -> Any:
        """The tensors among the arguments, as they were before the call."""
        return self._tensors("input")

    @property
    def output(self) -> Any:
        """The tensors in what the module returned, as they were then."""
        return self._tensors("output")

    @property
    def grad_input(self) -> Any:
        """The gradients of the inputs: the total ones, over all that use the tensor. Of several
        backwards, the last one's."""
        return self._tensors("grad_input")

    @property
    def grad_output(self) -> Any:
        """The gradients of the outputs. Of several backwards, the last one's."""
        return self._tensors("grad_output")

    @property
    def grad_inputs(self) -> list[Any]:
        """`grad_input` of every backward that brought one, in order."""
        return self._tensors_of_all("grad_input")

    @property
    def grad_outputs(self) -> list[Any]:
        """`grad_output` of every backward that brought one, in order."""
        return self._tensors_of_all("grad_output")

    def leaves(self, kind: str) -> Leaves:
        """The tensors of a kind by their paths ("", "[1]", ".logits"), of a gradient the last
        backward's; where there is none, the reason, such as "missing"."""
        taken = self._leaves.get(kind, {})
        backwards = list(self._backwards.get(kind, {}).values())
        return taken | backwards[-1] if backwards else taken

    def add(self, kind: str, path: str, taken: Tensor | str, backward: int | None = None) -> None:
        """For the hooks: add a tensor, or the reason that there is none; of a gradient with the
        number of the backward that brought it."""
        if backward is None:
            self._leaves.setdefault(kind, {})[path] = taken
        else:
            self._backwards.setdefault(kind, {}).setdefault(backward, {})[path] = taken

    def backwards(self, kind: str) -> int:
        """How many backwards brought gradients of `kind`."""
        return len(self._backwards.get(kind, {}))

    def __repr__(self) -> str:
        parts = [f"{kind}={_sketch(self.leaves(kind))}" for kind in self.kinds]
        return f"CapturedCall({', '.join([repr(self.name), str(self.index), *parts])})"

    def _tensors(self, kind: str) -> Any:
        self._check(kind)
        return _packed(self.leaves(kind))

    def _tensors_of_all(self, kind: str) -> list[Any]:
        self._check(kind)
        awaited = self._leaves.get(kind, {})
        return [_packed(awaited | came) for came in self._backwards.get(kind, {}).values()]

    def _check(self, kind: str) -> None:
        if kind not in self.kinds:
            raise AttributeError(f"{kind}: not captured, expected it among kinds = {self.kinds}")


def _packed(leaves: Leaves) -> Any:
    tensors = [None if isinstance(leaf, str) else leaf for leaf in leaves.values()]
    if len(tensors) == 1:
        return tensors[0]
    return None if all(tensor is None for tensor in tensors) else tuple(tensors)


def _sketch(leaves: Mapping[str, Tensor | str]) -> str:
    shapes = [leaf if isinstance(leaf, str) else str(list(leaf.shape)) for leaf in leaves.values()]
    return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
