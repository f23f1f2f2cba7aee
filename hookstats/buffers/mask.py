"""CurrentMask: the mask of the calls under way on a thread, which hooks look up."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hookstats import _hooks

Chain: TypeAlias = "tuple[Tensor | None, Chain | None]"
"""The mask of a call, and what the call is in."""


class CurrentMask:
    """Which rows of the tensors of calls count now."""

    __slots__ = ("_by_thread", "_native", "expected", "mismatch", "outside", "traced")

    def __init__(self, native: _hooks.DoubleBuffer | None) -> None:
        self._native = native
        self._by_thread: dict[int, Tensor | None] = {}
        self.expected = False
        """Whether there may be masks."""
        # Made before any call, since what a transform makes is no plain tensor.
        self.mismatch = torch.ones(0, dtype=torch.bool, device="cpu")
        """A mask of no rows: under it, `coverage` counts every tensor as `unmasked`."""
        self.outside: Tensor | None = None
        """The mask for compiled code that begins now, which does not know its thread."""
        self.traced: Chain | None = None
        """In compiled code, and where its graph breaks: the calls of models that are under way."""

    @property
    def now(self) -> Tensor | None:
        """bool [batch, time] or [rows], contiguous; None where all rows count. It says nothing of
        tensors on other devices than its own, nor of calls on other threads."""
        return self._by_thread.get(get_ident())

    def in_trace(self) -> Tensor | None:
        """What holds where dynamo traces: of calls in compiled code, or else `outside`."""
        return self.outside if self.traced is None else self.traced[0]

    def set(self, mask: Tensor | None) -> None:
        """Have rows of this thread's calls, of which one is under way, count as `mask` says."""
        self._by_thread[get_ident()] = mask
        self._tell(mask)

    def clear(self) -> None:
        """No call of this thread is under way any more."""
        self._by_thread.pop(get_ident(), None)
        self._tell(None)

    def _tell(self, mask: Tensor | None) -> None:
        masks = list(self._by_thread.values())
        several = len(masks) > 1 and any(one is not None for one in masks)
        self.outside = self.mismatch if several else masks[0] if masks else None
        if self._native is not None:
            self._native.set_mask(mask)
