"""Memory: for what is copied out of closed steps, used again once nobody has it any more."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MOST_FREE = 32 << 20
"""How many bytes are kept for later; one block is kept, whatever its size."""


class Memory:
    """Blocks of one size at a time; from any thread.

    The operating system empties each page that it gives out, which takes longer than to fill it.
    """

    def __init__(self) -> None:
        self._blocks = _Blocks(0)

    def take(self, words: int) -> Tensor:
        """int64 [words] with anything in it. The memory is used again when neither the tensor is
        there, nor any tensor or array that shares its memory."""
        blocks = self._blocks  # another thread may replace these
        if words != blocks.words:
            blocks = self._blocks = _Blocks(words)
        return torch.from_numpy(blocks.take())


class _Blocks:
    """Blocks of one size."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.free: list[NDArray[np.int64]] = []
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.int64]], NDArray[np.int64]]] = {}
        self._gone: deque[weakref.ref[NDArray[np.int64]]] = deque()

    def take(self) -> NDArray[np.int64]:
        """A view of a block, which is lent for as long as the view is there."""
        self._reclaim()
        try:
            block = self.free.pop()
        except IndexError:
            block = np.empty(self.words, np.int64)
        view = block[:]
        # Nothing in Python may run when a view goes: an interrupt that comes there is lost.
        ref = weakref.ref(view, self._gone.append)
        self._lent[id(ref)] = ref, block
        return view

    def _reclaim(self) -> None:
        with suppress(IndexError):
            while True:
                lent = self._lent.pop(id(self._gone.popleft()), None)
                if lent is None:  # an interrupt came before it was noted
                    continue
                _, block = lent
                if not self.free or (len(self.free) + 1) * block.nbytes <= _MOST_FREE:
                    self.free.append(block)
