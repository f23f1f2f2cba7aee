"""SparseCounts: the histograms of many rows, nonzero slots only; the types of record arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.merge import offsets_of

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]


def rows_of(offsets: Int64, chosen: Int64) -> Int64:
    """The rows of the chosen entries, one after the other; entry i owns rows offsets[i] to
    offsets[i + 1]."""
    widths = np.diff(offsets)[chosen]
    starts = offsets_of(widths)
    rows: Int64 = np.arange(starts[-1]) + np.repeat(offsets[chosen] - starts[:-1], widths)
    return rows


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """Histogram counts of many rows, nonzero slots only (compressed sparse rows).

    Row r owns entries ``offsets[r]:offsets[r + 1]`` of ``slots`` and ``counts``; its slots ascend.
    offsets: int64 [rows + 1]; slots: int32 [nnz]; counts: int64 [nnz], all > 0.
    """

    offsets: Int64
    slots: Int32
    counts: Int64

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def empty(cls, rows: int) -> SparseCounts:
        """`rows` empty histograms."""
        return cls(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))

    def chosen(self, rows: Int64) -> SparseCounts:
        """The histograms in these rows, in this order."""
        entries = rows_of(self.offsets, rows)
        offsets = offsets_of(np.diff(self.offsets)[rows])
        return SparseCounts(offsets, self.slots[entries], self.counts[entries])

    @classmethod
    def joined(cls, parts: Sequence[SparseCounts]) -> SparseCounts:
        """The rows of one or more parts, one part after the other; a single part as it is."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            offsets_of(np.concatenate([np.diff(part.offsets) for part in parts])),
            np.concatenate([part.slots for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )

    def added(self, row_of: Int64, rows: int) -> SparseCounts:
        """`rows` histograms; row i is added to row_of[i], or left out where that is -1."""
        row = np.repeat(row_of, np.diff(self.offsets))
        kept = row >= 0
        row, slots, counts = row[kept], self.slots[kept], self.counts[kept]
        # Timsort, which is fast where parts are sorted: a tenth of what lexsort takes.
        order = np.argsort(row * (int(slots.max(initial=0)) + 1) + slots, kind="stable")
        row, slots, counts = row[order], slots[order], counts[order]
        first = np.ones(len(row), bool)
        first[1:] = (np.diff(row) != 0) | (np.diff(slots) != 0)
        starts = np.flatnonzero(first)
        sums = np.add.reduceat(counts, starts) if len(starts) else counts
        offsets = np.searchsorted(row[starts], np.arange(rows + 1))
        return SparseCounts(offsets.astype(np.int64), slots[starts], sums)

    def __getitem__(self, rows: slice) -> SparseCounts:
        """Some consecutive rows, which share the entries of this object."""
        start, stop, _ = rows.indices(self.rows)
        bounds = self.offsets[start : max(start, stop) + 1]
        entries = slice(bounds[0], bounds[-1])
        return SparseCounts(bounds - bounds[0], self.slots[entries], self.counts[entries])

    def dense(self, slots: int) -> Int64:
        """All counts, int64 [rows, slots]."""
        out = np.zeros((self.rows, slots), np.int64)
        out[np.repeat(np.arange(self.rows), np.diff(self.offsets)), self.slots] = self.counts
        return out

    def dense_row(self, row: int, slots: int) -> Int64:
        """All counts of a row, int64 [slots]."""
        found: Int64 = self[row : row + 1].dense(slots)[0]
        return found
