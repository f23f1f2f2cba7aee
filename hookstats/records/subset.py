"""subset(): the record of some of a record's sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hookstats.records.record import StepRecord
from hookstats.records.sparse import Int64, SparseCounts


def subset(record: StepRecord, places: Sequence[int] | Int64) -> StepRecord:
    """The record of the sites at these places, in this order; without scalars."""
    chosen = np.asarray(places, np.int64)
    lengths = np.diff(record.offsets)[chosen]
    rows = _ranges(record.offsets[chosen], lengths)
    return replace(
        record,
        sites=tuple(record.sites[place] for place in chosen),
        observed=record.observed[chosen],
        offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        moments=record.moments[rows],
        tallies=record.tallies[rows],
        hist=_rows(record.hist, chosen),
        channel_hist=_rows(record.channel_hist, rows),
        scalars={},
    )


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Int64:
    """The numbers from each start on, as many as its length, one range after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum(), dtype=np.int64)


def _rows(counts: SparseCounts, rows: Int64) -> SparseCounts:
    lengths = np.diff(counts.offsets)[rows]
    entries = _ranges(counts.offsets[rows], lengths)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return SparseCounts(offsets, counts.slots[entries], counts.counts[entries])
