"""Version: whether a tensor was changed in place since; ViewPart: a view's part of a gradient."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _DisableTorchDispatch


class ViewPart:
    """Where a view lies in its base."""

    __slots__ = ("_base_stride", "_offset", "_shape", "_stride")

    def __init__(self, view: Tensor, base: Tensor) -> None:
        self._shape = view.shape
        self._stride = view.stride()
        self._offset = view.storage_offset() - base.storage_offset()
        self._base_stride = base.stride()

    def of(self, gradient: Tensor) -> Tensor:
        """What of `gradient`, of the base and detached, lies where the view lies in the base."""
        if gradient.stride() != self._base_stride:
            laid_out = torch.empty_strided(
                gradient.shape, self._base_stride, dtype=gradient.dtype, device=gradient.device
            )
            gradient = laid_out.copy_(gradient)
        offset = gradient.storage_offset() + self._offset
        return gradient.as_strided(self._shape, self._stride, offset)


_NOTHING = torch.empty(0, device="cpu")


class Version:
    """The version of a tensor when this was made; keeps none of its values.

    A view and its base share one: either may have been changed.
    """

    __slots__ = ("_probe", "_version")

    def __init__(self, tensor: Tensor) -> None:
        # It has no values, but shares the version counter.
        with _DisableTorchDispatch():  # of a DTensor, too
            self._probe = tensor.detach()
        self._probe.data = _NOTHING
        self._version = tensor._version

    def is_past(self) -> bool:
        """Whether the tensor was changed in place since."""
        return self._probe._version != self._version
