"""Rows of state that grow by blocks, so that no row ever moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 4 << 20  # per buffer, unless a single site needs more


class Rows:
    """Rows of state, in groups of columns, in one or two buffers.

    Callers count the rows in use and pass that count: an interrupted call leaves nothing behind but
    memory, which the next call gives out.
    """

    def __init__(self, empty: Sequence[Tensor], *, is_double: bool) -> None:
        """empty: the values of an empty row, a tensor [1, columns] per group of columns.

        is_double: whether the two buffers are separate memory; else they are the same rows.
        """
        self._empty = empty
        self._is_double = is_double
        row_bytes = sum(row.nbytes for row in empty)
        self._capacity = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
        self._blocks: list[_Block] = []
        self._views: list[tuple[int, list[list[Tensor]]]] = [(0, []), (0, [])]

    def after(self, used: int, rows: int) -> list[Tensor]:
        """The next rows, if the first `used` are in use: one view [2, rows, columns] per group."""
        if not self._blocks or self._blocks[-1].end < used + rows:
            kept = [block for block in self._blocks if block.start < used]
            groups = [self._rows_like(row, max(rows, self._capacity)) for row in self._empty]
            self._blocks = [*kept, _Block(groups, used)]
        return self._blocks[-1].rows(used, rows)

    def _rows_like(self, row: Tensor, capacity: int) -> Tensor:
        if self._is_double:
            return row.repeat(2, capacity, 1)
        return row.repeat(1, capacity, 1).expand(2, -1, -1)

    def first(self, rows: int, buffer: int) -> list[list[Tensor]]:
        """The first `rows` rows: per group a list of views [n, columns], one per block."""
        known, views = self._views[buffer]
        if known != rows or not views:  # the number of rows seldom changes
            blocks, views = self._blocks, [[] for _ in self._empty]
            starts = [*(block.start for block in blocks), rows][1:]
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

    def __init__(self, groups: list[Tensor], start: int) -> None:
        """groups: [2, capacity, columns] each."""
        self.groups = groups
        self.start = start
        self.end = start + (groups[0].shape[1] if groups else _BLOCK_ROWS)

    def rows(self, first: int, rows: int) -> list[Tensor]:
        place = first - self.start
        return [group[:, place : place + rows] for group in self.groups]


def zeros(columns: int, device: torch.device) -> Tensor:
    """int64 [1, columns]: an empty row of counts."""
    return torch.zeros(1, columns, dtype=torch.int64, device=device)
