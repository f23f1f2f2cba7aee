"""DeviceBuffer: the states of sites on one device, and how a closed step is drained from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hookstats.buffers.graph_states import GraphStates
from hookstats.buffers.staging import Staging, event
from hookstats.kernels.backends import backend_of
from hookstats.kernels.ops import close_streams, drain_, mark_columns
from hookstats.records.record import Table
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.stats.bins import Bins
from hookstats.stats.state import State, identity_moments, identity_tallies

MAX_SITE_BYTES = 4 << 30
"""The most memory that the states of one site may take; the same on all ranks, so that they record
the same sites."""
_Made = TypeVar("_Made")
_Blocks = tuple[
    list[list[Tensor]], list[list[Tensor]], tuple[State, State], tuple[Tensor, Tensor] | None
]
_BLOCK_ROWS = 4096
_BLOCK_BYTES = 4 << 20  # per buffer, unless a single site needs more


class Ranges(NamedTuple):
    """The rows of a device's sites: site i of `sites` has rows offsets[i] to offsets[i + 1]."""

    buffer: DeviceBuffer
    sites: Int64
    """The sites by index in the double buffer, in the order of their rows."""
    offsets: Tensor
    """int64 [sites + 1], on the host."""
    rows: int
    """The number of channels of the sites together."""


class SiteRows(NamedTuple):
    """Where the state of a site is: the blocks, and its rows in them."""

    states: tuple[State, State]
    """The state by buffer, with all rows of the blocks: `counts` is int64 [sites, slots]."""
    occupancy: tuple[Tensor, Tensor] | None
    """That of `counts`, by buffer."""
    channel: int
    """The first of its rows, one for each channel."""
    channels: int
    tensor: int
    """The row of `counts` and of their occupancy."""

    def views(self) -> tuple[State, State]:
        """The site's rows by buffer."""
        one, other = self.states
        first = self._view(one)
        return first, first if other is one else self._view(other)

    def _view(self, state: State) -> State:
        rows = slice(self.channel, self.channel + self.channels)
        counts, channel_counts = state.counts, state.channel_counts
        return state._replace(
            moments=state.moments[rows],
            tallies=state.tallies[rows],
            counts=None if counts is None else counts[self.tensor],
            channel_counts=None if channel_counts is None else channel_counts[rows],
        )


class Drained(NamedTuple):
    """What a device had of one step, on the host."""

    found: tuple[Tensor, ...]
    """What `drain_` returned."""
    observed: Int64
    """int64 [sites]: the number of tensors that were accumulated."""

    @property
    def nbytes(self) -> int:
        return sum([tensor.nbytes for tensor in self.found])

    def tables(self) -> tuple[Table, Table]:
        """A row for each site, its channels merged; a row for each channel."""
        arrays = [tensor.numpy() for tensor in self.found]
        hists, channel_hists = SparseCounts(*arrays[4:7]), SparseCounts(*arrays[7:])
        tensors = _table(arrays[2], arrays[3], hists)
        return tensors, _table(arrays[0], arrays[1], channel_hists)


