"""wholes(): the statistics of whole tensors of many records, merged together and once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hookstats.records.groups import per_site
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64


def wholes(records: Sequence[StepRecord]) -> tuple[Float64, Int64]:
    """The `whole_state` of records one after the other; those that have none yet keep it.

    The records have the same sites and columns of moments; there is one or more.
    """
    if not all("whole_state" in vars(record) for record in records):
        _merge(records)
    known = [record.whole_state for record in records]
    if len(known) == 1:
        return known[0]
    moments, tallies = (np.concatenate(parts) for parts in zip(*known, strict=True))
    return moments, tallies


def _merge(records: Sequence[StepRecord]) -> None:
    offsets, steps = records[0].offsets, len(records)
    starts = np.arange(steps)[:, None] * offsets[-1]
    ends = np.append((starts + offsets[:-1]).ravel(), steps * offsets[-1])
    # Transposed, as an arena's records have their columns one after the other in memory.
    moments, tallies = (
        np.concatenate(columns, axis=1).T
        for columns in ([r.moments.T for r in records], [r.tallies.T for r in records])
    )
    merged = (np.split(of_all, steps) for of_all in per_site(moments, tallies, ends))
    for record, whole in zip(records, zip(*merged, strict=True), strict=True):
        record.keep_whole(*whole)
