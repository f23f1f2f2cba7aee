"""to_columns() and to_state(): states of channels as the columns of a part, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Float64, Int64
from hookstats.runs.format import STORED
from hookstats.stats.state import (
    COUNT,
    HIGHER,
    IDENTITY,
    M2,
    MEAN,
    MOMENTS,
    TALLIES,
    moment_columns,
)


def to_columns(moments: Float64, tallies: Int64) -> dict[str, NDArray[Any]]:
    """The columns [R] of the states in the rows of `moments` [R, 5 or 7] and `tallies` [R, 5].

    They are `format.COLUMNS`, with `format.HIGHER_COLUMNS` where the moments have 7 columns.
    """
    # The columns of an arena's records are contiguous: these are views.
    moments, tallies = np.ascontiguousarray(moments.T), np.ascontiguousarray(tallies.T)
    count = tallies[COUNT]
    some = count > 0
    values = dict(zip(TALLIES, tallies, strict=True))
    for column, row in zip(moment_columns(len(moments)), moments, strict=True):
        values[STORED.get(column.name, column.name)] = row
    values["var"] = np.full(len(count), np.nan)
    np.divide(moments[M2], count, out=values["var"], where=some)
    if not some.all():
        values["mean"] = np.where(some, moments[MEAN], np.nan)
    return values


def to_state(columns: Mapping[str, NDArray[Any]]) -> tuple[Float64, Int64]:
    """The `moments` [R, 5 or 7] and `tallies` [R, 5] whose `to_columns` were stored."""
    names = MOMENTS + HIGHER if HIGHER[0] in columns else MOMENTS
    tallies = np.stack([columns[name] for name in TALLIES]).T
    moments = np.stack([columns[STORED.get(name, name)] for name in names]).T
    count = tallies[:, COUNT]
    with np.errstate(over="ignore"):
        moments[:, M2] *= count
    for column in (MEAN, M2):
        moments[count == 0, column] = IDENTITY[column]
    return moments, tallies
