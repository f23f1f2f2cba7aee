"""Snapshot: one closed step, until another thread has read it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.arena.rows import Counters, offsets_of
from hookstats.arena.shelf import Shelf
from hookstats.kernels.ops import Taken
from hookstats.records.merge import joined
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.stats.bins import Bins
from hookstats.stats.state import identity_moments, identity_tallies


class Layout(NamedTuple):
    """What an arena had when a step closed. Sites that come later do not belong to the step, and
    what is said of a site may change later."""

    infos: tuple[SiteInfo, ...]
    order: Int64
    """The sites, by index into `infos`, in the order of their rows."""
    offsets: Int64
    """int64 [sites + 1]: the first row of each site, in that order."""
    bins: Bins | None
    channel_bins: Bins | None
    higher: bool
    """Whether the states have third and fourth moments."""


class Snapshot:
    """One closed step of an arena. One other thread reads it out, then releases it."""

    def __init__(
        self,
        layout: Layout,
        shelves: Iterable[Shelf],
        calls: Counters,
        buffer: int,
        give_back: Callable[[], None],
    ) -> None:
        """calls: by site and buffer, the number of tensors that hooks folded in.

        give_back: called once the buffer is empty.
        """
        self._layout = layout
        self._calls = calls
        self._buffer = buffer
        self._give_back = give_back
        self._released = False
        self._taken = 0  # the number of parts whose rows are empty again
        self._by_site = calls.first(len(layout.infos), buffer)
        self._parts = [shelf.close(buffer, self._by_site) for shelf in shelves]

    def to_record(self, step: int, rank: int) -> StepRecord:
        """Copy out the statistics of the sites that were observed in the step."""
        infos, order, offsets, bins, channel_bins, higher = self._layout
        by_site = self._by_site
        folds = by_site.copy()
        for part in self._parts:
            folds[part.graph_sites] = -1  # graphs set no marks
        folds = folds[order]
        taken: list[Taken] = []
        for part in self._parts:
            of_part, folds = folds[: part.sites], folds[part.sites :]
            rows, in_graphs = part.shelf.take(part, self._buffer, torch.from_numpy(of_part))
            by_site[part.graph_sites] += in_graphs.numpy()
            taken.append(rows)
            self._taken += 1
        if len(self._parts) > 1:  # with one part, rows are in the order of `infos`
            infos = tuple(infos[site] for site in order)
        record = StepRecord(
            step=step,
            rank=rank,
            sites=infos,
            observed=by_site[order],
            offsets=offsets,
            moments=_rows([part.moments for part in taken], identity_moments(0, higher=higher)),
            tallies=_rows([part.tallies for part in taken], identity_tallies(0)),
            bins=bins,
            hist=_join([part[2:5] for part in taken], len(order)),
            channel_bins=channel_bins,
            channel_hist=_join([part[5:8] for part in taken], int(offsets[-1])),
        )
        record = record if record.observed.all() else _observed(record)
        return record if len(self._parts) < 2 else joined(record)

    def release(self) -> None:
        """Empty the buffer and give it back."""
        self._released = True
        try:
            for part in self._parts[self._taken :]:
                part.shelf.clear(part.rows, part.sites, self._buffer)
            self._calls.clear(len(self._layout.infos), self._buffer)
        finally:
            self._give_back()

    def __del__(self) -> None:
        # A KeyboardInterrupt may lose a snapshot, for which the next swap would wait for ever.
        if not self._released:
            with suppress(Exception):
                self.release()


# Few calls of NumPy and torch: every long call releases the GIL, which the training has to yield to
# get it back.


def _rows(parts: Sequence[Tensor], none: Tensor) -> Any:
    """The columns [columns, rows] of all devices as rows [rows, columns]; `none` has no rows."""
    if not parts:
        return none.numpy()
    return (parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=1)).numpy().T


def _join(parts: Sequence[Sequence[Tensor]], rows: int) -> SparseCounts:
    """The histograms of all devices, `rows` in number; empty where there are no bins."""
    if sum(len(offsets) - 1 for offsets, _, _ in parts) < rows or not parts:
        return SparseCounts.empty(rows)
    if len(parts) == 1:
        return SparseCounts(*(part.numpy() for part in parts[0]))
    return SparseCounts(
        offsets_of(np.concatenate([np.diff(offsets.numpy()) for offsets, _, _ in parts])),
        np.concatenate([slots.numpy() for _, slots, _ in parts]),
        np.concatenate([counts.numpy() for _, _, counts in parts]),
    )


def _observed(record: StepRecord) -> StepRecord:
    """`record` without the sites that were not observed; their rows are empty."""
    seen = record.observed > 0
    channels = np.diff(record.offsets)
    rows = np.repeat(seen, channels)
    return replace(
        record,
        sites=tuple(compress(record.sites, seen)),
        observed=record.observed[seen],
        offsets=offsets_of(channels[seen]),
        moments=record.moments.T[:, rows].T,
        tallies=record.tallies.T[:, rows].T,
        hist=_keep(record.hist, seen),
        channel_hist=_keep(record.channel_hist, rows),
    )


def _keep(counts: SparseCounts, keep: NDArray[np.bool_]) -> SparseCounts:
    """The rows for which `keep` is true; the other rows are empty."""
    return SparseCounts(offsets_of(np.diff(counts.offsets)[keep]), counts.slots, counts.counts)
