"""Arena: the states of many sites, in two buffers: one is filled while the other is read out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hookstats.arena.graph_states import GraphSite, GraphState
from hookstats.arena.rows import Counters, offsets_of
from hookstats.arena.shelf import Shelf
from hookstats.arena.snapshot import Layout, Snapshot
from hookstats.kernels import native
from hookstats.kernels.backends import backend_of, home
from hookstats.kernels.ops import entries, update_
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Int64
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.stats.state import State

if TYPE_CHECKING:
    from hookstats import _hooks


class Arena:
    """The states of all sites of a watch, on the devices of their tensors.

    Hooks fold into the front buffer while `recording` is true, and hold `lock` meanwhile. `swap`
    closes a step: it makes the other buffer the front buffer, and hands out the buffer that it
    closed as a Snapshot. Only a site's first tensor on a device allocates memory.
    """

    def __init__(
        self,
        bins: LinearBins | LogBins | None,
        channel_bins: LinearBins | LogBins | None,
        *,
        higher: bool = False,
    ) -> None:
        """higher: whether the states have third and fourth moments."""
        self.bins = bins
        self.channel_bins = channel_bins
        self.higher = higher
        self.recording = False
        """Whether hooks are to observe, which every hook asks first. `record` sets it."""
        self.front = 0
        self.native: _hooks.Arena | None = None
        """The half of the arena for the C++ hooks; None without C++ hooks."""
        if native.hooks is not None:
            self.native = native.hooks.Arena(entries(native.hooks.PARAMS_SIZE))
        self.lock: AbstractContextManager[object] = self.native or threading.RLock()
        """Held during a fold, which neither a swap nor another thread may interrupt."""
        self.infos: list[SiteInfo] = []
        self._sites: tuple[SiteInfo, ...] | None = None  # `infos`, until one changes
        self.calls = Counters()
        """The number of tensors that were folded in, by site and buffer, not counting graphs."""
        self.stalls = 0
        """The number of swaps that waited until the step before was read out."""
        self.while_waiting: Callable[[], object] = lambda: None
        """Called each second while a swap waits."""
        self.shelves: dict[torch.device, Shelf] = {}
        self._layout: tuple[Int64, Int64] = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._pid = os.getpid()
        self._back_is_free = threading.Event()
        self._back_is_free.set()

    def accumulator(self, info: SiteInfo, device: torch.device) -> Accumulator:
        """A new state of `info.channels` channels, for tensors on `device`."""
        device = home(device)
        # Outside of inference mode, a tensor that was made in it cannot be updated.
        with self.lock, torch.inference_mode(False):
            if device not in self.shelves:
                self.shelves[device] = Shelf(
                    device, self.bins, self.channel_bins, higher=self.higher
                )
            index = len(self.infos)
            states, marks = self.shelves[device].add(index, info.channels)
            calls = self.calls.take()
            self.infos.append(info)
            self._sites = None
        return Accumulator(self, index, states, calls, marks)

    def set_info(self, site: int, info: SiteInfo) -> None:
        """Replace what records say of a site."""
        self.infos[site] = info
        self._sites = None

    def sites(self) -> tuple[SiteInfo, ...]:
        """What records say of all sites now."""
        if self._sites is None:  # as a rule, the tuple of the last step serves
            self._sites = tuple(self.infos)
        return self._sites

    def layout(self) -> tuple[Int64, Int64]:
        """The sites in the order of their rows, and the first row of each, int64 [sites + 1]."""
        if len(self._layout[0]) != len(self.infos):  # as a rule, that of the last step serves
            order = [site for shelf in self.shelves.values() for site in shelf.sites]
            channels = np.array([self.infos[site].channels for site in order], np.int64)
            self._layout = np.array(order, np.int64), offsets_of(channels)
        return self._layout

    def native_site(self, site: object) -> _hooks.Site | None:
        """The C++ half of `site`, a Site; None without C++ hooks."""
        if self.native is None or native.hooks is None:
            return None
        half: _hooks.Site = native.hooks.Site(self.native, site)
        return half

    def native_parameters(self) -> _hooks.Parameters | None:
        """The C++ half for the parameters of an optimizer; None without C++ hooks."""
        if self.native is None or native.hooks is None:
            return None
        parameters: _hooks.Parameters = native.hooks.Parameters(self.native)
        return parameters

    def record(self, recording: bool) -> None:
        """Have hooks observe from now on, or not."""
        self.recording = recording
        if self.native is not None:
            self.native.recording = recording

    def pending(self) -> int:
        """How many tensors were folded into the open step; waits for the devices."""
        shelves = [shelf for shelf in self.shelves.values() if shelf.graphs.sites]
        graphs = [int(shelf.graphs.folded().sum()) for shelf in shelves]
        return int(self.calls.first(len(self.infos), self.front).sum()) + sum(graphs)

    def is_captured(self) -> bool:
        """Whether work on one of the devices now becomes part of a graph, such as a CUDA graph."""
        # Only of devices that are in use: asking must not start any.
        return any(backend_of(device).is_capturing() for device in self.shelves)

    def discard_late(self) -> None:
        """Discard the tensors that graphs folded in while no step was recorded."""
        with self.lock:
            for shelf in self.shelves.values():
                shelf.graphs.discard()

    def swap(self) -> Snapshot:
        """Close the open step and begin the next; waits until the step before is read out."""
        if os.getpid() != self._pid:
            # At the fork a flush thread, which this process does not have, had the other buffer.
            self._pid = os.getpid()
            self._back_is_free.set()
        if not self._back_is_free.is_set():
            self.stalls += 1
            while not self._back_is_free.wait(1.0):
                self.while_waiting()
        with self.lock:
            layout = Layout(self.sites(), *self.layout(), self.bins, self.channel_bins, self.higher)
            snapshot = Snapshot(
                layout, self.shelves.values(), self.calls, self.front, self._back_is_free.set
            )
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
        """Fold the statistics of `x`, a detached tensor, into the open step, under the lock."""
        front = self._arena.front
        self.count(1)
        try:
            update_(x, channel_dim, *self._states[front])
        except Exception:  # not after an interrupt: the tensor may be in the state then
            self.count(-1)
            raise

    def bind(self, site: _hooks.Site, x: Tensor, channel_dim: int | None) -> None:
        """Have `site` fold in tensors like `x` without Python from now on."""
        calls = torch.from_numpy(self._calls[0]), torch.from_numpy(self._calls[1])
        site.bind(x, channel_dim, self._states, calls, self._marks)

    @property
    def states(self) -> tuple[State, State]:
        """The state by buffer, for external writers, who must call `count` first."""
        return self._states

    def count(self, tensors: int) -> None:
        """Count tensors that an external writer will fold into the open step, under the lock.

        Uncounted folds may be missed by `take_` and leak into a later step. A negative number takes
        refused tensors back.
        """
        self._calls[self._arena.front][0] += tensors

    def graph_state(self, site: GraphSite) -> GraphState:
        """The state that compiled graphs fold into; made at the first call."""
        if self._graph is None:
            rows = self._states
            shelf = self._arena.shelves[rows[0].moments.device]
            with torch.inference_mode(False):
                self._graph = shelf.graphs.add(self._index, rows, site)
        return self._graph

    def is_traced(self) -> bool:
        """Whether compiled graphs fold into it."""
        return self._graph is not None

    @property
    def info(self) -> SiteInfo:
        """What records say of the site; `channels` cannot change."""
        return self._arena.infos[self._index]

    @info.setter
    def info(self, info: SiteInfo) -> None:
        self._arena.set_info(self._index, info)
