"""wholes(): the statistics of whole tensors of many records, merged together and once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hookstats.records.groups import per_site
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64


def wholes(
    records: Sequence[StepRecord], moments: Float64, tallies: Int64, offsets: Int64
) -> tuple[Float64, Int64]:
    """`per_site` of the rows of records, one after the other; these keep it as `whole_state`.

    Those that have theirs are not merged again. moments, tallies: the rows of all records.
    offsets: int64 [sites + 1], the first row of each site of all records.
    """
    if all("whole_state" in vars(record) for record in records):
        known = [record.whole_state for record in records]
        return (
            np.concatenate([moments for moments, _ in known]),
            np.concatenate([tallies for _, tallies in known]),
        )
    out = per_site(moments, tallies, offsets)
    first = 0
    for record in records:
        last = first + len(record)
        record.keep_whole(out[0][first:last], out[1][first:last])
        first = last
    return out
