"""Arena: the states of many sites, in two buffers: one is filled while the other is read out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats import native
from hookstats.bins import Bins, LinearBins, LogBins
from hookstats.graph_states import GraphSite, GraphState, GraphStates, State
from hookstats.ops import cpu_entry, update_
from hookstats.records import Int64, SiteInfo, SparseCounts, StepRecord
from hookstats.state import MOMENTS, TALLIES, identity_moments, identity_tallies

if TYPE_CHECKING:
    from hookstats import _hooks

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 4 << 20  # of one buffer, unless one site alone needs more


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
            self.native = native.hooks.Arena(cpu_entry(native.hooks.PARAMS_SIZE))
        self.lock: AbstractContextManager[object] = self.native or threading.RLock()
        """So that neither a swap nor another thread comes between a fold."""
        self.infos: list[SiteInfo] = []
        self.calls = _Table([torch.zeros(1, 1, dtype=torch.int64, device="cpu")])
        """By site and buffer, how many tensors were folded in."""
        self.stalls = 0
        """How often a swap had to wait until the step before was read out."""
        self.shelves: dict[torch.device, _Shelf] = {}
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
            states = self.shelves[device].add(index, info.channels)
            calls = self.calls.take(1)[0]
            self.infos.append(info)
        return Accumulator(self, index, states, (calls[0, 0], calls[1, 0]))

    def native_site(self, site: object) -> _hooks.Site | None:
        """A half in C++ for `site`, a Site; None where there are no C++ hooks."""
        if self.native is None or native.hooks is None:
            return None
        half: _hooks.Site = native.hooks.Site(self.native, site)
        return half

    def record(self, recording: bool) -> None:
        """From now on hooks are to observe, or not."""
        self.recording = recording
        if self.native is not None:
            self.native.recording = recording

    def pending(self) -> int:
        """How many tensors were folded into the open step; waits for the devices."""
        graphs = [int(shelf.graphs.folded().sum()) for shelf in self.shelves.values()]
        return int(self.observed(len(self.infos), self.front).sum()) + sum(graphs)

    def observed(self, sites: int, buffer: int) -> Int64:
        """How many tensors were folded into each of the first sites, int64 [sites].

        Without those that compiled graphs folded in.
        """
        parts = [calls[:, 0].numpy() for (calls,) in self.calls.first(sites, buffer)]
        return np.concatenate([np.empty(0, np.int64), *parts])

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

    __slots__ = ("_arena", "_calls", "_counters", "_graph", "_index", "_states")

    def __init__(
        self,
        arena: Arena,
        index: int,
        states: tuple[State, State],
        calls: tuple[Tensor, Tensor],
    ) -> None:
        self._arena = arena
        self._index = index
        self._states = states
        self._calls = calls
        self._counters = calls[0].numpy(), calls[1].numpy()  # the same memory, quicker to count in
        self._graph: GraphState | None = None

    def fold(self, x: Tensor, channel_dim: int | None) -> None:
        """Fold the statistics of `x`, a detached tensor, into the open step; under the lock."""
        arena = self._arena
        front = arena.front
        update_(x, channel_dim, *self._states[front])
        self._counters[front][0] += 1

    def bind(self, site: _hooks.Site, x: Tensor, channel_dim: int | None) -> None:
        """Have `site` fold tensors like `x` by itself, from now on."""
        site.bind(x, channel_dim, self._states, self._calls)

    @property
    def states(self) -> tuple[State, State]:
        """By buffer, the state that others fill, who then `count` it."""
        return self._states

    def count(self) -> None:
        """Count a tensor that was folded into the open step's state; under the lock."""
        self._counters[self._arena.front][0] += 1

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

    def is_empty(self) -> bool:
        """Whether nothing was folded into the open step."""
        return not self._counters[self._arena.front][0]

    @property
    def info(self) -> SiteInfo:
        """What records say of the site; `channels` cannot be changed."""
        return self._arena.infos[self._index]

    @info.setter
    def info(self, info: SiteInfo) -> None:
        self._arena.infos[self._index] = info


