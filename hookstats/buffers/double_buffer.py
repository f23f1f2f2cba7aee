"""DoubleBuffer: the states of many sites; one buffer is filled while the other is drained."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hookstats.buffers.closed import ClosedStep
from hookstats.buffers.device import DeviceBuffer, Ranges, Rows, SiteRows, zeros
from hookstats.buffers.graph_states import ACCUMULATED, GraphSite, GraphState, outlast
from hookstats.buffers.lock import Guard, lock, whole
from hookstats.buffers.mask import CurrentMask
from hookstats.kernels import native
from hookstats.kernels.backends import backend_of, home
from hookstats.kernels.ops import entries, update_
from hookstats.kernels.sampling import Sampling
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Int64
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.stats.merge import offsets_of
from hookstats.stats.retries import Patience
from hookstats.stats.state import State

if TYPE_CHECKING:
    from hookstats import _hooks

PATIENCE = 10.0
"""The seconds that training waits for the recorder, before steps are lost."""

_POLL_SECONDS = 1e-3
_HOST = torch.device("cpu")


@dataclass(slots=True)
class _Placed:
    """A site's rows, with what records say of the site."""

    info: SiteInfo
    buffer: DeviceBuffer
    place: int
    """The number of sites that the device had before."""
    row: int
    """The number of their channels."""


