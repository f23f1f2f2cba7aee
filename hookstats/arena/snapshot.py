"""Snapshot: one closed step, until another thread has read it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.arena.flag import Flag
from hookstats.arena.lock import lock
from hookstats.arena.rows import Counters
from hookstats.arena.shelf import Extent, Reading
from hookstats.records.merge import joined
from hookstats.records.record import SiteInfo, StepRecord, Table
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.stats.bins import Bins
from hookstats.stats.merge import joined_rows, offsets_of
from hookstats.stats.state import identity_moments, identity_tallies

SMALL_BYTES = 256 << 10
"""What a step may have that is copied out when it is closed."""


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


class Snapshot:
    """One closed step of an arena, which another thread makes a record of.

    The step is closed once the arena has lent its buffer to the snapshot, and not before.
    """

    def __init__(
        self,
        layout: Layout,
        counters: Counters,
        buffer: int,
        is_lent: Callable[[Flag], bool],
        small_bytes: int,
    ) -> None:
        """counters, small_bytes: those of the arena.

        is_lent: whether the arena waits for this flag, because it has lent the buffer.
        """
        self._layout = layout
        self._counters = counters
        self._buffer = buffer
        self._is_lent = is_lent
        self.is_free = Flag()
        """Whether the buffer is empty and given back."""
        self._reader = lock()  # held while the step is read out
        self._readings: list[Reading] = []  # by part, once it is to be read
        self._in_graphs: list[Tensor] = []  # of the parts that were read: what `Shelf.take` gave
        self._parts = [
            extent.shelf.close(buffer, extent, self._filled) for extent in layout.places.extents
        ]
        self.waits = any(part.event is not None for part in self._parts)
        """Whether `take_out` would wait for a device."""
        # Of histograms of whole tensors only the slots that are marked are copied.
        states = sum([extent.nbytes for extent in layout.places.extents])
        self.is_small = states <= small_bytes and not self.waits
        """Whether `take_out` waits for nothing, and copies little."""

    @cached_property
    def _counted(self) -> Int64:
        """int64 [2, sites], by index in the arena: the number of tensors that hooks folded in, and
        1 where an interrupt came meanwhile."""
        # Found by whoever reads the step out, as a rule not by the training: nobody counts in the
        # buffer until it is given back.
        return self._counters.first(len(self._layout.infos), self._buffer)

    def _filled(self) -> Int64:
        """By index in the arena: 0 where the buffer has nothing of a site."""
        filled: Int64 = self._counted.sum(0)
        return filled

    def to_record(self, step: int, rank: int) -> StepRecord:
        """The statistics of the sites that were observed in the step; gives the buffer back.

        What an interrupt left of a site's step is unknown: the record leaves the site out.
        """
        self.take_out()
        infos, (order, offsets, _), bins, channel_bins = self._layout
        taken = [reading.taken for reading in self._readings if reading.taken is not None]
        by_site, cut_short = self._counted[0].copy(), self._counted[1]
        for part, in_graphs in zip(self._parts, self._in_graphs, strict=True):
            if part.graph_sites:
                by_site[part.graph_sites] += in_graphs.numpy()
        by_site[cut_short > 0] = 0
        if len(self._parts) > 1:  # with one part, rows are in the order of `infos`
            infos, by_site = tuple([infos[site] for site in order]), by_site[order]
        none = identity_moments(0).numpy(), identity_tallies(0).numpy()
        record = StepRecord(
            step=step,
            rank=rank,
            sites=infos,
            observed=by_site,
            tensors=Table(
                _columns([part.whole_moments for part in taken], none[0]),
                _columns([part.whole_tallies for part in taken], none[1]),
                _join([part.hist for part in taken], len(order)),
            ),
            channels=Table(
                _columns([part.moments for part in taken], none[0]),
                _columns([part.tallies for part in taken], none[1]),
                _join([part.channel_hist for part in taken], int(offsets[-1])),
            ),
            bins=bins,
            channel_bins=channel_bins,
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
        folds, cut_short = self._counted  # before the buffer is given back
        if np.count_nonzero(cut_short):
            folds = np.where(cut_short > 0, -1, folds)
        for part in self._parts:
            if part.graph_sites:
                folds = folds.copy()
                folds[part.graph_sites] = -1  # graphs set no marks
        if len(self._parts) > 1:
            folds = folds[self._layout.places.order]
        first = 0
        for i, part in enumerate(self._parts):
            of_part = torch.from_numpy(folds[first : first + part.extent.sites])
            first += part.extent.sites
            if i == len(self._in_graphs):
                reading, shelf = self._readings[i], part.extent.shelf
                self._in_graphs.append(shelf.take(part, self._buffer, of_part, reading))
                reading.staged = None

    @property
    def nbytes(self) -> int:
        """The bytes that were copied out."""
        return sum([reading.taken.nbytes for reading in self._readings if reading.taken])

    def release(self) -> None:
        """Empty the buffer and give it back, if it is lent."""
        if not self.is_free.is_set() and self._is_lent(self.is_free):
            self.clear()
            self.is_free.set()

    def clear(self) -> None:
        """Empty the buffer."""
        for part in self._parts[len(self._in_graphs) :]:
            part.extent.shelf.clear(part.extent, self._buffer, part.event)
        self._counters.clear(len(self._layout.infos), self._buffer)


# Few calls of NumPy and torch: every long call releases the GIL, which the training has to yield to
# get it back.


def _columns(parts: Sequence[NDArray[Any]], none: NDArray[Any]) -> Any:
    """The rows of all devices as columns; `none` has no rows."""
    return joined_rows(parts or [none]).T


def _join(parts: Sequence[SparseCounts], rows: int) -> SparseCounts:
    """The histograms of all devices, `rows` in number; empty where there are no bins."""
    if sum([part.rows for part in parts]) < rows or not parts:
        return SparseCounts.empty(rows)
    return SparseCounts.joined(parts)


def _observed(record: StepRecord) -> StepRecord:
    """`record` without the sites that were not observed."""
    seen = record.observed > 0
    channels = record.channels
    if channels is not None:
        channels = _kept(channels, np.repeat(seen, np.diff(record.offsets)))
    return replace(
        record,
        sites=tuple(compress(record.sites, seen)),
        observed=record.observed[seen],
        tensors=_kept(record.tensors, seen),
        channels=channels,
    )


def _kept(table: Table, keep: NDArray[np.bool_]) -> Table:
    """The rows for which `keep` is true."""
    return Table(table.moments[:, keep], table.tallies[:, keep], _keep(table.hist, keep))


def _keep(counts: SparseCounts, keep: NDArray[np.bool_]) -> SparseCounts:
    """The rows for which `keep` is true."""
    lengths = np.diff(counts.offsets)
    offsets = offsets_of(lengths[keep])
    if offsets[-1] == len(counts.slots):  # as a rule, the other rows are empty
        return SparseCounts(offsets, counts.slots, counts.counts)
    entries = np.repeat(keep, lengths)
    return SparseCounts(offsets, counts.slots[entries], counts.counts[entries])
