"""Memory: for what is copied out of closed steps, used again once nobody has it any more."""

from __future__ import annotations

import weakref
from collections import deque

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
        self._kept: tuple[int, _Blocks] = 0, deque()  # their size, and those that are free

    def take(self, words: int) -> Tensor:
        """int64 [words] with anything in it. The memory is used again when neither the tensor is
        there, nor any tensor or array that shares its memory."""
        size, free = self._kept
        if size != words:
            free = deque()
            self._kept = words, free
        try:
            block = free.pop()
        except IndexError:
            block = np.empty(words, np.int64)
        lent = block[:]  # which lives as long as the tensor's memory
        weakref.finalize(lent, _give_back, block, free).atexit = False
        return torch.from_numpy(lent)


_Blocks = deque[NDArray[np.int64]]


def _give_back(block: NDArray[np.int64], free: _Blocks) -> None:
    if not free or (len(free) + 1) * block.nbytes <= _MOST_FREE:
        free.append(block)
