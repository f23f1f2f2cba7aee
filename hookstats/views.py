"""ViewPart: which part of a base's gradient is that of a view."""

from __future__ import annotations

import torch
from torch import Tensor


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