class DeviceBuffer:
    """The states on one device: a row per channel and a row per tensor, in order of arrival.

    On the host, steps are drained as they are closed, and both buffers are the same memory. On
    another device one buffer is filled while the other one is drained, behind the device's work.
    """

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
        self._channels = Rows(empty, is_double=self.waits)
        self.row_bytes = sum(row.nbytes for row in empty)
        """The bytes of a channel's states in one step."""
        columns = [] if bins is None else [bins.slots]
        if bins is not None and backend.occupancy:
            columns.append(mark_columns(bins.slots))
        self._tensors = Rows([zeros(n, device) for n in columns], is_double=self.waits)
        self._bins = None if bins is None else bins.descriptor(device)
        self._channel_bins = None if channel_bins is None else channel_bins.descriptor(device)
        self._sampling = sampling
        self._last: _Blocks | None = None

    @property
    def waits(self) -> bool:
        """Whether `drain` waits for the device."""
        return self._staging is not None

    def rows(self, sites: int, rows: int, channels: int) -> SiteRows:
        """The rows of a new site.

        sites, rows: the number of sites that the device has, and of their channels together.

        Raises:
            ValueError: the states would take more than MAX_SITE_BYTES.
        """
        needed = (1 + self.waits) * channels * self.row_bytes
        if needed > MAX_SITE_BYTES:
            raise ValueError(
                f"channels = {channels}: their statistics would take {needed / 2**30:.1f} GiB, "
                f"expected at most {MAX_SITE_BYTES >> 30} GiB; exclude the site, or have fewer "
                "channel_bins"
            )
        of_channels, channel = self._channels.after(rows, channels)
        of_tensors, tensor = self._tensors.after(sites, 1)
        last = self._last
        if last is None or last[0] is not of_channels or last[1] is not of_tensors:
            found = [self._state(*blocks) for blocks in zip(of_channels, of_tensors, strict=True)]
            (state, occupancy), (other, others) = found[0], found[-1]
            marks = None if occupancy is None or others is None else (occupancy, others)
            last = self._last = of_channels, of_tensors, (state, other), marks
        return SiteRows(*last[2:], channel, channels, tensor)

    def _state(self, channels: list[Tensor], tensors: list[Tensor]) -> tuple[State, Tensor | None]:
        """The state in these blocks of a buffer, and the occupancy of its histograms."""
        counts, occupancy = (*tensors, None, None)[:2]
        return State(
            moments=channels[0],
            tallies=channels[1],
            counts=counts,
            bins=self._bins,
            channel_counts=channels[2] if len(channels) > 2 else None,
            channel_bins=self._channel_bins,
            sampling=self._sampling,
        ), occupancy

    def outside_captures(self, make: Callable[[], _Made]) -> _Made:
        """What `make` returns, once the device has done its work.

        What `make` allocates and fills is no part of the graph that this thread captures: another
        thread does it, on another stream.
        """

        def made() -> _Made:
            with self._staging.work() if self._staging else nullcontext():
                return make()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(made).result()

    def close(self, buffer: int, ranges: Ranges, calls: Int64) -> Part:
        """This device's part of the step in `buffer`, as it is now; waits for nothing.

        calls: by index in the double buffer, the number of tensors that hooks accumulated.
        """
        close_streams(self.device)
        in_graphs = self.graphs.collect(buffer, calls)
        behind = event(self.device) if self.waits else None
        return Part(ranges, buffer, calls[ranges.sites], self.graphs.sites, in_graphs, behind)

    def drain(self, part: Part) -> Drained:
        """Move the states of a part to the host and leave its rows empty; waits for the device."""
        groups, in_graphs = self._groups(part.ranges, part.buffer), part.in_graphs
        if self._staging is not None:
            with self._staging.work(part.event):
                groups = [[self._staging.copy(block) for block in group] for group in groups]
                in_graphs = self._staging.copy(in_graphs)
                self._clear(part.ranges, part.buffer)
        moments, tallies, counts, occupancy, channel_counts = groups
        if not occupancy:  # all counts are looked at
            occupancy = [c.new_zeros(len(c), mark_columns(c.shape[1])) for c in counts]
        accumulated = part.calls
        if part.graph_sites:  # graphs set no occupancy
            accumulated = np.where(np.isin(part.ranges.sites, part.graph_sites), -1, accumulated)
        calls, offsets = torch.from_numpy(accumulated), part.ranges.offsets
        found = drain_(moments, tallies, counts, occupancy, calls, channel_counts, offsets)
        return Drained(found, part.observed(in_graphs))

    def _groups(self, ranges: Ranges, buffer: int) -> list[list[Tensor]]:
        """The blocks in use: moments, tallies, counts, occupancy and the counts of channels."""
        moments, tallies, *channel_counts = self._channels.first(ranges.rows, buffer)
        counts, occupancy = (*self._tensors.first(len(ranges.sites), buffer), [], [])[:2]
        return [moments, tallies, counts, occupancy, *(channel_counts or [[]])]

    def clear(self, ranges: Ranges, buffer: int) -> None:
        """Make rows and sites empty again; waits for the device."""
        if self._staging is None:
            self._clear(ranges, buffer)
            return
        with self._staging.work(event(self.device)):
            self._clear(ranges, buffer)

    def _clear(self, ranges: Ranges, buffer: int) -> None:
        self._channels.clear(ranges.rows, buffer)
        self._tensors.clear(len(ranges.sites), buffer)


