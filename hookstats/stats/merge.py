"""merge(): the states of many rows merged into groups, such as ranks, devices, steps or tensors.

It is one of two merges: the kernels' is in csrc/core/state.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.state import COUNT, IDENTITY, M2, MEAN, MOMENT_COLUMNS, MOMENTS, TALLIES

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

_UFUNCS = {"min": np.minimum, "max": np.maximum, "sum": np.add}


def merge(
    moments: Float64, tallies: Int64, group_of_row: Int64, groups: int
) -> tuple[Float64, Int64]:
    """Merge the rows of each group: float64 [R, 5] -> [groups, 5], int64 [R, 5] -> [groups, 5].

    The columns are those of `stats.state`. A group without finite values gets the moments of no
    values. Where all means of a group are equal, the result is that mean to the last bit.

    Means and m2 merge by the formulas of Chan, Golub and LeVeque, "Updating formulae and a pairwise
    algorithm for computing sample variances" (1979), for any number of rows at once.

    Args:
        moments, tallies: the rows; fastest where each column is contiguous.
        group_of_row: int64 [R], the group of each row, in any order; -1: in none.
        groups: how many groups there are.
    """
    merged, total = np.empty((len(MOMENTS), groups)), np.empty((len(TALLIES), groups), np.int64)
    for part in _parts(group_of_row, groups):
        _merge_part(part, moments.T, tallies.T, merged[:, part.groups], total[:, part.groups])
    return merged.T, total.T


def _merge_part(
    part: _Runs | _Blocks, moments: Float64, tallies: Int64, merged: Float64, total: Int64
) -> None:
    """Merge the rows of some groups; all arrays are [columns, rows or groups]."""
    for i, tally in enumerate(tallies):
        total[i] = part.reduce(np.add, part.arrange(tally), 0)
    count, means = part.arrange(tallies[COUNT]), part.arrange(moments[MEAN])
    none = count == 0
    has_none = none.any()
    with np.errstate(invalid="ignore", over="ignore"):  # infinite moments
        # Shifted by the largest mean, so that equal means stay equal to the last bit.
        means = np.where(none, -np.inf, means) if has_none else means
        shift = part.reduce(np.maximum, means, -np.inf)
        away = means - part.spread(shift)
        if has_none:
            away[none] = 0.0
        share = count / part.spread(np.maximum(total[COUNT], 1))
        offset = part.reduce(np.add, away * share, 0.0)
        merged[MEAN] = shift + offset
        away -= part.spread(offset)
        if has_none:
            away[none] = 0.0
        squares = away * away * count + part.arrange(moments[M2])
        merged[M2] = part.reduce(np.add, squares, 0.0)
        for i, column in enumerate(MOMENT_COLUMNS):
            if ufunc := _UFUNCS.get(column.merge):
                merged[i] = part.reduce(ufunc, part.arrange(moments[i]), column.identity)
    merged[:, total[COUNT] == 0] = np.array(IDENTITY)[:, None]


_AT_ONCE = 1 << 14
"""Rows that are merged at once: their columns fit in a core's cache, and in memory that the heap
keeps. Larger arrays are returned to the operating system each time, which takes longer than merging
them."""


class _Runs:
    """Some groups, each a run of rows."""

    def __init__(self, order: Int64 | None, offsets: Int64, groups: slice) -> None:
        """order: the order of the rows that puts them by their groups; None if they are.

        offsets: int64 [groups + 1], where the rows of each of these groups begin, in that order.
        """
        self.groups = groups
        self._rows = slice(int(offsets[0]), int(offsets[-1]))
        self._order = None if order is None else order[self._rows]
        self._offsets = offsets - offsets[0]
        self._lengths = np.diff(offsets)

    def arrange(self, column: NDArray[Any]) -> NDArray[Any]:
        """The rows of these groups, of a column of all rows."""
        return column[self._rows] if self._order is None else column[self._order]

    def reduce(self, ufunc: np.ufunc, values: NDArray[Any], empty: float) -> NDArray[Any]:
        """`ufunc` over each group, [groups]."""
        return reduce_runs(ufunc, values, self._offsets, empty)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Each group's value for each of its rows."""
        return np.repeat(values, self._lengths)


class _Blocks:
    """Some groups, each of which has one row in each of several blocks of rows."""

    def __init__(self, blocks: int, groups: slice) -> None:
        self.groups = groups
        self._blocks = blocks

    def arrange(self, column: NDArray[Any]) -> NDArray[Any]:
        """The rows of these groups, of a column of all rows: [blocks, groups]."""
        return column.reshape(self._blocks, -1)[:, self.groups]

    def reduce(self, ufunc: np.ufunc, values: NDArray[Any], empty: float) -> NDArray[Any]:
        """`ufunc` over each group, [groups]."""
        reduced: NDArray[Any] = ufunc.reduce(values, 0)
        return reduced

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Each group's value for each of its rows; they broadcast."""
        return values


def _parts(group_of_row: Int64, groups: int) -> Iterator[_Runs | _Blocks]:
    """The groups, some at a time; without sorting where the rows are blocks in order of groups."""
    blocks, rest = divmod(len(group_of_row), max(groups, 1))
    are_blocks = groups > 1 and blocks and not rest  # all rows of one group are a run
    if are_blocks and (group_of_row.reshape(blocks, groups) == np.arange(groups)).all():
        step = max(1, _AT_ONCE // blocks)
        for first in range(0, groups, step):
            yield _Blocks(blocks, slice(first, first + step))
        return
    order = None
    if len(group_of_row) and (group_of_row[0] < 0 or (np.diff(group_of_row) < 0).any()):
        order = np.argsort(group_of_row, kind="stable")[np.count_nonzero(group_of_row < 0) :]
        group_of_row = group_of_row[order]
    offsets = offsets_of(np.bincount(group_of_row, minlength=groups))
    first = 0
    while first < groups:
        end = int(np.searchsorted(offsets, offsets[first] + _AT_ONCE, "right")) - 1
        end = max(first + 1, end)
        yield _Runs(order, offsets[first : end + 1], slice(first, end))
        first = end


def offsets_of(lengths: Sequence[int] | NDArray[Any]) -> Int64:
    """int64 [n + 1]: where each of n consecutive runs begins, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def reduce_runs(ufunc: np.ufunc, values: NDArray[Any], offsets: Int64, empty: Any) -> NDArray[Any]:
    """`ufunc` over each run of rows of `values` [R, ...], `empty` where a run has no rows.

    offsets: int64 [n + 1], run i has the rows ``offsets[i]:offsets[i + 1]``. Returns [n, ...].
    """
    some = offsets[1:] > offsets[:-1]
    if len(some) and some.all():
        return ufunc.reduceat(values, offsets[:-1], dtype=values.dtype)
    out = np.full((len(some), *values.shape[1:]), empty, values.dtype)
    if some.any():
        out[some] = ufunc.reduceat(values, offsets[:-1][some])
    return out


def joined_rows(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The rows of moments or tallies, [R, columns] each, one part after the other, with contiguous
    columns; a single part as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate([part.T for part in parts], axis=1).T
