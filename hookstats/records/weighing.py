"""Sums of sampled histograms: each part weighs as many values as it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hookstats.records.sparse import Int64, SparseCounts
from hookstats.stats.merge import offsets_of
from hookstats.stats.sample import apportioned


def counted_of(hist: SparseCounts) -> Int64:
    """int64 [rows]: how many values were counted."""
    counted: Int64 = np.diff(offsets_of(hist.counts)[hist.offsets])
    return counted


def estimated(hist: SparseCounts, values: Int64) -> SparseCounts:
    """How many values each slot would have if all were counted; the counts are float64.

    values: int64 [rows], the finite values of each row.
    """
    counted = counted_of(hist)
    weight = values / np.maximum(counted, 1)
    estimates: Any = hist.counts * np.repeat(weight, np.diff(hist.offsets))  # float64
    return SparseCounts(hist.offsets, hist.slots, estimates)


def rounded(estimates: SparseCounts, counted: Int64) -> SparseCounts:
    """Integers in proportion to `estimates` that add up to what was `counted`, int64 [rows]."""
    values: Any = estimates.counts  # float64
    counts = apportioned(values, estimates.offsets, counted)
    kept = counts > 0
    return SparseCounts(offsets_of(kept)[estimates.offsets], estimates.slots[kept], counts[kept])


def added(
    hist: SparseCounts, values: Int64, row_of: Int64, rows: int, *, sampled: bool
) -> SparseCounts:
    """`rows` histograms; row i is added to row_of[i], by its number of `values` if `sampled`."""
    if not sampled:
        return SparseCounts.added([hist], row_of, rows)
    sums = SparseCounts.added([estimated(hist, values)], row_of, rows)
    return rounded(sums, _totals(counted_of(hist), row_of, rows))


def _totals(counted: Int64, row_of: Int64, rows: int) -> Int64:
    totals = np.zeros(rows, np.int64)
    kept = row_of >= 0
    np.add.at(totals, row_of[kept], counted[kept])
    return totals


class Sums:
    """Histograms into which those of one rank after the other are added."""

    def __init__(self, rows: int, *, sampled: bool) -> None:
        self._sums = SparseCounts.empty(rows)
        self._waiting: list[tuple[SparseCounts, Int64]] = []
        self._entries = 0
        self._counted = np.zeros(rows, np.int64) if sampled else None

    def add(self, hist: SparseCounts, row_of: Int64, values: Callable[[], Int64]) -> None:
        """Add each histogram to the one of this row; -1: to none.

        values: int64, the finite values of each row of `hist`; asked for where these are sampled.
        """
        if self._counted is not None:
            self._counted += _totals(counted_of(hist), row_of, len(self._counted))
            hist = estimated(hist, values())
        self._waiting.append((hist, row_of))
        self._entries += len(hist.slots)
        if self._entries > _WAITING:
            self._add_up()

    def sums(self) -> SparseCounts:
        """The sums of all that were added."""
        self._add_up()
        return self._sums if self._counted is None else rounded(self._sums, self._counted)

    def _add_up(self) -> None:
        if self._entries:
            rows = self._sums.rows
            parts: Sequence[SparseCounts]
            parts, into = zip(*self._waiting, strict=True)
            of_sums = np.arange(rows, dtype=np.int64)
            self._sums = SparseCounts.added(
                [self._sums, *parts], np.concatenate([of_sums, *into]), rows
            )
        self._waiting, self._entries = [], 0


_WAITING = 1 << 18
"""Entries of histograms, 12 bytes each, that wait until they are added up together."""
