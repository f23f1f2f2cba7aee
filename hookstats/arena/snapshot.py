"""Snapshot: one closed step, until another thread has read it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.arena.flag import Flag
from hookstats.arena.lock import lock
from hookstats.arena.rows import Counters, offsets_of
from hookstats.arena.shelf import Reading, Shelf
from hookstats.records.merge import joined
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.stats.bins import Bins
from hookstats.stats.state import identity_moments, identity_tallies

SMALL_BYTES = 256 << 10
"""What a step may have that is copied out when it is closed."""


class Extent(NamedTuple):
    """What is in use of a shelf."""

    shelf: Shelf
    sites: int
    rows: int
    """The number of channels of the sites together."""


class Places(NamedTuple):
    """Where the sites of an arena are. Sites that come later do not belong to a step."""

    order: Int64
    """The sites, by index into `infos`, in the order of their rows."""
    offsets: Int64
    """int64 [sites + 1]: the first row of each site, in that order."""
    extents: tuple[Extent, ...]
    """The shelves that have sites, in that order, too."""


class Layout(NamedTuple):
    """What an arena had when a step closed; what is said of a site may change later."""

    infos: tuple[SiteInfo, ...]
    places: Places
    bins: Bins | None
    channel_bins: Bins | None
    higher: bool
    """Whether the states have third and fourth moments."""


class Snapshot:
    """One closed step of an arena, which another thread makes a record of.

    The step is closed once the arena has lent its buffer to the snapshot, and not before.
    """

    def __init__(
        self,
        layout: Layout,
        calls: Counters,
        under_way: Counters,
        buffer: int,
        is_lent: Callable[[Flag], bool],
        small_bytes: int,
    ) -> None:
        """calls, under_way, small_bytes: those of the arena.

        is_lent: whether the arena waits for this flag, because it has lent the buffer.
        """
        self._layout = layout
        self._counters = calls, under_way
        self._buffer = buffer
        self._is_lent = is_lent
        self._small_bytes = small_bytes
        self.is_free = Flag()
        """Whether the buffer is empty and given back."""
        self._reader = lock()  # held while the step is read out
        self._readings: list[Reading] = []  # by part, once it is to be read
        self._in_graphs: list[Tensor] = []  # of the parts that were read: what `Shelf.take` gave
        self._parts = [
            shelf.close(buffer, sites, rows, self._filled)
            for shelf, sites, rows in layout.places.extents
        ]

    # Found by whoever reads the step out, as a rule not by the training: nobody counts in the
    # buffer until it is given back.

    @cached_property
    def _by_site(self) -> Int64:
        """By index in the arena, the number of tensors that hooks folded in."""
        return self._counters[0].first(len(self._layout.infos), self._buffer)

    @cached_property
    def _cut_short(self) -> NDArray[np.bool_]:
        """The sites in whose step an interrupt came."""
        return self._counters[1].first(len(self._layout.infos), self._buffer) > 0

    def _filled(self) -> Int64:
        """By index in the arena: 0 where the buffer has nothing of a site."""
        return self._by_site + self._cut_short

    def to_record(self, step: int, rank: int) -> StepRecord:
        """The statistics of the sites that were observed in the step; gives the buffer back.

        What an interrupt left of a site's step is unknown: the record leaves the site out.
        """
        self.take_out()
        infos, (order, offsets, _), bins, channel_bins, higher = self._layout
        taken, by_site = [reading.taken for reading in self._readings], self._by_site.copy()
        for part, in_graphs in zip(self._parts, self._in_graphs, strict=True):
            by_site[part.graph_sites] += in_graphs.numpy()
        by_site[self._cut_short] = 0
        if len(self._parts) > 1:
            infos = tuple(infos[site] for site in order)
        record = StepRecord(
            step=step,
            rank=rank,
            sites=infos,
            observed=by_site[order],
            offsets=offsets,
            moments=_rows(
                [part.moments for part in taken], partial(identity_moments, 0, higher=higher)
            ),
            tallies=_rows([part.tallies for part in taken], partial(identity_tallies, 0)),
            bins=bins,
            hist=_join([part[2:5] for part in taken], len(order)),
            channel_bins=channel_bins,
            channel_hist=_join([part[5:8] for part in taken], int(offsets[-1])),
        )
        if taken:
            record.keep_whole(
                torch.cat([part.whole_moments for part in taken]).numpy(),
                torch.cat([part.whole_tallies for part in taken]).numpy(),
            )
        record = record if record.observed.all() else _observed(record)
        return record if len(self._parts) < 2 else joined(record)

    def take_out(self) -> None:
        """Copy the step out of the buffer, unless that was done, and give the buffer back.

        A thread that needs the buffer may do so while the one that is to read the step is busy.
        What an interrupt or an error leaves undone, the next call does.
        """
        with self._reader:
            self._take()
            self.release()

    def _take(self) -> None:
        if len(self._in_graphs) == len(self._parts):
            return
        if not self._readings:
            self._readings = [Reading() for _ in self._parts]
        # Both, before the buffer is given back.
        folds, cut_short = self._by_site, self._cut_short
        if cut_short.any():
            folds = np.where(cut_short, -1, folds)
        for part in self._parts:
            if part.graph_sites:
                folds = folds.copy()
                folds[part.graph_sites] = -1  # graphs set no marks
        order, offsets, _ = self._layout.places
        if len(self._parts) > 1:  # with one part, rows are in the order of `infos`
            folds = folds[order]
        first = 0
        for i, part in enumerate(self._parts):
            last = first + part.sites
            rows = offsets[first : last + 1] - offsets[first]
            of_part = torch.from_numpy(folds[first:last]), torch.from_numpy(rows)
            first = last
            if i == len(self._in_graphs):
                reading = self._readings[i]
                self._in_graphs.append(part.shelf.take(part, self._buffer, *of_part, reading))
                reading.staged = None

    @property
    def waits(self) -> bool:
        """Whether `take_out` would wait for a device."""
        return any(part.event is not None for part in self._parts)

    @property
    def is_small(self) -> bool:
        """Whether `take_out` waits for nothing, and copies little."""
        # Of histograms of whole tensors only the slots that are marked are copied.
        extents = self._layout.places.extents
        states = sum(extent.rows * extent.shelf.row_bytes for extent in extents)
        return states <= self._small_bytes and not self.waits

    @property
    def nbytes(self) -> int:
        """The bytes that were copied out."""
        return sum(x.nbytes for reading in self._readings for x in reading.taken)

    def release(self) -> None:
        """Empty the buffer and give it back, if it is lent."""
        if not self.is_free.is_set() and self._is_lent(self.is_free):
            self.clear()
            self.is_free.set()

    def clear(self) -> None:
        """Empty the buffer."""
        for part in self._parts[len(self._in_graphs) :]:
            part.shelf.clear(part.rows, part.sites, self._buffer, part.event)
        for counters in self._counters:
            counters.clear(len(self._layout.infos), self._buffer)


# Few calls of NumPy and torch: every long call releases the GIL, which the training has to yield to
# get it back.


def _rows(parts: Sequence[Tensor], none: Callable[[], Tensor]) -> Any:
    """The columns [columns, rows] of all devices as rows [rows, columns]; `none` makes no rows."""
    if not parts:
        return none().numpy()
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
    """`record` without the sites that were not observed."""
    seen = record.observed > 0
    channels = np.diff(record.offsets)
    rows = np.repeat(seen, channels)
    kept = replace(
        record,
        sites=tuple(compress(record.sites, seen)),
        observed=record.observed[seen],
        offsets=offsets_of(channels[seen]),
        moments=record.moments.T[:, rows].T,
        tallies=record.tallies.T[:, rows].T,
        hist=_keep(record.hist, seen),
        channel_hist=_keep(record.channel_hist, rows),
    )
    moments, tallies = record.whole_state
    kept.keep_whole(moments[seen], tallies[seen])
    return kept


def _keep(counts: SparseCounts, keep: NDArray[np.bool_]) -> SparseCounts:
    """The rows for which `keep` is true."""
    lengths = np.diff(counts.offsets)
    offsets = offsets_of(lengths[keep])
    if offsets[-1] == len(counts.slots):  # as a rule, the other rows are empty
        return SparseCounts(offsets, counts.slots, counts.counts)
    entries = np.repeat(keep, lengths)
    return SparseCounts(offsets, counts.slots[entries], counts.counts[entries])
