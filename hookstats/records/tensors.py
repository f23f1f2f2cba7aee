"""of_tensors(): a record with each tensor as one channel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hookstats.records.record import StepRecord
from hookstats.records.sparse import SparseCounts
from hookstats.records.weighing import added
from hookstats.stats.bins import is_sampled
from hookstats.stats.state import COUNT


def of_tensors(record: StepRecord) -> StepRecord:
    """The record whose rows are whole tensors: what is known of channels is merged, exactly as in
    `StepRecord.whole`, and histograms are added up."""
    sites = len(record)
    return replace(
        record,
        sites=tuple(
            site if site.channels == 1 else site._replace(channels=1, merged=site.channels)
            for site in record.sites
        ),
        offsets=np.arange(sites + 1, dtype=np.int64),
        moments=record.whole_state[0],
        tallies=record.whole_state[1],
        channel_hist=SparseCounts.empty(sites)
        if record.channel_bins is None
        else added(
            record.channel_hist,
            record.tallies[:, COUNT],
            record.site_of_row,
            sites,
            sampled=is_sampled(record.channel_bins),
        ),
    )
