"""CapturedCall: what was captured of one call of a module, forward and backward together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

Leaves = dict[str, Tensor | str]
"""The tensors of one kind by their paths; for a tensor that was left out, the reason."""

MISSING = "missing"
"""The reason for a gradient that has not arrived."""


class CapturedCall:
    """One call of a module. Four attributes have its captured tensors, which are detached.

    `input`, `output`, `grad_input`, `grad_output`: a tensor; a tuple of tensors if the call has
    several, in the order of `leaves.leaves`, with None for each that was left out; None if there is
    no tensor at all. A gradient has the same place in its tuple as its tensor, and is None until a
    backward brings it. Attributes of kinds that are not captured raise AttributeError.

    Attributes:
        name: the qualified name of the module; "" is the root.
        index: the number of the call of its module, from 0; recomputations are no calls.
        kinds: the captured kinds.
        nbytes: the bytes of the kept elements.
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
        """The tensors that the module returned, as they were then."""
        return self._tensors("output")

    @property
    def grad_input(self) -> Any:
        """The gradients of the inputs, each the total over all uses of the tensor; after several
        backwards, those of the last."""
        return self._tensors("grad_input")

    @property
    def grad_output(self) -> Any:
        """The gradients of the outputs; after several backwards, those of the last."""
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
        """The tensors of a kind by path ("", "[1]", ".logits"); of the last backward, if gradients.

        For a tensor that is not there, the reason, such as "missing"."""
        taken = self._leaves.get(kind, {})
        backwards = list(self._backwards.get(kind, {}).values())
        return taken | backwards[-1] if backwards else taken

    def add(self, kind: str, path: str, taken: Tensor | str, backward: int | None = None) -> None:
        """For the hooks: add a tensor, or the reason that there is none; a gradient comes with the
        number of the backward that brought it."""
        if backward is None:
            self._leaves.setdefault(kind, {})[path] = taken
        else:
            self._backwards.setdefault(kind, {}).setdefault(backward, {})[path] = taken

    def backwards(self, kind: str) -> int:
        """The number of backwards that brought gradients of `kind`."""
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
            raise AttributeError(f"{kind}: not captured, expected one of kinds = {self.kinds}")


def _packed(leaves: Leaves) -> Any:
    tensors = [None if isinstance(leaf, str) else leaf for leaf in leaves.values()]
    if len(tensors) == 1:
        return tensors[0]
    return None if all(tensor is None for tensor in tensors) else tuple(tensors)


def _sketch(leaves: Mapping[str, Tensor | str]) -> str:
    shapes = [leaf if isinstance(leaf, str) else str(list(leaf.shape)) for leaf in leaves.values()]
    return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
