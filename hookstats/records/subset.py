"""subset(): the record of some of a record's sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hookstats.records.record import StepRecord
from hookstats.records.sparse import Int64, rows_of
from hookstats.stats.merge import offsets_of


def subset(record: StepRecord, places: Sequence[int] | Int64) -> StepRecord:
    """The record of the sites at these places, in this order; without scalars."""
    chosen = np.asarray(places, np.int64)
    rows = rows_of(record.offsets, chosen)
    return replace(
        record,
        sites=tuple(record.sites[place] for place in chosen),
        observed=record.observed[chosen],
        offsets=offsets_of(np.diff(record.offsets)[chosen]),
        moments=record.moments[rows],
        tallies=record.tallies[rows],
        hist=record.hist.chosen(chosen),
        channel_hist=record.channel_hist.chosen(rows),
        scalars={},
    )
