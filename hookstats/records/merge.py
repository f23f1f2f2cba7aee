"""Merges the states of a site that saw tensors on several devices in one step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch

from hookstats.records.record import StepRecord
from hookstats.records.weighing import added
from hookstats.stats.bins import is_sampled
from hookstats.stats.state import COUNT, combine


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
    spans = [np.arange(*record.offsets[place : place + 2]) for place in range(len(record.sites))]
    moments, tallies = [], []
    site_of = np.empty(len(record.sites), np.int64)
    row_of = np.empty(len(record.moments), np.int64)
    offsets = [0]
    for new, group in enumerate(groups):
        site_of[group] = new
        merged = combine(
            torch.from_numpy(np.stack([record.moments[spans[place]] for place in group])),
            torch.from_numpy(np.stack([record.tallies[spans[place]] for place in group])),
        )
        moments.append(merged[0].numpy())
        tallies.append(merged[1].numpy())
        for place in group:
            row_of[spans[place]] = offsets[-1] + np.arange(len(spans[place]))
        offsets.append(offsets[-1] + len(spans[group[0]]))
    return replace(
        record,
        sites=tuple(record.sites[group[0]] for group in groups),
        observed=np.array([record.observed[group].sum() for group in groups], np.int64),
        offsets=np.array(offsets, np.int64),
        moments=np.concatenate(moments),
        tallies=np.concatenate(tallies),
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
            offsets[-1],
            sampled=is_sampled(record.channel_bins),
        ),
    )
