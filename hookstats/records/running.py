"""Running: the states of many rows, into which those of one rank after the other are merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Float64, Int64
from hookstats.stats.state import MOMENT_COLUMNS, TALLIES

Column = Callable[[str], NDArray[Any]]
"""A column of states by its name in `stats.state.COLUMNS`."""

Rows = slice | Int64

_BLOCK = 1 << 14
"""Rows that are merged at once: their columns are in a core's cache."""


class Running:
    """States of so many rows: at first, of no values.

    Merging takes two states at a time, in order of the calls (Chan). Where the means are equal, the
    merged mean is equal to the last bit.
    """

    def __init__(self, rows: int) -> None:
        self._moments = {c.name: np.full(rows, c.identity) for c in MOMENT_COLUMNS}
        self._tallies = {name: np.zeros(rows, np.int64) for name in TALLIES}

    def merge(self, column: Column, rows: Rows, into: Rows, n: int) -> None:
        """Merge n states into as many rows, no two of them into the same one.

        rows, into: which of the states, and the rows of this object; both slices, or both int64.
        """
        theirs = {c.name: column(c.name)[rows] for c in MOMENT_COLUMNS}
        counts = {name: column(name)[rows] for name in TALLIES}
        for first in range(0, n, _BLOCK):
            part = slice(first, min(first + _BLOCK, n))
            here: Any = into[part] if isinstance(into, np.ndarray) else _shifted(into, part)
            self._merge(
                {name: values[part] for name, values in theirs.items()},
                {name: values[part] for name, values in counts.items()},
                here,
            )

    def _merge(
        self, theirs: dict[str, NDArray[Any]], counts: dict[str, NDArray[Any]], here: Any
    ) -> None:
        mine = {name: values[here] for name, values in self._moments.items()}
        n, more = self._tallies["count"][here], counts["count"]
        share = more / np.maximum(n + more, 1)
        with np.errstate(invalid="ignore", over="ignore"):  # infinite moments
            apart = theirs["mean"] - mine["mean"]
            alone = (n == 0) | (more == 0)
            if alone.any():
                apart[alone] = 0.0
            self._moments["m2"][here] = mine["m2"] + theirs["m2"] + apart * apart * (n * share)
            self._moments["mean"][here] = np.where(
                n > 0, mine["mean"] + apart * share, theirs["mean"]
            )
        for c in MOMENT_COLUMNS:
            if c.merge in _MERGED:
                self._moments[c.name][here] = _MERGED[c.merge](mine[c.name], theirs[c.name])
        for name, values in counts.items():
            self._tallies[name][here] += values

    def states(self) -> tuple[Float64, Int64]:
        """The moments float64 [rows, 5] and tallies int64 [rows, 5]."""
        moments = np.stack([self._moments[c.name] for c in MOMENT_COLUMNS])
        return moments.T, np.stack([self._tallies[name] for name in TALLIES]).T


_MERGED: dict[str, Callable[[Any, Any], NDArray[Any]]] = {
    "min": np.minimum,
    "max": np.maximum,
    "sum": np.add,
}


def _shifted(rows: slice, part: slice) -> slice:
    return slice(rows.start + part.start, rows.start + part.stop)
