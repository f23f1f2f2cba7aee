"""Rows in two buffers: one is filled while the other is read. Rows never move.

Nothing here counts the rows in use: callers do, and say after which row they want others. A call
that was interrupted, or that failed, therefore leaves nothing behind but memory, which the next
call gives out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.arena import pages
from hookstats.records.sparse import Int64

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 4 << 20  # per buffer, unless a single site needs more


class Table:
    """Rows of state, in groups of columns; grows by blocks."""

    def __init__(self, empty: Sequence[Tensor]) -> None:
        """empty: the values of an empty row, a tensor [1, columns] per group of columns."""
        self._empty = empty
        row_bytes = sum(row.nbytes for row in empty)
        self._capacity = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
        self._blocks: list[_Block] = []
        self._views: list[tuple[int, list[list[Tensor]]]] = [(0, []), (0, [])]

    def after(self, used: int, rows: int) -> list[Tensor]:
        """The next rows, if the first `used` are in use: one view [2, rows, columns] per group."""
        if not self._blocks or self._blocks[-1].end < used + rows:
            kept = [block for block in self._blocks if block.start < used]
            self._blocks = [*kept, _Block(self._empty, used, max(rows, self._capacity))]
        return self._blocks[-1].rows(used, rows)

    def first(self, rows: int, buffer: int) -> list[list[Tensor]]:
        """The first `rows` rows: per group a list of views [n, columns], one per block."""
        known, views = self._views[buffer]
        if known != rows or not views:  # as a rule, the views of the last step serve
            blocks, views = self._blocks, [[] for _ in self._empty]
            starts = [*(block.start for block in blocks[1:]), rows]
            for block, next_start in zip(blocks, starts, strict=True):
                n = min(next_start, rows) - block.start
                if n <= 0:
                    break
                for group, view in zip(block.groups, views, strict=True):
                    view.append(group[buffer, :n])
            self._views[buffer] = rows, views
        return views

    def clear(self, rows: int, buffer: int) -> None:
        """Make the first `rows` rows empty again."""
        for views, row in zip(self.first(rows, buffer), self._empty, strict=True):
            for view in views:
                view.copy_(row)


class _Block:
    """Rows that were allocated at once: those from `start` on, up to `end`."""

    def __init__(self, empty: Sequence[Tensor], start: int, capacity: int) -> None:
        self.groups = [_repeated(row, capacity) for row in empty]
        self.start = start
        self.end = start + capacity

    def rows(self, first: int, rows: int) -> list[Tensor]:
        place = first - self.start
        return [group[:, place : place + rows] for group in self.groups]


def _repeated(row: Tensor, capacity: int) -> Tensor:
    """Two buffers of `capacity` rows like `row`."""
    if row.device.type != "cpu":
        return row.repeat(2, capacity, 1)
    words = torch.from_numpy(pages.zeros(2 * capacity * row.numel()))
    block = words.view(row.dtype).view(2, capacity, row.numel())
    return block.copy_(row) if row.any() else block


class Counters:
    """A few int64 per row, on the host: counting and reading call no torch operator."""

    def __init__(self, kinds: int) -> None:
        """kinds: how many counters a row has."""
        self._kinds = kinds
        self._blocks: list[NDArray[np.int64]] = []

    def row(self, index: int) -> list[tuple[Int64, Int64]]:
        """A row: for each counter, an int64 [1] per buffer."""
        block, place = divmod(index, _BLOCK_ROWS)
        while len(self._blocks) <= block:
            self._blocks.append(np.zeros((2, self._kinds, _BLOCK_ROWS), np.int64))
        first, second = self._blocks[block][:, :, place : place + 1]
        return list(zip(first, second, strict=True))

    def first(self, rows: int, buffer: int) -> Int64:
        """A copy of the first `rows` rows, int64 [kinds, rows]."""
        if len(self._blocks) == 1:  # as a rule
            out: Int64 = self._blocks[0][buffer, :, :rows].copy()
            return out
        whole = [block[buffer] for block in self._blocks]
        return np.concatenate([np.empty((self._kinds, 0), np.int64), *whole], axis=1)[:, :rows]

    def clear(self, rows: int, buffer: int) -> None:
        """Make the first `rows` rows zero again."""
        for block in self._blocks:
            block[buffer, :, :rows] = 0
            rows = max(0, rows - _BLOCK_ROWS)


def zeros(columns: int, device: torch.device) -> Tensor:
    """int64 [1, columns]: an empty row of counts."""
    return torch.zeros(1, columns, dtype=torch.int64, device=device)
