"""Sums of sampled histograms: each part weighs as many values as it has."""

from __future__ import annotations

from collections.abc import Sequence
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


def _rounded(estimates: SparseCounts, counted: Int64) -> SparseCounts:
    """Integers in proportion to `estimates` that add up to what was `counted`, int64 [rows]."""
    values: Any = estimates.counts  # float64
    counts = apportioned(values, estimates.offsets, counted)
    kept = counts > 0
    return SparseCounts(offsets_of(kept)[estimates.offsets], estimates.slots[kept], counts[kept])


def added(
    parts: Sequence[SparseCounts], values: Int64, row_of: Int64, rows: int, *, sampled: bool
) -> SparseCounts:
    """`rows` histograms; row i of the parts, one after the other, is added to row_of[i], or left
    out where that is -1.

    values: int64, the finite values of each row, by which the counts weigh where they are sampled.
    """
    if not sampled:
        return SparseCounts.added(parts, row_of, rows)
    hist = SparseCounts.joined(parts)
    totals = np.zeros(rows, np.int64)
    kept = row_of >= 0
    np.add.at(totals, row_of[kept], counted_of(hist)[kept])
    return _rounded(SparseCounts.added([estimated(hist, values)], row_of, rows), totals)