class DoubleBuffer:
    """The states of all sites of a watch, on the devices of their tensors.

    Hooks accumulate into the front buffer while `recording` is true, in a block of `guard`, which
    holds `lock`. `close` ends a step. Only a site's first tensor on a device allocates memory.

    A step is atomic or absent: where an interrupt (Ctrl-C) or an error breaks into a block of
    `guard`, `close` discards the step.
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
        self.native: _hooks.DoubleBuffer | None = None
        """The half of the double buffer for the C++ hooks; None without C++ hooks."""
        if native.hooks is not None:
            self.native = native.hooks.DoubleBuffer(entries(native.hooks.PARAMS_SIZE))
        self.mask = CurrentMask(self.native)
        self.lock = lock() if self.native is None else whole(self.native, self.native.depth)
        """Held during an accumulation, which neither a close nor another thread may interrupt."""
        self.guard = Guard()
        """The block of whatever changes the open step, under the lock."""
        self._half: Any = self.native or SimpleNamespace(front=0, clock=0)
        self._placed: list[_Placed] = []
        self._infos: tuple[SiteInfo, ...] | None = None  # those of `_placed`, until one changes
        self._ranges: tuple[int, list[Ranges]] = 0, []  # with the number of sites
        # By site: the number of tensors that were accumulated, not counting graphs, and when the
        # first of them came, by a clock that ticks with the first tensor of a site in a step.
        self._calls = Rows([zeros(2, _HOST)], is_double=False)
        self._arrays: tuple[int, list[Int64]] = 0, []  # those of `_calls`, with the number of sites
        self.unread: list[str] = []
        """The parameters whose gradients came in the open step, and could not be read."""
        self.is_evaluation: Callable[[], bool] = lambda: False
        """Whether a module's call is one of an evaluation now, which is left out."""
        self.stalls = 0
        """The number of steps whose close waited for the recorder."""
        self.closed = 0
        """The number of steps that were closed."""
        self.while_waiting: Callable[[], object] = lambda: None
        """Called as a close begins to wait, and each second while it does."""
        self.has_room: Callable[[], bool] = lambda: True
        """Whether the recorder takes another step now."""
        self.devices: dict[torch.device, DeviceBuffer] = {}
        self._lent: ClosedStep | None = None
        """The step that was closed last, which may have the other buffer."""
        self.patience = PATIENCE
        """The seconds that a close waits before steps are lost."""
        self._left: Patience | None = None  # once a close waits, until a later one gets on

    def accumulator(self, info: SiteInfo, device: torch.device) -> Accumulator:
        """A new state of `info.channels` channels, for tensors on `device`."""
        device = home(device)
        with self.lock:
            if (buffer := self.devices.get(device)) is None:
                counting = self.bins, self.channel_bins, self.sampling.on(device)
                buffer = DeviceBuffer(device, *counting)
                self.devices[device] = buffer
            index, (place, row) = len(self._placed), self._end_of(buffer)
            rows = buffer.rows(place, row, info.channels)
            blocks, call = self._calls.after(index, 1)
            made = Accumulator(self, index, rows, blocks[0][0], call)
            self._placed.append(_Placed(info, buffer, place, row))  # from now on there is the site
            return made

    def _end_of(self, buffer: DeviceBuffer) -> tuple[int, int]:
        for last in reversed(self._placed):
            if last.buffer is buffer:
                return last.place + 1, last.row + last.info.channels
        return 0, 0

    def info(self, site: int) -> SiteInfo:
        return self._placed[site].info

    def set_info(self, site: int, info: SiteInfo) -> None:
        self._infos = None
        self._placed[site].info = info

    def infos(self) -> tuple[SiteInfo, ...]:
        """What records say of all sites now."""
        if self._infos is None or len(self._infos) != len(self._placed):
            self._infos = tuple([placed.info for placed in self._placed])
        return self._infos

    def ranges(self) -> list[Ranges]:
        """The rows of all sites, by device."""
        known, ranges = self._ranges
        if known != len(self._placed):
            channels = np.array([placed.info.channels for placed in self._placed], np.int64)
            buffers = [placed.buffer for placed in self._placed]
            ranges = []
            for buffer in self.devices.values():
                sites = np.array([i for i, one in enumerate(buffers) if one is buffer], np.int64)
                if len(sites):
                    offsets = torch.from_numpy(offsets_of(channels[sites]))
                    ranges.append(Ranges(buffer, sites, offsets, int(offsets[-1])))
            self._ranges = len(buffers), ranges
        return ranges

    def native_site(self, site: object) -> _hooks.Site | None:
        """The C++ half of `site`, a Site; None without C++ hooks."""
        if self.native is None or native.hooks is None:
            return None
        half: _hooks.Site = native.hooks.Site(self.native, site)
        return half

    def native_parameters(self) -> _hooks.Parameters | None:
        if self.native is None or native.hooks is None:
            return None
        parameters: _hooks.Parameters = native.hooks.Parameters(self.native)
        return parameters

    @property
    def front(self) -> int:
        """The buffer that hooks fill."""
        return int(self._half.front)

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

    def is_observing(self) -> bool:
        """Whether hooks observe a module's call now, of training or of a phase."""
        if not self.recording or self.phase < 0 or self.is_captured():
            return False
        return self.phase > 0 or not self.is_evaluation()

    def seconds(self) -> float | None:
        """How long threads have held the lock so far: what hooks cost the training. None without
        C++ hooks, as Python's locks cannot tell."""
        return None if self.native is None else self.native.seconds

    def pending(self) -> int:
        """How many tensors were accumulated into the open step; waits for the devices."""
        graphs = [
            int(s.graphs.accumulated().sum()) for s in self.devices.values() if s.graphs.sites
        ]
        return int(self._calls_and_order()[:, 0].sum()) + sum(graphs)

    def has_content(self) -> bool:
        """Whether the open step has anything to record or to discard; waits for the devices."""
        return self.guard.is_broken or self.pending() > 0

    def has_calls(self) -> bool:
        """Whether hooks accumulated any tensor into the open step; waits for nothing."""
        return int(self._half.clock) > 0

    def tick(self) -> int:
        """When the first tensor of a site comes in the open step; called under the lock."""
        self._half.clock += 1
        return int(self._half.clock)

    def _calls_and_order(self) -> Int64:
        """int64 [sites, 2]: how many tensors were accumulated into the open step, graphs aside, and
        when the first of them came; 0 without any."""
        return np.concatenate([_NO_CALLS, *self._call_arrays()])

    def _forget_calls(self) -> None:
        for array in self._call_arrays():
            array.fill(0)
        self._half.clock = 0

    def _call_arrays(self) -> list[Int64]:
        """The blocks of `_calls` in use."""
        known, arrays = self._arrays
        if known != len(self._placed):
            (blocks,) = self._calls.first(len(self._placed), 0)
            arrays = [block.numpy() for block in blocks]
            self._arrays = len(self._placed), arrays
        return arrays

    def is_captured(self) -> bool:
        """Whether work on one of the devices now becomes part of a graph, such as a CUDA graph."""
        # Only of devices that are in use: asking must not start any.
        for device in tuple(self.devices):  # noqa: SIM110 - each step asks, `any` takes longer
            if backend_of(device).is_capturing():
                return True
        return False

    def discard_late(self) -> None:
        """Discard the tensors that graphs accumulated while no step was recorded."""
        with self.lock:
            for buffer in self.devices.values():
                buffer.graphs.discard()

    def close(self) -> ClosedStep | None:
        """Close the open step and begin the next; None if the step is broken, and discarded.

        The host's part is drained here, in one call without the GIL. Where devices have parts, this
        waits until the step before is drained from them; it also waits until the recorder has room.

        Raises:
            Stuck: that took `patience` seconds; the step is still open.
        """
        self._make_room()
        with self.lock:
            if self.guard.is_broken:
                self._clear()
                return None
            with self.guard:
                return self._close()

    def _close(self) -> ClosedStep:
        counted, order = self._calls_and_order().T
        parts = [r.buffer.close(self.front, r, counted) for r in self.ranges()]
        unread, self.unread = tuple(self.unread), []
        closed = ClosedStep(self.infos(), parts, order, unread, self.bins, self.channel_bins)
        self._forget_calls()
        closed.drain_host()
        self._lent = None if closed.is_free else closed
        self._half.front = 1 - self.front
        self.closed += 1
        return closed

    def discard(self, *, lent: bool = False) -> None:
        """Close the open step, and forget what it has.

        lent: whether the step that was closed last is given up, too, if it is not drained.
        """
        if lent and self._lent is not None:
            self._lent.release()
        with self.lock:
            self._clear()

    def _clear(self) -> None:
        for ranges in self.ranges():
            ranges.buffer.graphs.empty()
            ranges.buffer.clear(ranges, self.front)
        self._forget_calls()
        self.unread = []
        self.closed += 1
        self.guard.mend()

    def _make_room(self) -> None:
        """Wait until the other buffer is free, and the recorder takes another step."""
        if self._is_free() and self.has_room():
            self._left = None
            return
        self.stalls += 1
        self._left = self._left or Patience(self.patience)
        told = -math.inf
        while not (self._is_free() and self.has_room()):
            if time.monotonic() > told + 1:
                told = time.monotonic()
                self.while_waiting()
            time.sleep(_POLL_SECONDS)
            if self._left.is_over():
                raise Stuck
        self._left = None

    def _is_free(self) -> bool:
        """Whether nobody drains the other buffer."""
        return self._lent is None or self._lent.is_free


