"""MaskOfCalls: the mask of the calls under way, which hooks look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from hookstats import _hooks


class MaskOfCalls:
    """Which rows of the tensors of calls count now."""

    __slots__ = ("_is_changing", "_native", "expected", "is_missed", "now")

    def __init__(self, native: _hooks.Arena | None) -> None:
        self._native = native
        self._is_changing = False  # as where an interrupt came
        self.now: Tensor | None = None
        """bool [batch, time] or [rows], contiguous; None where all rows count. It says nothing of
        tensors on other devices than its own."""
        self.expected = False
        """Whether there may be masks, which compiled code does not know."""
        self.is_missed = False
        """Whether somebody was warned of such code."""

    def set(self, mask: Tensor | None) -> None:
        """Have rows of the calls from now on count as `mask` says."""
        if mask is self.now and not self._is_changing:
            return
        self._is_changing = True
        if self._native is not None:
            self._native.set_mask(mask)
        self.now = mask
        self._is_changing = False
