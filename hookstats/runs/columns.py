"""to_columns() and to_state(): states of channels as the columns of a part, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Float64, Int64
from hookstats.runs.format import COLUMNS
from hookstats.stats.state import COUNT, IDENTITY, L1, M2, MAX, MEAN, MIN, MOMENTS, TALLIES

_STORED = {"m2": "var"}  # moments whose column holds something else: m2 = var * count


def to_columns(moments: Float64, tallies: Int64) -> dict[str, NDArray[Any]]:
    """The `COLUMNS` [R] of the states in the rows of `moments` [R, 5] and `tallies` [R, 5]."""
    # Of an arena's records the columns are contiguous: these are views.
    moments, tallies = np.ascontiguousarray(moments.T), np.ascontiguousarray(tallies.T)
    count = tallies[COUNT]
    some = count > 0
    var = np.full(len(count), np.nan)
    np.divide(moments[M2], count, out=var, where=some)
    mean = moments[MEAN] if some.all() else np.where(some, moments[MEAN], np.nan)
    values = (*tallies, mean, var, moments[MIN], moments[MAX], moments[L1])
    return dict(zip(COLUMNS, values, strict=True))


def to_state(columns: Mapping[str, NDArray[Any]]) -> tuple[Float64, Int64]:
    """The `moments` [R, 5] and `tallies` [R, 5] whose `to_columns` were stored."""
    tallies = np.stack([columns[name] for name in TALLIES]).T
    moments = np.stack([columns[_STORED.get(name, name)] for name in MOMENTS]).T
    count = tallies[:, COUNT]
    with np.errstate(over="ignore"):
        moments[:, M2] *= count
    moments[count == 0, MEAN] = IDENTITY[MEAN]
    moments[count == 0, M2] = IDENTITY[M2]
    return moments, tallies