_NO_CALLS = np.zeros((0, 2), np.int64)


class Stuck(Exception):
    """The recorder has not taken a step for `DoubleBuffer.patience` seconds."""


class Accumulator:
    """The state of one site on one device."""

    outcome: str | None = None
    """What becomes of a tensor that is accumulated."""
    __slots__ = ("_buffers", "_call", "_calls", "_count", "_graph", "_index", "_rows", "_states")

    def __init__(
        self,
        buffers: DoubleBuffer,
        index: int,
        rows: SiteRows,
        calls: Tensor,
        call: int,
    ) -> None:
        """calls: int64 [N, 2], whose row `call` has the site's count of tensors, and when the first
        one came."""
        self._buffers = buffers
        self._index = index
        self._rows = rows
        self._calls = calls
        self._call = call
        # Views, which take long to make, and which C++ hooks do without.
        self._states: tuple[State, State] | None = None
        self._count: Int64 | None = None
        self._graph: GraphState | None = None

    def accumulate(self, x: Tensor, channel_dim: int | None, mask: Tensor | None = None) -> None:
        """Accumulate the statistics of `x`, a detached tensor, into the open step, in a block of
        `DoubleBuffer.guard`. A call that raises changes no state."""
        update_(x, channel_dim, *self.states[self._buffers.front], mask)
        self.count()

    def set_plan(self, site: _hooks.Site, x: Tensor, channel_dim: int | None) -> None:
        """Have `site` accumulate tensors like `x` without Python from now on."""
        states, occupancy, channel, _, tensor = self._rows
        rows = channel, tensor, self._call
        site.set_plan(x, channel_dim, states, (self._calls, self._calls), occupancy, rows)

    @property
    def states(self) -> tuple[State, State]:
        """The state by buffer. External writers use it in a block of `guard`, and `count`."""
        if self._states is None:
            with torch.inference_mode(False):
                self._states = self._rows.views()
        return self._states

    def count(self) -> None:
        if self._count is None:
            self._count = self._calls[self._call].numpy()
        if not self._count[0]:
            self._count[1] = self._buffers.tick()
        self._count[0] += 1

    def graph_state(self, site: GraphSite) -> GraphState:
        """The state that compiled graphs accumulate into; made at the first call."""
        if self._graph is None:
            rows = self.states
            device = rows[0].moments.device
            with torch.inference_mode(False):
                sampling = self._buffers.sampling.of_graphs(device)
                graphs = self._buffers.devices[device].graphs
                self._graph = graphs.add(self._index, rows, site, sampling)
        return self._graph

    def captured(self, site: GraphSite, outcome: str = ACCUMULATED) -> GraphState:
        """The same, with the counter of an outcome, for a graph that is being captured."""

        def make() -> GraphState:
            site.counter(outcome, device)
            return self.graph_state(site)

        device = self._rows.states[0].moments.device
        graph = self._buffers.devices[device].outside_captures(make)
        outlast(graph, site)
        return graph

    def is_traced(self) -> bool:
        return self._graph is not None

    @property
    def info(self) -> SiteInfo:
        return self._buffers.info(self._index)

    @info.setter
    def info(self, info: SiteInfo) -> None:
        self._buffers.set_info(self._index, info)
