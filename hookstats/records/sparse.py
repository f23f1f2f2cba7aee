"""SparseCounts: the histograms of many rows, nonzero slots only; the types of record arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.merge import offsets_of

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]


def rows_of(offsets: Int64, chosen: Int64) -> Int64:
    """The rows of the chosen entries, one after the other; entry i owns rows offsets[i] to
    offsets[i + 1]."""
    widths = np.diff(offsets)[chosen]
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    rows: Int64 = np.arange(total) + np.repeat(offsets[chosen] - (ends - widths), widths)
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
        """The number of histograms."""
        return len(self.offsets) - 1

    @classmethod
    def empty(cls, rows: int) -> SparseCounts:
        """`rows` empty histograms."""
        return cls(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))

    @classmethod
    def from_dense(cls, dense: Int64) -> SparseCounts:
        """The nonzero entries of ``dense``, int64 [rows, slots]."""
        if dense.ndim != 2:
            raise ValueError(f"dense: shape {dense.shape}, expected two dimensions (rows, slots)")
        rows, width = dense.shape
        flat = np.flatnonzero(dense != 0)  # twice as fast on booleans
        offsets = np.searchsorted(flat, np.arange(rows + 1, dtype=np.int64) * width)
        starts = np.repeat(np.arange(rows, dtype=np.int64) * width, np.diff(offsets))
        slots = (flat - starts).astype(np.int32)
        return cls(offsets.astype(np.int64), slots, dense.reshape(-1)[flat].astype(np.int64))

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

    @classmethod
    def added(cls, parts: Sequence[SparseCounts], row_of: Int64, rows: int) -> SparseCounts:
        """`rows` histograms; row i of the parts, one after the other, is added to row_of[i], or
        left out where that is -1."""
        every = cls.joined(parts)
        row = np.repeat(row_of, np.diff(every.offsets))
        kept = row >= 0
        row, slots, counts = row[kept], every.slots[kept], every.counts[kept]
        # Timsort, which is fast where parts are sorted: a tenth of what lexsort takes.
        order = np.argsort(row * (int(slots.max(initial=0)) + 1) + slots, kind="stable")
        row, slots, counts = row[order], slots[order], counts[order]
        first = np.ones(len(row), bool)
        first[1:] = (np.diff(row) != 0) | (np.diff(slots) != 0)
        starts = np.flatnonzero(first)
        sums = np.add.reduceat(counts, starts) if len(starts) else counts
        offsets = np.searchsorted(row[starts], np.arange(rows + 1))
        return cls(offsets.astype(np.int64), slots[starts], sums)

    def __getitem__(self, rows: slice) -> SparseCounts:
        """Some consecutive rows, which share the entries of this object."""
        start, stop, step = rows.indices(self.rows)
        if step != 1:
            raise ValueError(f"rows: {rows}, expected a slice with step 1")
        bounds = self.offsets[start : max(start, stop) + 1]
        entries = slice(bounds[0], bounds[-1])
        return SparseCounts(bounds - bounds[0], self.slots[entries], self.counts[entries])

    def dense(self, row: int | slice, slots: int) -> Int64:
        """All `slots` counts of one row, int64 [slots], or of a slice of rows, [n, slots]."""
        chosen = range(self.rows)[row]
        if isinstance(chosen, int):
            entries = slice(self.offsets[chosen], self.offsets[chosen + 1])
            one = np.zeros(slots, np.int64)
            one[self.slots[entries]] = self.counts[entries]
            return one
        if chosen.step != 1:
            raise ValueError(f"row: {row}, expected a slice with step 1")
        bounds = self.offsets[chosen.start : chosen.start + len(chosen) + 1]
        entries = slice(bounds[0], bounds[-1])
        out = np.zeros((len(chosen), slots), np.int64)
        rows = np.repeat(np.arange(len(chosen)), np.diff(bounds))
        out[rows, self.slots[entries]] = self.counts[entries]
        return out
