"""Arena: the states of many sites, in two buffers: one is filled while the other is read out."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hookstats.arena.flag import Flag
from hookstats.arena.graph_states import GraphSite, GraphState
from hookstats.arena.lock import lock, whole
from hookstats.arena.mask import CurrentMask
from hookstats.arena.rows import Counters
from hookstats.arena.shelf import Shelf
from hookstats.arena.snapshot import SMALL_BYTES, Layout, Places, Snapshot
from hookstats.kernels import native
from hookstats.kernels.backends import backend_of, home
from hookstats.kernels.ops import entries, update_
from hookstats.kernels.sampling import Sampling
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Int64
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.stats.merge import offsets_of
from hookstats.stats.state import State

if TYPE_CHECKING:
    from hookstats import _hooks

PATIENCE = 10.0
"""The seconds that training waits for a disk or a sink, before steps are lost."""

MOST_AHEAD = 256
"""How many steps may be copied out and wait for the thread that makes records of them."""

BYTES_AHEAD = 32 << 20  # the memory of those the training copied out, and of the thread's, at most
_POLL_SECONDS = 1e-3

Submit = Callable[[Snapshot], None]
"""Who gets a closed step, to read it out."""


class _PythonHalf:
    """What `_hooks.Arena` has for the Python hooks, too."""

    __slots__ = ("front",)

    def __init__(self) -> None:
        self.front = 0


class _Placed:
    """A site's place on a shelf, with what records say of the site."""

    __slots__ = ("info", "place", "row", "shelf")

    def __init__(self, info: SiteInfo, shelf: Shelf, place: int, row: int) -> None:
        """place, row: the number of sites, and of their channels, that the shelf had before."""
        self.info = info
        self.shelf = shelf
        self.place = place
        self.row = row


