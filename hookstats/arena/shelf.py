"""Shelf: the states on one device, and how a closed step is taken out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hookstats.arena.graph_states import GraphStates
from hookstats.arena.memory import Memory
from hookstats.arena.rows import Table, zeros
from hookstats.arena.staging import Staging, event
from hookstats.arena.taken import Sizes, Taken
from hookstats.kernels.backends import backend_of
from hookstats.kernels.ops import close_streams, mark_columns, take_
from hookstats.records.sparse import Int64
from hookstats.stats.bins import Bins
from hookstats.stats.merge import offsets_of
from hookstats.stats.state import State, identity_moments, identity_tallies

MAX_SITE_BYTES = 4 << 30
"""The most memory that the states of one site may take; the same on all ranks, so that they record
the same sites."""


class Extent(NamedTuple):
    """What is in use of a shelf."""

    shelf: Shelf
    sites: int
    rows: int
    """The number of channels of the sites together."""
    offsets: Tensor
    """int64 [sites + 1]: the first row of each site, on the CPU."""

    @property
    def nbytes(self) -> int:
        """The bytes of the channels' states in one step."""
        return self.rows * self.shelf.row_bytes


class Part(NamedTuple):
    """One device's part of a closed step."""

    extent: Extent
    graph_sites: list[int]
    in_graphs: Tensor
    """int64 [graph_sites]: the number of tensors that compiled graphs folded in."""
    event: torch.Event | None


class Reading:
    """What was read of a part so far. Who reads makes it first: an interrupt loses nothing then."""

    def __init__(self) -> None:
        self.taken: Taken | None = None
        self.staged: tuple[list[list[Tensor]], Tensor] | None = None
        """Of a device other than the CPU: its rows on the host, and its part's `in_graphs`."""


class Shelf:
    """The states on one device: a row per channel and a row per tensor, in order of arrival."""

    def __init__(
        self,
        device: torch.device,
        bins: Bins | None,
        channel_bins: Bins | None,
        sampling: Tensor | None = None,
    ) -> None:
        """sampling: that of the states."""
        self.device = device
        self.graphs = GraphStates(device)
        backend = backend_of(device)
        self._staging = None if backend.states_on_host else Staging(device)

        empty = [identity_moments(1, device), identity_tallies(1, device)]
        if channel_bins is not None:
            empty.append(zeros(channel_bins.slots, device))
        self._channels = Table(empty)
        self.row_bytes = sum(row.nbytes for row in empty)
        """The bytes of a channel's states in one step."""
        columns = [] if bins is None else [bins.slots]
        if bins is not None and backend.marks:
            columns.append(mark_columns(bins.slots))
        self._tensors = Table([zeros(n, device) for n in columns])
        self._bins = None if bins is None else bins.descriptor(device)
        self._channel_bins = None if channel_bins is None else channel_bins.descriptor(device)
        self._sampling = sampling
        self._memory = Memory()

    def states(
        self, sites: int, rows: int, channels: int
    ) -> tuple[tuple[State, State], tuple[Tensor, Tensor] | None]:
        """The states of a new site and the marks of its histogram, both by buffer.

        sites, rows: the number of sites that are on the shelf, and of their channels together.

        Raises:
            ValueError: the states would take more than MAX_SITE_BYTES.
        """
        needed = 2 * channels * self.row_bytes  # one for each buffer
        if needed > MAX_SITE_BYTES:
            raise ValueError(
                f"channels = {channels}: their statistics would take {needed / 2**30:.1f} GiB, "
                f"expected at most {MAX_SITE_BYTES >> 30} GiB; exclude the site, or have fewer "
                "channel_bins"
            )
        moments, tallies, *channel_counts = self._channels.after(rows, channels)
        counts, marks = (*self._tensors.after(sites, 1), None, None)[:2]

        def state(buffer: int) -> State:
            return State(
                moments=moments[buffer],
                tallies=tallies[buffer],
                counts=None if counts is None else counts[buffer, 0],
                bins=self._bins,
                channel_counts=channel_counts[0][buffer] if channel_counts else None,
                channel_bins=self._channel_bins,
                sampling=self._sampling,
            )

        return (state(0), state(1)), None if marks is None else (marks[0, 0], marks[1, 0])

    def extent(self, channels: Int64) -> Extent:
        """What the first sites, with so many channels each, have of the shelf."""
        offsets = offsets_of(channels)
        rows = int(offsets[-1])
        return Extent(self, len(channels), rows, torch.from_numpy(offsets))

    def close(self, buffer: int, extent: Extent, observed: Callable[[], Int64]) -> Part:
        """This device's part of the step in `buffer`, as it is now.

        observed: by index in the arena, the number of tensors that hooks folded in; called where
            graphs have folded in others.
        """
        close_streams(self.device)
        in_graphs = self.graphs.collect(buffer, observed)
        behind = None if self._staging is None else event(self.device)
        return Part(extent, self.graphs.sites, in_graphs, behind)

    def take(self, part: Part, buffer: int, folds: Tensor, reading: Reading) -> Tensor:
        """Take the states of the part's rows and sites out, and leave the rows empty.

        After an interrupt or an error, another call with the same `reading` does the rest.

        folds: int64 [sites]: the number of tensors that hooks folded in; -1 where graphs may have
            folded in others.
        Returns `in_graphs` on the CPU. Devices other than the CPU do all work after the part's
        event.
        """
        groups, in_graphs = self._groups(part.extent, buffer), part.in_graphs
        if self._staging is not None:
            with self._staging.work(part.event):
                if reading.staged is None:
                    copies = [[self._staging.copy(block) for block in group] for group in groups]
                    reading.staged = copies, self._staging.copy(in_graphs)
                self._clear(part.extent, buffer)
            groups, in_graphs = reading.staged
        if reading.taken is None or not reading.taken.is_there:
            moments, tallies, counts, marks, channel_counts = groups
            if not marks:  # all counts are looked at
                marks = [c.new_zeros(len(c), mark_columns(c.shape[1])) for c in counts]
            sizes = Sizes(
                rows=part.extent.rows,
                tensors=part.extent.sites,
                hist=part.extent.sites if counts else 0,
                channel_hist=part.extent.rows if channel_counts else 0,
            )
            reading.taken = Taken(sizes, self._memory.take(sizes.words))
            states = moments, tallies, counts, marks, folds, channel_counts
            take_(*states, part.extent.offsets, *reading.taken.into)
        return in_graphs

    def _groups(self, extent: Extent, buffer: int) -> list[list[Tensor]]:
        """The blocks in use: moments, tallies, counts, marks and the counts of channels."""
        moments, tallies, *channel_counts = self._channels.first(extent.rows, buffer)
        counts, marks = (*self._tensors.first(extent.sites, buffer), [], [])[:2]
        return [moments, tallies, counts, marks, *(channel_counts or [[]])]

    def clear(self, extent: Extent, buffer: int, behind: torch.Event | None = None) -> None:
        """Make rows and sites empty again, after the event, or after all work so far."""
        if self._staging is None:
            self._clear(extent, buffer)
            return
        with self._staging.work(behind or event(self.device)):
            self._clear(extent, buffer)

    def _clear(self, extent: Extent, buffer: int) -> None:
        self._channels.clear(extent.rows, buffer)
        self._tensors.clear(extent.sites, buffer)