class Part(NamedTuple):
    """One device's part of a closed step, until it is drained."""

    ranges: Ranges
    buffer: int
    calls: Int64
    """int64 [S]: the number of tensors that hooks accumulated, by site of `ranges`."""
    graph_sites: list[int]
    """By index in the double buffer."""
    in_graphs: Tensor
    """int64 [graph_sites]: the number of tensors that compiled graphs accumulated."""
    event: torch.Event | None

    def observed(self, in_graphs: Tensor) -> Int64:
        """int64 [S]: the number of tensors that were accumulated.

        in_graphs: on the host.
        """
        if not self.graph_sites:
            return self.calls
        observed: Int64 = self.calls.copy()
        places = np.searchsorted(self.ranges.sites, self.graph_sites)
        observed[places] += in_graphs.numpy()
        return observed


def _table(moments: Float64, tallies: Int64, counts: SparseCounts) -> Table:
    """A table, with empty histograms where there are no bins."""
    rows = moments.shape[1]
    return Table(moments, tallies, counts if counts.rows == rows else SparseCounts.empty(rows))


class Rows:
    """Rows of state, in groups of columns, in one or two buffers.

    Callers count the rows in use and pass that count: an interrupted call leaves nothing behind but
    memory, which the next call gives out.
    """

    def __init__(self, empty: Sequence[Tensor], *, is_double: bool) -> None:
        """empty: the values of an empty row, a tensor [1, columns] per group of columns.

        is_double: whether the two buffers are separate memory; else they are the same rows.
        """
        self._empty = empty
        self._buffers = 2 if is_double else 1
        row_bytes = sum(row.nbytes for row in empty)
        self._capacity = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
        self._blocks: list[_Block] = []
        self._views: list[tuple[int, list[list[Tensor]]]] = [(0, []), (0, [])]

    def after(self, used: int, rows: int) -> tuple[list[list[Tensor]], int]:
        """The next rows, if the first `used` are in use: the block, of each separate buffer one
        tensor [capacity, columns] per group, and the first row in it."""
        if not self._blocks or self._blocks[-1].end < used + rows:
            kept = [block for block in self._blocks if block.start < used]
            capacity = max(rows, self._capacity)
            # Outside of inference mode, a tensor that was made in it cannot be updated.
            with torch.inference_mode(False):
                groups = [self._filled(row, capacity) for row in self._empty]
                buffers = [[group[i] for group in groups] for i in range(self._buffers)]
            self._blocks = [*kept, _Block(buffers, used, used + capacity)]
        buffers, start, _ = self._blocks[-1]
        return buffers, used - start

    def _filled(self, row: Tensor, capacity: int) -> Tensor:
        """A group of a new block, [buffers, capacity, columns]."""
        if row.is_cpu and not row.any():  # most slots are never counted in: they take no memory
            shape = self._buffers, capacity, row.shape[1]
            return torch.from_numpy(np.zeros(shape, row.numpy().dtype))
        return row.repeat(self._buffers, capacity, 1)

    def first(self, rows: int, buffer: int) -> list[list[Tensor]]:
        """The first `rows` rows: per group a list of views [n, columns], one per block."""
        known, views = self._views[buffer]
        if known != rows or not views:  # the number of rows seldom changes
            blocks, views = self._blocks, [[] for _ in self._empty]
            starts = [*(block.start for block in blocks), rows][1:]
            for block, next_start in zip(blocks, starts, strict=True):
                n = min(next_start, rows) - block.start
                if n <= 0:
                    break
                for group, view in zip(block.buffers[buffer % self._buffers], views, strict=True):
                    view.append(group[:n])
            self._views[buffer] = rows, views
        return views

    def clear(self, rows: int, buffer: int) -> None:
        """Make the first `rows` rows empty again."""
        for views, row in zip(self.first(rows, buffer), self._empty, strict=True):
            for view in views:
                view.copy_(row)


class _Block(NamedTuple):
    buffers: list[list[Tensor]]
    """Of each separate buffer, [capacity, columns] per group."""
    start: int
    end: int


def zeros(columns: int, device: torch.device) -> Tensor:
    """int64 [1, columns]: an empty row of counts."""
    return torch.zeros(1, columns, dtype=torch.int64, device=device)