class Arena:
    """The states of all sites of a watch, on the devices of their tensors.

    Hooks fold into the front buffer while `recording` is true, and hold `lock` meanwhile. `swap`
    closes a step: it makes the other buffer the front buffer, and hands out the buffer that it
    closed as a Snapshot. Only a site's first tensor on a device allocates memory.

    An interrupt (Ctrl-C) or an error may come at any line. Therefore one list says which sites
    there are, and one statement closes a step; all else is derived from these, or may be done
    twice.
    """

    def __init__(
        self,
        bins: LinearBins | LogBins | None,
        channel_bins: LinearBins | LogBins | None,
    ) -> None:
        self.bins = bins
        self.channel_bins = channel_bins
        self.sampling = Sampling(bins, channel_bins)
        self.recording = False
        """Whether hooks are to observe, which every hook asks first. `record` sets it."""
        self.phase = 0
        """Which hooks observe: those of training, 0, or of a phase. `enter` sets it."""
        self.native: _hooks.Arena | None = None
        """The half of the arena for the C++ hooks; None without C++ hooks."""
        if native.hooks is not None:
            self.native = native.hooks.Arena(entries(native.hooks.PARAMS_SIZE))
        self.mask = CurrentMask(self.native)
        self.lock = lock() if self.native is None else whole(self.native, self.native.depth)
        """Held during a fold, which neither a swap nor another thread may interrupt."""
        self._half: _hooks.Arena | _PythonHalf = self.native or _PythonHalf()
        self._placed: list[_Placed] = []
        self._infos: tuple[SiteInfo, ...] | None = None  # those of `_placed`, until one changes
        self.counters = Counters(2)
        """By site and buffer: the number of tensors that were folded in, not counting graphs, and
        1 while Python folds a tensor in; where that stays 1, an interrupt came meanwhile."""
        self.is_evaluation: Callable[[], bool] = lambda: False
        """Whether a module's call is one of an evaluation now, which is left out."""
        self.stalls = 0
        """The number of swaps that waited until another thread had read the step before out."""
        self.closed = 0
        """The number of steps that were closed."""
        self.while_waiting: Callable[[], object] = lambda: None
        """Called as a swap begins to wait, and each second while it does."""
        self.shelves: dict[torch.device, Shelf] = {}
        self._places = Places(np.zeros(0, np.int64), np.zeros(1, np.int64), ())
        self._pid = os.getpid()
        self._back_is_free = Flag.already_set()
        self._lent: Callable[[], Snapshot | None] = lambda: None
        self._unsubmitted: tuple[Snapshot, Submit] | None = None
        self._ahead: deque[weakref.ref[Snapshot]] = deque()  # read out here, oldest first
        self.most_ahead = MOST_AHEAD
        """How many steps may be copied out and wait, where memory has room."""
        self.patience = PATIENCE
        """The seconds that a swap waits before steps are lost."""
        self.small_bytes = SMALL_BYTES
        self._room_ahead = 1  # how many of them may wait now
        self._stuck_since: float | None = None  # when a swap began to wait, if no later one got on

    def accumulator(self, info: SiteInfo, device: torch.device) -> Accumulator:
        """A new state of `info.channels` channels, for tensors on `device`."""
        device = home(device)
        # Outside of inference mode, a tensor that was made in it cannot be updated.
        with self.lock, torch.inference_mode(False):
            if (shelf := self.shelves.get(device)) is None:
                counting = self.bins, self.channel_bins, self.sampling.on(device)
                shelf = self.shelves[device] = Shelf(device, *counting)
            index, (place, row) = len(self._placed), self._end_of(shelf)
            states, marks = shelf.states(place, row, info.channels)
            made = Accumulator(self, index, states, self.counters.row(index), marks)
            self._placed.append(_Placed(info, shelf, place, row))  # from now on there is the site
            return made

    def _end_of(self, shelf: Shelf) -> tuple[int, int]:
        """The number of sites on a shelf, and of their channels."""
        for last in reversed(self._placed):
            if last.shelf is shelf:
                return last.place + 1, last.row + last.info.channels
        return 0, 0

    def info(self, site: int) -> SiteInfo:
        """What records say of a site."""
        return self._placed[site].info

    def set_info(self, site: int, info: SiteInfo) -> None:
        """Replace what records say of a site."""
        self._infos = None
        self._placed[site].info = info

    def infos(self) -> tuple[SiteInfo, ...]:
        """What records say of all sites now."""
        # As a rule, the tuple of the last step serves.
        if self._infos is None or len(self._infos) != len(self._placed):
            self._infos = tuple([placed.info for placed in self._placed])
        return self._infos

    def places(self) -> Places:
        """Where the sites are."""
        if len(self._places.order) != len(self._placed):  # as a rule, those of the last step serve
            by_shelf: dict[Shelf, list[int]] = {shelf: [] for shelf in self.shelves.values()}
            for site, placed in enumerate(self._placed):
                by_shelf[placed.shelf].append(site)
            order = np.array([site for sites in by_shelf.values() for site in sites], np.int64)
            channels = np.array([placed.info.channels for placed in self._placed], np.int64)
            extents = [shelf.extent(channels[sites]) for shelf, sites in by_shelf.items() if sites]
            self._places = Places(order, offsets_of(channels[order]), tuple(extents))
        return self._places

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

    @property
    def front(self) -> int:
        """The buffer that hooks fill."""
        return self._half.front

    def record(self, recording: bool) -> None:
        """Have hooks observe from now on, or not."""
        self.recording = recording
        if self.native is not None:
            self.native.recording = recording

    def leave_out(self, is_evaluation: Callable[[], bool]) -> None:
        """Have the hooks of training leave out calls for which `is_evaluation()`, which are calls
        without gradients."""
        self.is_evaluation = is_evaluation
        if self.native is not None:
            self.native.skips_evaluation = True

    def enter(self, phase: int) -> None:
        """Have the hooks of this phase observe from now on, and no others."""
        self.phase = phase
        if self.native is not None:
            self.native.phase = phase

    def seconds(self) -> float | None:
        """How long threads have held the lock so far: what hooks cost the training. None without
        C++ hooks, as Python's locks cannot tell."""
        return None if self.native is None else self.native.seconds

    def pending(self) -> int:
        """How many tensors were folded into the open step; waits for the devices."""
        graphs = [int(s.graphs.folded().sum()) for s in self.shelves.values() if s.graphs.sites]
        return int(self._calls().sum()) + sum(graphs)

    def has_calls(self) -> bool:
        """Whether any tensor was folded into the open step, graphs aside; waits for nothing."""
        return bool(self._calls().any())

    def _calls(self) -> Int64:
        """int64 [sites]: how many tensors were folded into the open step, graphs aside."""
        calls: Int64 = self.counters.first(len(self._placed), self.front)[0]
        return calls

    def is_captured(self) -> bool:
        """Whether work on one of the devices now becomes part of a graph, such as a CUDA graph."""
        # Only of devices that are in use: asking must not start any.
        return any(backend_of(device).is_capturing() for device in self.shelves)

    def discard_late(self) -> None:
        """Discard the tensors that graphs folded in while no step was recorded."""
        with self.lock:
            for shelf in self.shelves.values():
                shelf.graphs.discard()

    def swap(self, submit: Submit | None = None) -> Snapshot:
        """Close the open step and begin the next.

        submit: what `hand_on` gives the closed step to.

        A small step is copied out here at once. So is the step before, if it is still in the other
        buffer, unless that would wait for a device, or too many steps wait already.

        Raises:
            Stuck: that took `patience` seconds; the step is still open.
        """
        if os.getpid() != self._pid:
            # At the fork a flush thread, which this process does not have, had the other buffer.
            self._pid = os.getpid()
            self._back_is_free = Flag.already_set()
            self._ahead.clear()
        if not self._back_is_free.is_set():
            self._make_room()
        with self.lock:
            snapshot = self._close(lambda free: free is self._back_is_free)
            is_free = snapshot.is_free
            self._lent = weakref.ref(snapshot)
            self.closed += 1
            self._unsubmitted = None if submit is None else (snapshot, submit)
            # One statement, so that an interrupt finds the step open or closed.
            self._half.front, self._back_is_free = 1 - self.front, is_free
        if snapshot.is_small:
            self._read_ahead()  # while it is in the caches
        return snapshot

    def _close(self, is_lent: Callable[[Flag], bool]) -> Snapshot:
        """What is in the open step."""
        layout = Layout(self.infos(), self.places(), self.bins, self.channel_bins)
        return Snapshot(layout, self.counters, self.front, is_lent, self.small_bytes)

    def _make_room(self) -> None:
        """Copy the step before out of its buffer, or wait until that is done."""
        if self._reclaim() or self._read_ahead():
            return
        self.stalls += 1
        began = time.monotonic()
        if self._stuck_since is None:
            self._stuck_since = began
        seconds, free = 0, self._back_is_free
        self.while_waiting()
        while not (free.wait(_POLL_SECONDS) or self._reclaim() or self._read_ahead()):
            now = time.monotonic()
            if now > began + seconds + 1:
                seconds += 1
                self.while_waiting()
            if now > self._stuck_since + self.patience:
                raise Stuck
        self._stuck_since = None

    def _reclaim(self) -> bool:
        """Empty the other buffer if nobody has its step any more; whether it is free."""
        if self._lent() is None and not self._back_is_free.is_set():
            with self.lock:
                for extent in self.places().extents:
                    extent.shelf.clear(extent, 1 - self.front)
                self.counters.clear(len(self._placed), 1 - self.front)
                self._back_is_free.set()
        return self._back_is_free.is_set()

    def _read_ahead(self) -> bool:
        """Copy the step before out of its buffer; whether that was possible."""
        while self._ahead and self._ahead[0]() is None:
            self._ahead.popleft()
        snapshot = self._lent()
        if (
            snapshot is None
            or snapshot.waits
            or len(self._ahead) >= min(self._room_ahead, self.most_ahead)
        ):
            return False
        try:
            snapshot.take_out()
        except Exception:  # such as a full memory: the other thread tries again
            return False
        self._room_ahead = min(self.most_ahead, BYTES_AHEAD // max(1, snapshot.nbytes))
        self._ahead.append(weakref.ref(snapshot))
        return True

    def hand_over(self, submit: Submit, lose: Callable[[], None]) -> None:
        """Close the open step, as `swap` does, and have it read out by whom it is submitted to.

        After an interrupt the step is open still, or is submitted, perhaps twice.

        lose: called if nobody reads steps out, and this one is discarded.
        """
        self.hand_on()
        try:
            self.swap(submit)
            self.hand_on()
        except Stuck:
            self.discard()
            lose()
        except BaseException:
            with suppress(Exception):  # but no other interrupt, after which it is done later
                self.hand_on()
            self._unsubmitted = None
            raise

    def discard(self) -> None:
        """Close the open step, and forget what it has."""
        with self.lock:
            self._close(lambda free: False).clear()
        self.closed += 1

    def hand_on(self) -> None:
        """Submit the step that was closed, if an interrupt has kept it from that."""
        if self._unsubmitted is not None:
            snapshot, submit = self._unsubmitted
            if snapshot.is_free is self._back_is_free:  # else the step is still open
                submit(snapshot)
            self._unsubmitted = None


class Stuck(Exception):
    """Nobody has read steps out for `Arena.patience` seconds."""


class Accumulator:
    """The state of one site on one device."""

    __slots__ = ("_arena", "_calls", "_graph", "_index", "_marks", "_states", "_under_way")

    def __init__(
        self,
        arena: Arena,
        index: int,
        states: tuple[State, State],
        counters: Sequence[tuple[Int64, Int64]],
        marks: tuple[Tensor, Tensor] | None,
    ) -> None:
        """counters: the site's row of the arena's."""
        self._arena = arena
        self._index = index
        self._states = states
        self._calls, self._under_way = counters
        self._marks = marks
        self._graph: GraphState | None = None

    def fold(self, x: Tensor, channel_dim: int | None, mask: Tensor | None = None) -> None:
        """Fold the statistics of `x`, a detached tensor, into the open step, under the lock."""
        self.begin()
        try:
            update_(x, channel_dim, *self._states[self._arena.front], mask)
        except Exception:  # not after an interrupt: the tensor may be in the state then
            self.end(0)
            raise
        self.end(1)

    def bind(self, site: _hooks.Site, x: Tensor, channel_dim: int | None) -> None:
        """Have `site` fold in tensors like `x` without Python from now on."""
        calls = torch.from_numpy(self._calls[0]), torch.from_numpy(self._calls[1])
        site.bind(x, channel_dim, self._states, calls, self._marks)

    @property
    def states(self) -> tuple[State, State]:
        """The state by buffer, for external writers, who must `begin` first and `end` then."""
        return self._states

    def begin(self) -> None:
        """Note that an external writer is about to fold into the open step, under the lock.

        Without a note, what is folded in before an interrupt would leak into a later step.
        """
        self._under_way[self._arena.front][0] = 1

    def end(self, tensors: int) -> None:
        """Count the tensors that an external writer folded in: 0 if it was refused."""
        front = self._arena.front
        self._calls[front][0] += tensors
        self._under_way[front][0] = 0

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
        return self._arena.info(self._index)

    @info.setter
    def info(self, info: SiteInfo) -> None:
        self._arena.set_info(self._index, info)
