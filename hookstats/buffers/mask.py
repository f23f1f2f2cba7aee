"""CurrentMask: the mask of the calls under way on a thread, which hooks look up."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from hookstats import _hooks

Chain: TypeAlias = "tuple[Tensor | None, Chain | None]"
"""The mask of a call, and what the call is in."""


class CurrentMask:
    """Which rows of the tensors of calls count now."""

    __slots__ = ("_begun", "_native", "mismatch", "outside", "traced")

    def __init__(self, native: _hooks.DoubleBuffer | None) -> None:
        self._native = native
        # By thread: the calls and contexts under way, innermost last: the id of the module or
        # context, whether it is a call, and the mask.
        self._begun: dict[int, tuple[tuple[int, bool, Tensor | None], ...]] = {}
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
        begun = self._begun.get(get_ident())
        return begun[-1][2] if begun else None

    def in_trace(self) -> Tensor | None:
        """What holds where dynamo traces: of calls in compiled code, or else `outside`."""
        return self.outside if self.traced is None else self.traced[0]

    def begin(self, by: object, mask: Tensor | None) -> None:
        """A call of the module `by`, or a context, begins on this thread: `mask` is as `now`."""
        begun = self._begun.get(get_ident(), ())
        self._set((*begun, (id(by), isinstance(by, nn.Module), mask)))

    def end(self, by: object) -> None:
        """The call or context that began by `by`, if there is one, ends on this thread, with all
        within it."""
        begun = self._begun.get(get_ident(), ())
        for place, one in enumerate(begun):
            if one[0] == id(by):
                self._set(begun[:place])
                return

    def step_closed(self) -> None:
        """A step was closed on this thread: no call is under way any more, as where an error or an
        interrupt ended one."""
        self.traced = None
        if begun := self._begun.get(get_ident()):
            self._set(tuple([one for one in begun if not one[1]]))

    def _set(self, begun: tuple[tuple[int, bool, Tensor | None], ...]) -> None:
        if begun:
            self._begun[get_ident()] = begun
        else:
            self._begun.pop(get_ident(), None)
        masks = [each[-1][2] for each in list(self._begun.values())]
        several = len(masks) > 1 and any(one is not None for one in masks)
        self.outside = self.mismatch if several else masks[0] if masks else None
        if self._native is not None:
            self._native.set_mask(self.now)
