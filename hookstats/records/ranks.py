"""Merger: the records of several ranks as the record of the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not

import numpy as np

from hookstats.records.placement import Placed, Placement, Sites, place
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Int64
from hookstats.records.tables import merged
from hookstats.stats.bins import is_sampled


class Merger:
    """Makes the record of the whole model from those of some ranks, of one step.

    What the layouts of the sites say decides: parts along the channels are put side by side, other
    parts are merged channel by channel, and of replicas the one of the lowest rank stands for all.
    Without a layout, tensors of modules are parts of a batch, and parameters whose statistics are
    equal to the bit are replicas. `observed` is the greatest number of calls of any rank, as a call
    on all ranks is one call of the whole model. The result is the same to the bit in every reading;
    it has channels where all ranks have theirs.

    What follows from the sites is kept for the next step, whose sites mostly are the same objects.
    """

    def __init__(self) -> None:
        self._sites: tuple[Sites, ...] = ()
        self._placement = place(())

    def __call__(self, records: Sequence[StepRecord]) -> StepRecord:
        """records: one or more, in order of rank."""
        sites = tuple(record.sites for record in records)
        if len(sites) != len(self._sites) or any(map(is_not, sites, self._sites)):
            self._sites, self._placement = sites, place(sites)
        return _merged(records, self._placement)


def _merged(records: Sequence[StepRecord], placement: Placement) -> StepRecord:
    first = records[0]
    seen: dict[tuple[int, bytes], int] = {}
    known: set[tuple[int, object, int]] = set()
    targets = [
        _without_replicas(i, record, placed, seen, known)
        for i, (record, placed) in enumerate(zip(records, placement.records, strict=True))
    ]
    count = len(placement.targets)
    observed = np.zeros(count, np.int64)
    for record, chosen in zip(records, targets, strict=True):
        kept = chosen >= 0
        observed[chosen[kept]] = np.maximum(observed[chosen[kept]], record.observed[kept])
    tensors = merged(
        [record.tensors for record in records],
        np.concatenate(targets),
        count,
        sampled=is_sampled(first.bins),
    )
    sites, rows = _rows(records, targets, placement)
    channels = [record.channels for record in records if record.channels is not None]
    return StepRecord(
        step=first.step,
        rank=None,
        sites=sites,
        observed=observed,
        tensors=tensors,
        channels=None
        if len(channels) < len(records)
        else merged(
            channels,
            np.concatenate(rows),
            sum([site.channels for site in sites]),
            sampled=is_sampled(first.channel_bins),
        ),
        bins=first.bins,
        channel_bins=first.channel_bins,
        unread=tuple(dict.fromkeys(name for record in records for name in record.unread)),
    )


def _without_replicas(
    number: int,
    record: StepRecord,
    placed: Placed,
    seen: dict[tuple[int, bytes], int],
    known: set[tuple[int, object, int]],
) -> Int64:
    """The targets of the sites; -1 for those whose values an earlier rank had.

    seen: the first record by target and values; known: what was seen so far of each.
    """
    if not placed.unknown:
        return placed.targets
    targets: Int64 = placed.targets.copy()
    moments, tallies, _ = record.tensors
    for site, what in placed.unknown:
        values = moments[:, site].tobytes() + tallies[:, site].tobytes()
        target = int(targets[site])
        first = seen.setdefault((target, values), number)
        if (target, what, first) in known:
            targets[site] = -1
        known.add((target, what, first))
    return targets


def _rows(
    records: Sequence[StepRecord], targets: Sequence[Int64], placement: Placement
) -> tuple[Sites, list[Int64]]:
    """The sites of the whole, and for each record the row of the whole of each of its channels, -1
    for none."""
    infos = [target.info for target in placement.targets]
    grows = np.array([target.grows for target in placement.targets], bool)
    is_one = np.array([target.is_one for target in placement.targets], bool)
    widths = [np.array([s.channels for s in record.sites], np.int64) for record in records]
    before = [np.zeros(len(width), np.int64) for width in widths]  # channels of ranks before
    filled = np.zeros(len(infos), np.int64)
    for width, chosen, start in zip(widths, targets, before, strict=True):
        growing = (chosen >= 0) & grows[chosen] if len(infos) else chosen >= 0
        for site in np.flatnonzero(growing).tolist():
            start[site] = filled[chosen[site]]
            filled[chosen[site]] += width[site]
    # Fewer than all parts have together where replicas were among them.
    infos = [
        info._replace(channels=int(n)) if more and n != info.channels else info
        for info, n, more in zip(infos, filled.tolist(), grows.tolist(), strict=True)
    ]
    offsets = np.cumsum([0, *(info.channels for info in infos)], dtype=np.int64)
    rows = []
    for placed, width, chosen, start in zip(
        placement.records, widths, targets, before, strict=True
    ):
        begins = np.concatenate(([0], np.cumsum(width)))
        first = offsets[chosen] + start
        row = np.arange(begins[-1]) + np.repeat(first - begins[:-1], width)
        for site, channels in placed.channels.items():
            if chosen[site] >= 0:
                row[begins[site] : begins[site + 1]] = offsets[chosen[site]] + channels
        one = np.repeat(is_one[chosen] & (chosen >= 0), width) if len(infos) else row < 0
        row = np.where(one, np.repeat(first, width), row)
        rows.append(np.where(np.repeat(chosen < 0, width), -1, row))
    return tuple(infos), rows
