"""wholes(): the statistics of whole tensors of many records, merged together and once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.stats.merge import joined_rows, merge


def wholes(records: Sequence[StepRecord]) -> tuple[Float64, Int64]:
    """The `whole_state` of records one after the other; those that have none yet keep it.

    The records have the same sites and columns of moments; there is one or more.
    """
    if not all("whole_state" in vars(record) for record in records):
        _merge(records)
    known = [record.whole_state for record in records]
    if len(known) == 1:
        return known[0]
    moments, tallies = (joined_rows(parts) for parts in zip(*known, strict=True))
    return moments, tallies


def _merge(records: Sequence[StepRecord]) -> None:
    sites, steps = len(records[0]), len(records)
    group_of_row = np.arange(steps)[:, None] * sites + records[0].site_of_row
    both = merge(
        joined_rows([record.moments for record in records]),
        joined_rows([record.tallies for record in records]),
        group_of_row.ravel(),
        steps * sites,
    )
    merged = (np.split(of_all, steps) for of_all in both)
    for record, whole in zip(records, zip(*merged, strict=True), strict=True):
        record.keep_whole(*whole)
