"""Merger: the records of several ranks as the record of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from operator import is_not
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.placement import Placed, Placement, Sites, place
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.records.tensors import of_tensors
from hookstats.records.weighing import Sums
from hookstats.stats.bins import Bins, is_sampled
from hookstats.stats.merge import joined_rows, merge, offsets_of
from hookstats.stats.state import IDENTITY, MOMENTS, TALLIES

Column = Callable[[str], NDArray[Any]]
"""A column of states by its name in `stats.state.COLUMNS`."""


class Observed(NamedTuple):
    """What one rank observed in a step; its rows are those of `StepRecord`."""

    column: Column
    """The columns of the states."""
    observed: Int64
    offsets: Int64
    hist: SparseCounts
    channel_hist: SparseCounts


class Step(NamedTuple):
    """What is equal in all ranks' records of a step."""

    number: int
    bins: Bins | None
    channel_bins: Bins | None


def observed_in(record: StepRecord) -> Observed:
    """What a record says that a rank observed."""
    columns = dict(zip((*MOMENTS, *TALLIES), (*record.moments.T, *record.tallies.T), strict=True))
    return Observed(
        columns.__getitem__, record.observed, record.offsets, record.hist, record.channel_hist
    )


class Merger:
    """Makes the record of the whole model from those of some ranks, of one step.

    What the layouts of the sites say decides: parts along the channels are put side by side, other
    parts are merged channel by channel, and of replicas the one of the lowest rank stands for all.
    Without a layout, tensors of modules are parts of a batch, and parameters whose statistics are
    equal to the bit are replicas. `observed` is the greatest number of calls of any rank, as a call
    on all ranks is one call of the whole model. The result is the same to the bit in every reading.

    Ranks come one after the other, and none is kept: memory is that of the result and of one rank.
    What follows from the sites is kept for the next step, whose sites mostly are the same objects.
    """

    def __init__(self) -> None:
        self._sites: tuple[Sites, ...] = ()
        self._placement = place(())

    def __call__(self, records: Sequence[StepRecord]) -> StepRecord:
        """records: in order of rank. Where one has whole tensors alone, those of all are merged."""
        if any(site.merged for record in records for site in record.sites):
            records = [of_tensors(record) for record in records]
        first = records[0]
        step = Step(first.step, first.bins, first.channel_bins)
        sites = tuple(record.sites for record in records)
        return self.merge(step, sites, map(observed_in, records))

    def merge(
        self, step: Step, sites: tuple[Sites, ...], observed: Iterable[Observed]
    ) -> StepRecord:
        """The same of what is read rank by rank; `sites` and `observed` in order of rank."""
        if len(sites) != len(self._sites) or any(map(is_not, sites, self._sites)):
            self._sites, self._placement = sites, place(sites)
        merging = _Merging(step, self._placement)
        for placed, each in zip(self._placement.records, observed, strict=True):
            merging.add(placed, each)
        return merging.record()


