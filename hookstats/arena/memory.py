"""Memory: for what is copied out of closed steps, used again once nobody has it any more."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

_MOST_FREE = 32 << 20
"""How many bytes are kept for later; one block is kept, whatever its size."""


class Memory:
    """Blocks of one size at a time; from any thread.

    The operating system empties each page that it gives out, which takes longer than to fill it.
    """

    def __init__(self) -> None:
        self._blocks = _Blocks(0)

    def take(self, words: int) -> NDArray[np.int64]:
        """int64 [words] with anything in it. The memory is used again when neither the array is
        there, nor any array or tensor that shares its memory."""
        blocks = self._blocks  # another thread may replace these
        if words != blocks.words:
            blocks = self._blocks = _Blocks(words)
        return blocks.take()


class _Blocks:
    """Blocks of one size."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.free: list[memoryview] = []
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.int64]], memoryview]] = {}
        self._gone: deque[weakref.ref[NDArray[np.int64]]] = deque()

    def take(self) -> NDArray[np.int64]:
        """An array in a block, which is lent for as long as the array is there."""
        self._reclaim()
        try:
            block = self.free.pop()
        except IndexError:
            block = np.empty(self.words, np.int64).data
        # What shares the memory of an array keeps that array, unless the array itself is a view of
        # another one, which it keeps instead. Therefore blocks are no arrays.
        array = np.frombuffer(block, np.int64)
        # Nothing in Python may run when an array goes: an interrupt that comes there is lost.
        ref = weakref.ref(array, self._gone.append)
        self._lent[id(ref)] = ref, block
        return array

    def _reclaim(self) -> None:
        with suppress(IndexError):  # another thread was first
            while self._gone:
                lent = self._lent.pop(id(self._gone.popleft()), None)
                if lent is None:  # an interrupt came before it was noted
                    continue
                _, block = lent
                if not self.free or (len(self.free) + 1) * block.nbytes <= _MOST_FREE:
                    self.free.append(block)
