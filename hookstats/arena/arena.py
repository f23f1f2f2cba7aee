"""Arena: the states of many sites, in two buffers: one is filled while the other is read out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.arena.graph_states import GraphSite, GraphState, GraphStates, State
from hookstats.arena.rows import Counters, Table, zeros
from hookstats.arena.staging import Staging, event
from hookstats.kernels import native
from hookstats.kernels.ops import Taken, cpu_entry, cuda_entry, mark_columns, take_, update_
from hookstats.records.merge import joined
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.state import MOMENTS, TALLIES, identity_moments, identity_tallies

if TYPE_CHECKING:
    from hookstats import _hooks


class Arena:
    """The states of all sites of a watch, on the devices of their tensors.

    Hooks fold into the front buffer while `recording` is true, and hold `lock` while they do.
    `swap` closes a step: it makes the other buffer the front one and hands out the one just closed
    as a Snapshot. Only the first tensor of a site on a device allocates.
    """

    def __init__(
        self, bins: LinearBins | LogBins | None, channel_bins: LinearBins | LogBins | None
    ) -> None:
        self.bins = bins
        self.channel_bins = channel_bins
        self.recording = False
        """Whether hooks are to observe: what each of them asks first. Set by `record`."""
        self.front = 0
        self.native: _hooks.Arena | None = None
        """What the C++ hooks know of all this; None where there are none."""
        if native.hooks is not None:
            size = native.hooks.PARAMS_SIZE
            self.native = native.hooks.Arena(cpu_entry(size), cuda_entry(size))
        self.lock: AbstractContextManager[object] = self.native or threading.RLock()
        """So that neither a swap nor another thread comes between a fold."""
        self.infos: list[SiteInfo] = []
        self._sites: tuple[SiteInfo, ...] | None = None  # of infos, as long as they are the same
        self.calls = Counters()
        """By site and buffer, how many tensors were folded in, without those in graphs."""
        self.stalls = 0
        """How often a swap had to wait until the step before was read out."""
        self.shelves: dict[torch.device, _Shelf] = {}
        self._layout: tuple[Int64, Int64] = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._pid = os.getpid()
        self._back_is_free = threading.Event()
        self._back_is_free.set()

    def accumulator(self, info: SiteInfo, device: torch.device) -> Accumulator:
        """A new state of `info.channels` channels, for tensors on `device`."""
        # MPS has no float64: there the fallback brings the values to the CPU.
        device = torch.device("cpu") if device.type == "mps" else device
        # A tensor made in inference mode could not be updated outside of it.
        with self.lock, torch.inference_mode(False):
            if device not in self.shelves:
                self.shelves[device] = _Shelf(device, self.bins, self.channel_bins)
            index = len(self.infos)
            states, marks = self.shelves[device].add(index, info.channels)
            calls = self.calls.take()
            self.infos.append(info)
            self._sites = None
        return Accumulator(self, index, states, calls, marks)

    def set_info(self, site: int, info: SiteInfo) -> None:
        """From now on `info` is said of a site."""
        self.infos[site] = info
        self._sites = None

    def sites(self) -> tuple[SiteInfo, ...]:
        """What is said of all sites now."""
        if self._sites is None:  # else it is that of the step before, and no site is touched
            self._sites = tuple(self.infos)
        return self._sites

    def layout(self) -> tuple[Int64, Int64]:
        """The sites in order of their rows, and where each has its first, int64 [sites + 1]."""
        if len(self._layout[0]) != len(self.infos):  # else it is that of the step before
            order = [site for shelf in self.shelves.values() for site in shelf.sites]
            channels = np.array([self.infos[site].channels for site in order], np.int64)
            self._layout = np.array(order, np.int64), _offsets(channels)
        return self._layout

    def native_site(self, site: object) -> _hooks.Site | None:
        """A half in C++ for `site`, a Site; None where there are no C++ hooks."""
        if self.native is None or native.hooks is None:
            return None
        half: _hooks.Site = native.hooks.Site(self.native, site)
        return half

    def native_parameters(self) -> _hooks.Parameters | None:
        """Room in C++ for the parameters of an optimizer; None where there are no C++ hooks."""
        if self.native is None or native.hooks is None:
            return None
        parameters: _hooks.Parameters = native.hooks.Parameters(self.native)
        return parameters

    def record(self, recording: bool) -> None:
        """From now on hooks are to observe, or not."""
        self.recording = recording
        if self.native is not None:
            self.native.recording = recording

    def pending(self) -> int:
        """How many tensors were folded into the open step; waits for the devices."""
        shelves = [shelf for shelf in self.shelves.values() if shelf.graphs.sites]
        graphs = [int(shelf.graphs.folded().sum()) for shelf in shelves]
        return int(self.calls.first(len(self.infos), self.front).sum()) + sum(graphs)

    def is_captured(self) -> bool:
        """Whether what the device is asked for now becomes a part of a CUDA graph."""
        devices = {device.type for device in self.shelves}  # asking must not start CUDA
        return "cuda" in devices and torch.cuda.is_current_stream_capturing()

    def discard_late(self) -> None:
        """Forget what graphs folded in while no step was recorded."""
        with self.lock:
            for shelf in self.shelves.values():
                shelf.graphs.discard()

    def swap(self) -> Snapshot:
        """Close the open step and begin the next; waits while the step before is read out."""
        if os.getpid() != self._pid:
            # Forked while a flush thread, which is not in this process, had the other buffer.
            self._pid = os.getpid()
            self._back_is_free.set()
        if not self._back_is_free.is_set():
            self.stalls += 1
            self._back_is_free.wait()
        with self.lock:
            snapshot = Snapshot(self, self.front, self._back_is_free.set)
            self._back_is_free.clear()
            self.front = 1 - self.front
            if self.native is not None:
                self.native.front = self.front
            return snapshot


class Accumulator:
    """The state of one site on one device."""

    __slots__ = ("_arena", "_calls", "_graph", "_index", "_marks", "_states")

    def __init__(
        self,
        arena: Arena,
        index: int,
        states: tuple[State, State],
        calls: tuple[Int64, Int64],
        marks: tuple[Tensor, Tensor] | None,
    ) -> None:
        self._arena = arena
        self._index = index
        self._states = states
        self._calls = calls
        self._marks = marks
        self._graph: GraphState | None = None

    def fold(self, x: Tensor, channel_dim: int | None) -> None:
        """Fold the statistics of `x`, a detached tensor, into the open step; under the lock."""
        front = self._arena.front
        self.count(1)
        try:
            update_(x, channel_dim, *self._states[front])
        except Exception:  # after an interrupt it may be in the state
            self.count(-1)
            raise

    def bind(self, site: _hooks.Site, x: Tensor, channel_dim: int | None) -> None:
        """Have `site` fold tensors like `x` by itself, from now on."""
        calls = torch.from_numpy(self._calls[0]), torch.from_numpy(self._calls[1])
        site.bind(x, channel_dim, self._states, calls, self._marks)

    @property
    def states(self) -> tuple[State, State]:
        """By buffer, the state that others fill, who `count` it first."""
        return self._states

    def count(self, tensors: int) -> None:
        """Count tensors that others will fold into the open step's state; under the lock.

        Counts in a histogram that nobody told of would stay there for a later step. Less than zero
        takes back what was refused.
        """
        self._calls[self._arena.front][0] += tensors

    def graph_state(self, site: GraphSite) -> GraphState:
        """What compiled graphs are to fold into; made once."""
        if self._graph is None:
            rows = self._states
            shelf = self._arena.shelves[rows[0][0].device]
            with torch.inference_mode(False):
                self._graph = shelf.graphs.add(self._index, rows, site)
        return self._graph

    def is_traced(self) -> bool:
        """Whether compiled graphs fold into it."""
        return self._graph is not None

    @property
    def info(self) -> SiteInfo:
        """What records say of the site; `channels` cannot be changed."""
        return self._arena.infos[self._index]

    @info.setter
    def info(self, info: SiteInfo) -> None:
        self._arena.set_info(self._index, info)


class Snapshot:
    """One closed step of an arena. One other thread reads it out, then releases it."""

    def __init__(self, arena: Arena, buffer: int, give_back: Callable[[], None]) -> None:
        self._arena = arena
        self._buffer = buffer
        self._give_back = give_back
        self._released = False
        self._taken = 0  # how many of the parts left empty rows behind
        # Sites that come later are not of this step, and what is said of a site may change.
        self._infos = arena.sites()
        self._layout = arena.layout()
        self._by_site = arena.calls.first(len(self._infos), buffer)
        self._parts = [
            _Part(
                shelf,
                len(shelf.sites),
                shelf.rows,
                shelf.graphs.sites.copy(),
                shelf.graphs.collect(buffer, self._by_site),
                None if shelf.staging is None else event(shelf.device),
            )
            for shelf in arena.shelves.values()
        ]

    def to_record(self, step: int, rank: int) -> StepRecord:
        """Copy out the statistics of the sites that were observed in the step."""
        arena, buffer = self._arena, self._buffer
        order, offsets = self._layout
        by_site = self._by_site
        folds = by_site.copy()
        for part in self._parts:
            folds[part.graph_sites] = -1  # graphs mark nothing
        folds = folds[order]
        taken: list[Taken] = []
        for part in self._parts:
            of_part, folds = folds[: part.sites], folds[part.sites :]
            rows, in_graphs = part.shelf.take(part, buffer, torch.from_numpy(of_part))
            by_site[part.graph_sites] += in_graphs.numpy()
            taken.append(rows)
            self._taken += 1
        infos = self._infos
        if len(self._parts) > 1:  # else rows are in order of arrival
            infos = tuple(infos[site] for site in order)
        record = StepRecord(
            step=step,
            rank=rank,
            sites=infos,
            observed=by_site[order],
            offsets=offsets,
            moments=_rows([part.moments for part in taken], len(MOMENTS)),
            tallies=_rows([part.tallies for part in taken], len(TALLIES)),
            bins=arena.bins,
            hist=_join([part[2:5] for part in taken], len(order)),
            channel_bins=arena.channel_bins,
            channel_hist=_join([part[5:8] for part in taken], int(offsets[-1])),
        )
        record = record if record.observed.all() else _observed(record)
        return record if len(self._parts) < 2 else joined(record)

    def release(self) -> None:
        """Make the buffer empty and give it back."""
        self._released = True
        try:
            for part in self._parts[self._taken :]:
                part.shelf.clear(part.rows, part.sites, self._buffer)
            self._arena.calls.clear(len(self._infos), self._buffer)
        finally:
            self._give_back()

    def __del__(self) -> None:
        # A KeyboardInterrupt may lose a snapshot, and the next swap would wait for it for ever.
        if not self._released:
            with suppress(Exception):
                self.release()


class _Part(NamedTuple):
    """What a snapshot has of one device."""

    shelf: _Shelf
    sites: int
    rows: int
    graph_sites: list[int]
    in_graphs: Tensor
    """int64: of each of `graph_sites`, how many tensors compiled graphs folded in."""
    event: torch.Event | None


class _Shelf:
    """The state on one device: a row a channel and a row a tensor, in order of arrival."""

    def __init__(self, device: torch.device, bins: Bins | None, channel_bins: Bins | None) -> None:
        self.device = device
        self.sites: list[int] = []
        self.rows = 0
        """Channels of all sites together."""
        self.graphs = GraphStates(device)
        self.staging = None if device.type == "cpu" else Staging(device)

        empty = [identity_moments(1, device), identity_tallies(1, device)]
        if channel_bins is not None:
            empty.append(zeros(channel_bins.slots, device))
        self._channels = Table(empty)
        columns = [] if bins is None else [bins.slots]
        if bins is not None and self.staging is None:  # CPU kernels alone mark
            columns.append(mark_columns(bins.slots))
        self._tensors = Table([zeros(n, device) for n in columns])
        self._bins = None if bins is None else bins.descriptor(device)
        self._channel_bins = None if channel_bins is None else channel_bins.descriptor(device)

    def add(
        self, site: int, channels: int
    ) -> tuple[tuple[State, State], tuple[Tensor, Tensor] | None]:
        """The state of a new site in both buffers, and the marks of its histogram."""
        self.sites.append(site)
        self.rows += channels
        moments, tallies, *channel_counts = self._channels.take(channels)
        counts, marks = (*self._tensors.take(1), None, None)[:2]

        def state(buffer: int) -> State:
            return (
                moments[buffer],
                tallies[buffer],
                None if counts is None else counts[buffer, 0],
                self._bins,
                channel_counts[0][buffer] if channel_counts else None,
                self._channel_bins,
            )

        return (state(0), state(1)), None if marks is None else (marks[0, 0], marks[1, 0])

    def take(self, part: _Part, buffer: int, folds: Tensor) -> tuple[Taken, Tensor]:
        """Take the states of the part's rows and sites out, which are empty then.

        folds: int64 [sites]: how many tensors hooks folded in; -1 where others may have.
        Also returns `in_graphs` on the CPU. Other devices do it all after the part's event.
        """
        moments, tallies, *channel_counts = self._channels.first(part.rows, buffer)
        counts, *marks = self._tensors.first(part.sites, buffer) or [[]]
        groups = [moments, tallies, counts, *(channel_counts or [[]])]
        in_graphs = part.in_graphs
        if self.staging is not None:
            with self.staging.work(part.event):
                groups = [[self.staging.copy(block) for block in group] for group in groups]
                in_graphs = self.staging.copy(in_graphs)
                self._clear(part.rows, part.sites, buffer)
        moments, tallies, counts, of_channels = groups
        if not marks:  # then all counts are looked at
            marks = [[c.new_zeros(len(c), mark_columns(c.shape[1])) for c in counts]]
        return take_(moments, tallies, counts, marks[0], folds, of_channels), in_graphs

    def clear(self, rows: int, sites: int, buffer: int) -> None:
        """Make the first rows and sites empty again."""
        if self.staging is None:
            self._clear(rows, sites, buffer)
            return
        with self.staging.work():
            self._clear(rows, sites, buffer)

    def _clear(self, rows: int, sites: int, buffer: int) -> None:
        self._channels.clear(rows, buffer)
        self._tensors.clear(sites, buffer)


# Few calls: in each that is long NumPy and torch give the GIL up, and the training has to yield it.


def _rows(parts: Sequence[Tensor], columns: int) -> Any:
    """Columns [columns, rows] of all devices as rows [rows, columns]."""
    if not parts:
        return np.empty((0, columns))
    return (parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=1)).numpy().T


def _join(parts: Sequence[Sequence[Tensor]], rows: int) -> SparseCounts:
    """The histograms of all devices, `rows` of them; without bins they are empty."""
    if sum(len(offsets) - 1 for offsets, _, _ in parts) < rows or not parts:
        return SparseCounts.empty(rows)
    if len(parts) == 1:
        return SparseCounts(*(part.numpy() for part in parts[0]))
    return SparseCounts(
        _offsets(np.concatenate([np.diff(offsets.numpy()) for offsets, _, _ in parts])),
        np.concatenate([slots.numpy() for _, slots, _ in parts]),
        np.concatenate([counts.numpy() for _, _, counts in parts]),
    )


def _observed(record: StepRecord) -> StepRecord:
    """`record` without the sites that were not observed, whose rows are empty."""
    seen = record.observed > 0
    channels = np.diff(record.offsets)
    rows = np.repeat(seen, channels)
    return replace(
        record,
        sites=tuple(compress(record.sites, seen)),
        observed=record.observed[seen],
        offsets=_offsets(channels[seen]),
        moments=record.moments.T[:, rows].T,
        tallies=record.tallies.T[:, rows].T,
        hist=_keep(record.hist, seen),
        channel_hist=_keep(record.channel_hist, rows),
    )


def _keep(counts: SparseCounts, keep: NDArray[np.bool_]) -> SparseCounts:
    """The rows that `keep` says; those that it leaves out are empty."""
    return SparseCounts(_offsets(np.diff(counts.offsets)[keep]), counts.slots, counts.counts)


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