class _Merging:
    """A record of the whole model while ranks are added to it."""

    def __init__(self, step: Step, placement: Placement) -> None:
        self._step = step
        self._placement = placement
        self._is_one = np.array([target.is_one for target in placement.targets], bool)
        self._grows = np.array([target.grows for target in placement.targets], bool)
        self._filled = np.zeros(len(placement.targets), np.int64)  # channels, of those that grow
        rows = int(placement.offsets[-1])
        self._moments = np.tile(np.array(IDENTITY)[:, None], rows).T
        self._tallies = np.zeros((len(TALLIES), rows), np.int64).T
        self._observed = np.zeros(len(placement.targets), np.int64)
        self._hist = Sums(len(placement.targets), sampled=is_sampled(step.bins))
        self._channel_hist = Sums(rows, sampled=is_sampled(step.channel_bins))
        self._added = 0
        self._earliest: dict[tuple[int, bytes], int] = {}  # record by target and values
        self._seen: set[tuple[int, object, int]] = set()

    def add(self, placed: Placed, observed: Observed) -> None:
        """Add the next rank."""
        targets = self._without_replicas(placed, observed)
        kept = np.flatnonzero(targets >= 0)
        chosen = targets[kept]
        self._observed[chosen] = np.maximum(self._observed[chosen], observed.observed[kept])
        rows = self._rows(placed, targets, observed.offsets)
        self._add_states(observed.column, rows)
        self._hist.add(observed.hist, targets, lambda: _values_by_site(observed))
        if self._step.channel_bins is not None:
            self._channel_hist.add(observed.channel_hist, rows, lambda: observed.column("count"))
        self._added += 1

    def _without_replicas(self, placed: Placed, observed: Observed) -> Int64:
        """The targets of the sites; -1 for those whose values an earlier rank had."""
        if not placed.unknown:
            return placed.targets
        targets: Int64 = placed.targets.copy()
        columns = [observed.column(name) for name in (*MOMENTS, *TALLIES)]
        for site, known in placed.unknown:
            rows = slice(int(observed.offsets[site]), int(observed.offsets[site + 1]))
            digest = blake2b(digest_size=16)
            for column in columns:
                digest.update(column[rows].tobytes())
            target = int(targets[site])
            first = self._earliest.setdefault((target, digest.digest()), self._added)
            if (target, known, first) in self._seen:
                targets[site] = -1
            self._seen.add((target, known, first))
        return targets

    def _rows(self, placed: Placed, targets: Int64, offsets: Int64) -> Int64:
        """The row of the whole for each row of a rank; -1 for none."""
        widths = np.diff(offsets)
        first = self._placement.offsets[targets] - offsets[:-1]
        for site in np.flatnonzero(self._grows[targets] & (targets >= 0)).tolist():
            first[site] += self._filled[targets[site]]
            self._filled[targets[site]] += widths[site]
        rows: Int64 = np.arange(offsets[-1]) + np.repeat(first, widths)
        for site, channels in placed.channels.items():
            start = self._placement.offsets[targets[site]]
            rows[offsets[site] : offsets[site + 1]] = start + channels
        is_one = self._is_one[targets]
        if is_one.any():
            starts = self._placement.offsets[targets]
            rows = np.where(np.repeat(is_one, widths), np.repeat(starts, widths), rows)
        gone = np.repeat(targets < 0, widths)
        rows[gone] = -1
        return rows

    def _add_states(self, column: Column, rows: Int64) -> None:
        """Merge the states of a rank into these rows; -1: into none."""
        moments = np.stack([column(name) for name in MOMENTS]).T
        tallies = np.stack([column(name) for name in TALLIES]).T
        is_kept = rows >= 0
        if not is_kept.all():
            moments, tallies, rows = moments[is_kept], tallies[is_kept], rows[is_kept]
        into, group_of_row = rows, np.arange(len(rows))
        if not (np.diff(rows) > 0).all():
            into, group_of_row = np.unique(rows, return_inverse=True)
        # Two states at a time, in order of rank, so that bits do not depend on what else is read.
        self._moments[into], self._tallies[into] = merge(
            joined_rows([self._moments[into], moments]),
            joined_rows([self._tallies[into], tallies]),
            np.concatenate((np.arange(len(into)), group_of_row)),
            len(into),
        )

    def record(self) -> StepRecord:
        """The record of the ranks that were added."""
        placement, step = self._placement, self._step
        moments, tallies = self._moments, self._tallies
        channel_hist = self._channel_hist.sums()
        sites = tuple(target.info for target in placement.targets)
        offsets = placement.offsets
        filled = np.where(self._grows, self._filled, np.diff(offsets))
        if (filled < np.diff(offsets)).any():  # replicas were among the parts
            kept = np.concatenate(
                [np.arange(a, a + n) for a, n in zip(offsets[:-1], filled, strict=True)]
            )
            moments, tallies, channel_hist = moments[kept], tallies[kept], channel_hist.chosen(kept)
            offsets = offsets_of(filled)
            sites = tuple(
                site._replace(channels=int(n)) for site, n in zip(sites, filled, strict=True)
            )
        return StepRecord(
            step=step.number,
            rank=None,
            sites=sites,
            observed=self._observed,
            offsets=offsets,
            moments=moments,
            tallies=tallies,
            bins=step.bins,
            hist=self._hist.sums(),
            channel_bins=step.channel_bins,
            channel_hist=channel_hist,
        )


def _values_by_site(observed: Observed) -> Int64:
    """int64 [S]: the finite values of each site."""
    values: Int64 = np.diff(offsets_of(observed.column("count"))[observed.offsets])
    return values
