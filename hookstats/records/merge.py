"""Merges the states of a site that saw tensors on several devices in one step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from hookstats.records.record import StepRecord
from hookstats.records.weighing import added
from hookstats.stats.bins import is_sampled
from hookstats.stats.merge import merge, offsets_of
from hookstats.stats.state import COUNT


def joined(record: StepRecord) -> StepRecord:
    """`record` with each name and kind once: states of the same name and kind are merged.

    Sites of the same name and kind have the same number of channels.
    """
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, site in enumerate(record.sites):
        places[site.name, site.kind].append(place)
    if len(places) == len(record.sites):
        return record
    groups = list(places.values())
    site_of = np.empty(len(record.sites), np.int64)
    for new, group in enumerate(groups):
        site_of[group] = new
    widths = np.diff(record.offsets)
    offsets = offsets_of(widths[[group[0] for group in groups]])
    row_of = np.arange(len(record.moments)) + np.repeat(
        offsets[site_of] - record.offsets[:-1], widths
    )
    moments, tallies = merge(record.moments, record.tallies, row_of, int(offsets[-1]))
    return replace(
        record,
        sites=tuple(record.sites[group[0]] for group in groups),
        observed=np.array([record.observed[group].sum() for group in groups], np.int64),
        offsets=offsets,
        moments=moments,
        tallies=tallies,
        hist=added(
            record.hist,
            record.whole_state[1][:, COUNT],
            site_of,
            len(groups),
            sampled=is_sampled(record.bins),
        ),
        channel_hist=added(
            record.channel_hist,
            record.tallies[:, COUNT],
            row_of,
            len(moments),
            sampled=is_sampled(record.channel_bins),
        ),
    )
