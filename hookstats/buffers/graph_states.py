"""The counters and states that compiled graphs fill: of a site, and of all sites on a device."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from hookstats._torch import foreach_add_, foreach_copy_, foreach_zero_
from hookstats.kernels.ops import update_
from hookstats.records.reasons import GRAPH_CAPTURE, NOT_RECORDED
from hookstats.records.sparse import Int64
from hookstats.stats.reference import merge_
from hookstats.stats.state import State, identity_moments, identity_tallies

ACCUMULATED = "accumulated"
AWAITED = "gradient awaited"
"""Outcomes of a GraphSite beside reasons to skip a tensor. ACCUMULATED includes NOT_RECORDED."""


class GraphSite:
    """Counts on the devices what becomes of one site's tensors in compiled graphs.

    A graph cannot count in Python. Each counter, int64 [], is a tensor that lasts: the graph holds
    the counter, adds to it, and guards nothing.
    """

    def __init__(self) -> None:
        self._counters: dict[tuple[str, torch.device], Tensor] = {}

    def counter(self, outcome: str, device: torch.device) -> Tensor:
        """The counter of an outcome, for graphs on `device`."""
        if device.type == "meta":  # where nothing is counted
            device = torch.device("cpu")
        key = outcome, device
        if key not in self._counters:
            with torch.inference_mode(False):
                self._counters[key] = torch.zeros((), dtype=torch.int64, device=device)
        return self._counters[key]

    def totals(self) -> Counter[str]:
        """The number of tensors so far, by outcome; waits for the devices."""
        totals: Counter[str] = Counter()
        for (outcome, _), counter in self._counters.items():
            totals[outcome] += int(counter)
        return totals


class GraphState:
    """The state of one site that graphs change, in separate tensors.

    The double buffer's rows would not do, as they are views of one block: AOTAutograd copies the
    whole block for each view that a graph changes. And a graph that is captured by hand fills what
    it was captured with, in each step.
    """

    outcome = GRAPH_CAPTURE
    """What becomes of a tensor that is accumulated while a graph is captured: its replays count."""

    def __init__(self, rows: tuple[State, State], site: GraphSite, sampling: Tensor) -> None:
        """rows: the site's rows in the double buffer, by buffer.
        sampling: `Sampling.of_graphs`, by which operators know which steps are recorded."""
        row = rows[0]
        channels, device = len(row.moments), row.moments.device
        self.rows = rows
        self.identity = identity_moments(channels, device)
        self.state = row._replace(
            moments=self.identity.clone(),
            tallies=identity_tallies(channels, device),
            counts=None if row.counts is None else torch.zeros_like(row.counts),
            channel_counts=(
                None if row.channel_counts is None else torch.zeros_like(row.channel_counts)
            ),
            sampling=sampling,
        )
        # The same memory with separate version counters: graphs may still wait for their backward.
        self.memory = _alias(self.state)
        self.accumulated = site.counter(ACCUMULATED, device)
        self.late = site.counter(NOT_RECORDED, device)

    def accumulate(self, x: Tensor, channel_dim: int | None, mask: Tensor | None = None) -> None:
        """Have each replay of the graph that is captured accumulate `x`, detached, and count it."""
        update_(x, channel_dim, *self.memory, mask)
        self.count()

    def count(self) -> None:
        self.accumulated.data.add_(1)

    @property
    def states(self) -> tuple[State, State]:
        """The state by buffer: graphs fill one, whichever is in front."""
        return self.memory, self.memory


_lasting: dict[tuple[GraphSite, torch.device], State] = {}


def outlast(state: GraphState, site: GraphSite) -> None:
    """Keep the memory of a state and a site's counters for good: nothing tells how long a graph
    that was captured by hand may be replayed."""
    _lasting[site, state.memory.moments.device] = state.memory


@lru_cache(64)
def _apart(descriptor: Tensor) -> Tensor:
    return descriptor.clone()


def of_backward(state: State) -> State:
    """The state as a backward graph takes it: with bins that no forward graph takes as well.

    What both take is saved by the forward, and inductor's CUDA graphs end a training in which a
    forward that they replay saves a tensor of the CPU, as the descriptor of log bins is.
    """
    if state.bins is None or state.bins.device == state.moments.device:
        return state
    return state._replace(bins=_apart(state.bins))


class GraphStates:
    """The states of all traced sites on one device. No method waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._states: dict[int, GraphState] = {}  # by the index in the double buffer of the site
        self._seen = torch.zeros(0, dtype=torch.int64, device=device)

    def add(
        self, site: int, rows: tuple[State, State], counts: GraphSite, sampling: Tensor
    ) -> GraphState:
        """Make the state of the site with these rows of the double buffer; `collect` empties it."""
        state = self._states[site] = GraphState(rows, counts, sampling)
        return state

    @property
    def sites(self) -> list[int]:
        """The index in the double buffer of each site."""
        return list(self._states)

    def accumulated(self) -> Tensor:
        """int64 [sites]: the number of tensors accumulated into each state since it was emptied."""
        if not self._states:
            return self._seen
        ever = torch.stack([graph.accumulated for graph in self._states.values()])
        return ever - pad(self._seen, (0, len(ever) - len(self._seen)))

    def collect(self, buffer: int, observed: Int64) -> Tensor:
        """Move every state into its row of `buffer`; return what `accumulated` gave.

        observed: by index in the double buffer, the number of tensors that are in the row already.
        """
        if not self._states:
            return self._seen
        into_empty: list[GraphState] = []
        for site, graph in self._states.items():
            if observed[site]:
                _merge_into(graph.rows[buffer], graph.memory)
            else:
                into_empty.append(graph)
        # The foreach operators take no empty lists, and run one kernel for tensors of one dtype.
        for parts in (_moments, _integers) if into_empty else ():
            foreach_copy_(
                [row for graph in into_empty for row in parts(graph.rows[buffer])],
                [part for graph in into_empty for part in parts(graph.memory)],
            )
        return self.empty()

    def discard(self) -> None:
        """Empty the states, whose tensors came too late, and count them as that."""
        if self._states:
            late = self.empty()
            foreach_add_([graph.late for graph in self._states.values()], list(late))

    def empty(self) -> Tensor:
        """Empty the states; return what `accumulated` gave."""
        if not self._states:
            return self._seen
        new = self.accumulated()
        foreach_copy_(
            [graph.memory.moments for graph in self._states.values()],
            [graph.identity for graph in self._states.values()],
        )
        foreach_zero_([part for graph in self._states.values() for part in _integers(graph.memory)])
        self._seen = pad(self._seen, (0, len(new) - len(self._seen))) + new
        return new


def _alias(state: State) -> State:
    return state._replace(
        moments=state.moments.data,
        tallies=state.tallies.data,
        counts=None if state.counts is None else state.counts.data,
        channel_counts=None if state.channel_counts is None else state.channel_counts.data,
    )


def _moments(state: State) -> list[Tensor]:
    return [state.moments]


def _histograms(state: State) -> list[Tensor]:
    return [counts for counts in (state.counts, state.channel_counts) if counts is not None]


def _integers(state: State) -> list[Tensor]:
    return [state.tallies, *_histograms(state)]


def _merge_into(row: State, state: State) -> None:
    merge_(row.moments, row.tallies, state.moments, state.tallies)
    for mine, other in zip(_histograms(row), _histograms(state), strict=True):
        mine.add_(other)
