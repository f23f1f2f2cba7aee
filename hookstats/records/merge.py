"""joined(): the statistics of a site that saw tensors on several devices in one step, merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.records.tables import merged
from hookstats.stats.bins import is_sampled


def joined(record: StepRecord) -> StepRecord:
    """`record` with each name and kind once: states of the same name and kind are merged.

    Sites of the same name and kind have the same number of channels.
    """
    numbers: dict[Key, int] = {}
    site_of = np.array(
        [numbers.setdefault((site.name, site.kind), len(numbers)) for site in record.sites],
        np.int64,
    )
    if len(numbers) == len(record.sites):
        return record
    _, firsts = np.unique(site_of, return_index=True)
    observed = np.zeros(len(numbers), np.int64)
    np.add.at(observed, site_of, record.observed)
    channels = record.channels
    if channels is not None:
        lengths = np.diff(record.offsets)
        starts = np.concatenate(([0], np.cumsum(lengths[firsts])))
        shift = starts[site_of] - record.offsets[:-1]
        row_of = np.arange(channels.rows) + np.repeat(shift, lengths)
        sampled = is_sampled(record.channel_bins)
        channels = merged([channels], row_of, int(starts[-1]), sampled=sampled)
    return replace(
        record,
        sites=tuple([record.sites[first] for first in firsts.tolist()]),
        observed=observed,
        tensors=merged([record.tensors], site_of, len(numbers), sampled=is_sampled(record.bins)),
        channels=channels,
    )
