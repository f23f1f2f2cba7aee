"""View: a view of another tensor, and what becomes of its gradient if it is changed in place."""

from __future__ import annotations

import torch
from torch import Tensor

from hookstats._torch import DisableTorchDispatch, is_plain
from hookstats.hooks.readable import is_distributed

_NOTHING = torch.empty(0, device="cpu")


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
        """A copy of `gradient`, the base's, with the strides of the base."""
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