class Snapshot:
    """One closed step of an arena. One other thread reads it out, then releases it."""

    def __init__(self, arena: Arena, buffer: int, give_back: Callable[[], None]) -> None:
        self._arena = arena
        self._buffer = buffer
        self._give_back = give_back
        self._released = False
        # Sites that come later are not of this step, and what is said of a site may change.
        self._infos = arena.infos.copy()
        observed = arena.observed(len(self._infos), buffer)
        self._parts = [
            _Part(
                shelf,
                shelf.sites.copy(),
                shelf.rows,
                shelf.graphs.sites.copy(),
                shelf.graphs.collect(buffer, observed),
                _event(shelf.device),
            )
            for shelf in arena.shelves.values()
        ]

    def to_record(self, step: int, rank: int) -> StepRecord:
        """Copy out the statistics of the sites that were observed in the step."""
        arena, buffer = self._arena, self._buffer
        order = [site for part in self._parts for site in part.sites]
        by_site = arena.observed(len(self._infos), buffer)
        for part in self._parts:
            with _aside(part.shelf.device, part.event):
                by_site[part.graph_sites] += part.in_graphs.cpu().numpy()
        observed = by_site[order]
        channels = np.array([self._infos[site].channels for site in order], np.int64)
        seen = observed > 0
        seen_rows = np.repeat(seen, channels)

        moments = [np.empty((0, len(MOMENTS)))]
        tallies = [np.empty((0, len(TALLIES)), np.int64)]
        hist, channel_hist = [SparseCounts.empty(0)], [SparseCounts.empty(0)]
        for shelf, sites, rows, _, _, event in self._parts:
            with _aside(shelf.device, event):
                for block in shelf.channels.first(rows, buffer):
                    moments.append(block[0].cpu().numpy())
                    tallies.append(block[1].cpu().numpy())
                    channel_hist += [SparseCounts.from_dense(c.cpu().numpy()) for c in block[2:]]
                for block in shelf.tensors.first(len(sites), buffer):
                    hist += [SparseCounts.from_dense(c.cpu().numpy()) for c in block]
        return StepRecord(
            step=step,
            rank=rank,
            sites=tuple(self._infos[site] for site, was in zip(order, seen, strict=True) if was),
            observed=observed[seen],
            offsets=_offsets(channels[seen]),
            moments=_columns(moments, seen_rows),
            tallies=_columns(tallies, seen_rows),
            bins=arena.bins,
            hist=_join(hist, seen),
            channel_bins=arena.channel_bins,
            channel_hist=_join(channel_hist, seen_rows),
        )

    def release(self) -> None:
        """Make the buffer empty and give it back."""
        self._released = True
        try:
            for shelf, sites, rows, *_ in self._parts:
                with _aside(shelf.device):
                    shelf.channels.clear(rows, self._buffer)
                    shelf.tensors.clear(len(sites), self._buffer)
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
    sites: list[int]
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

        def zeros(bins: Bins | None) -> list[Tensor]:
            if bins is None:
                return []
            return [torch.zeros(1, bins.slots, dtype=torch.int64, device=device)]

        empty = [identity_moments(1, device), identity_tallies(1, device)]
        self.channels = _Table(empty + zeros(channel_bins))
        self.tensors = _Table(zeros(bins))
        self._bins = None if bins is None else bins.descriptor(device)
        self._channel_bins = None if channel_bins is None else channel_bins.descriptor(device)

    def add(self, site: int, channels: int) -> tuple[State, State]:
        """The state of a new site in both buffers."""
        self.sites.append(site)
        self.rows += channels
        moments, tallies, *channel_counts = self.channels.take(channels)
        counts = self.tensors.take(1)

        def state(buffer: int) -> State:
            return (
                moments[buffer],
                tallies[buffer],
                counts[0][buffer, 0] if counts else None,
                self._bins,
                channel_counts[0][buffer] if channel_counts else None,
                self._channel_bins,
            )

        return state(0), state(1)


class _Table:
    """Rows of state in two buffers; grows by blocks, so that no row ever moves."""

    def __init__(self, empty: Sequence[Tensor]) -> None:
        """empty: what an empty row holds in each of the columns' groups, [1, columns] each."""
        self._empty = empty
        row_bytes = sum(row.nbytes for row in empty)
        self._capacity = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
        self._blocks: list[_Block] = []

    def take(self, rows: int) -> list[Tensor]:
        """The next rows, one view [2, rows, columns] a group."""
        if not self._blocks or self._blocks[-1].free < rows:
            self._blocks.append(_Block(self._empty, max(rows, self._capacity)))
        return self._blocks[-1].take(rows)

    def first(self, rows: int, buffer: int) -> Iterator[list[Tensor]]:
        """The first `rows` rows that were taken: for each block one view [n, columns] a group."""
        for block in self._blocks:
            n = min(rows, block.used)
            yield [group[buffer, :n] for group in block.groups]
            rows -= n

    def clear(self, rows: int, buffer: int) -> None:
        """Make the first `rows` rows empty again."""
        for block in self.first(rows, buffer):
            for group, row in zip(block, self._empty, strict=True):
                group.copy_(row)


class _Block:
    """Rows allocated at once."""

    def __init__(self, empty: Sequence[Tensor], capacity: int) -> None:
        self.groups = [row.repeat(2, capacity, 1) for row in empty]
        self.used = 0
        self.free = capacity

    def take(self, rows: int) -> list[Tensor]:
        start, self.used = self.used, self.used + rows
        self.free -= rows
        return [group[:, start : self.used] for group in self.groups]


_Number = TypeVar("_Number", np.float64, np.int64)


def _columns(parts: Sequence[NDArray[_Number]], keep: NDArray[np.bool_]) -> NDArray[_Number]:
    """The rows of `parts` that `keep` says, column by column, as they will be stored."""
    columns: NDArray[_Number] = np.concatenate([part.T for part in parts], axis=1)
    rows: NDArray[_Number] = (columns if keep.all() else columns[:, keep]).T
    return rows


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def _join(parts: Sequence[SparseCounts], keep: NDArray[np.bool_]) -> SparseCounts:
    """All rows of `parts` one after the other, but for those, all empty, that `keep` leaves out."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return SparseCounts(
        _offsets(lengths[keep] if len(lengths) else np.zeros(keep.sum(), np.int64)),
        np.concatenate([part.slots for part in parts]),
        np.concatenate([part.counts for part in parts]),
    )


def _event(device: torch.device) -> torch.Event | None:
    """An event behind all that was asked of the device so far; the CPU needs none."""
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record()
    return event


@contextmanager
def _aside(device: torch.device, event: torch.Event | None = None) -> Iterator[None]:
    """Work on a stream of its own, after `event`, and done when this ends."""
    if device.type == "cpu":
        yield
        return
    stream = torch.Stream(device)
    with stream:
        if event is not None:
            stream.wait_event(event)
        yield
        stream.synchronize()
