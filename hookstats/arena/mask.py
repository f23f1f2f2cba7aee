"""MaskOfCalls: the mask of the calls under way, which hooks look up."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from hookstats import _hooks


Chain: TypeAlias = "tuple[Tensor | None, Chain | None]"
"""The mask of a call, and what the call is in."""


class MaskOfCalls:
    """Which rows of the tensors of calls count now."""

    __slots__ = ("_is_changing", "_native", "expected", "now", "traced")

    def __init__(self, native: _hooks.Arena | None) -> None:
        self._native = native
        self._is_changing = False  # as where an interrupt came
        self.now: Tensor | None = None
        """bool [batch, time] or [rows], contiguous; None where all rows count. It says nothing of
        tensors on other devices than its own."""
        self.expected = False
        """Whether there may be masks."""
        self.traced: Chain | None = None
        """In compiled code, and where its graph breaks: the calls of models that are under way."""

    def in_trace(self) -> Tensor | None:
        """What holds where dynamo traces: of calls in compiled code, or else `now`."""
        return self.now if self.traced is None else self.traced[0]

    def set(self, mask: Tensor | None) -> None:
        """Have rows of the calls from now on count as `mask` says."""
        if mask is self.now and not self._is_changing:
            return
        self._is_changing = True
        if self._native is not None:
            self._native.set_mask(mask)
        self.now = mask
        self._is_changing = False
