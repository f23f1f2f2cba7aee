"""The columns in which a part holds states: their names, and states as such columns and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Float64, Int64
from hookstats.stats.derived import columns_of, statistic
from hookstats.stats.state import IDENTITY, MOMENTS, TALLIES

_DERIVED = {"mean": "mean", "m2": "var"}
"""Columns of the state that are stored as a statistic: NaN if there are no values."""

COLUMNS = (*TALLIES, *(_DERIVED.get(name, name) for name in MOMENTS))
"""The columns with a list over channels; var is m2 / count."""


def to_columns(moments: Float64, tallies: Int64) -> dict[str, NDArray[Any]]:
    """`COLUMNS` [R] of the states in the rows of `moments` [R, 5] and `tallies` [R, 5]."""
    # Of an arena's records the columns are contiguous: these are views.
    state = columns_of(np.ascontiguousarray(moments.T).T, np.ascontiguousarray(tallies.T).T)
    columns = {name: state(name) for name in TALLIES}
    for name in MOMENTS:
        derived = _DERIVED.get(name)
        columns[derived or name] = statistic(derived, state) if derived else state(name)
    return columns


def to_state(columns: Mapping[str, NDArray[Any]]) -> tuple[Float64, Int64]:
    """The `moments` [R, 5] and `tallies` [R, 5] whose `to_columns` were stored."""
    tallies = np.stack([columns[name] for name in TALLIES]).T
    return np.stack([state_column(name, columns.__getitem__) for name in MOMENTS]).T, tallies


def state_column(name: str, stored: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
    """A column of the state, made from the stored columns by name.

    Raises:
        KeyError: (or what `stored` raises) a column is not stored.
    """
    values = stored(_DERIVED.get(name, name))
    if name not in _DERIVED:
        return values
    count = stored("count")
    if name == "m2":
        with np.errstate(over="ignore"):
            values = values * count
    return np.where(count > 0, values, IDENTITY[MOMENTS.index(name)])
