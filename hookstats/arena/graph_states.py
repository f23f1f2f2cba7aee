"""GraphSite and GraphState: what compiled graphs count and fold in; GraphStates: a device's."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from hookstats.records.sparse import Int64
from hookstats.stats.state import identity_moments, identity_tallies, merge_

State = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""What `update_` takes after x and channel_dim."""

FOLDED = "folded in"
AWAITED = "gradient awaited"
LATE = "step not recorded"
RECOMPUTED = "recomputation"
"""Outcomes of a GraphSite beside the reasons to skip a tensor. FOLDED includes LATE."""


class GraphSite:
    """What becomes of one site's tensors in compiled graphs, counted on their devices.

    A graph cannot count in Python. Each of its counters, int64 [], is a tensor that stays: the
    graph holds it, adds to it, and guards nothing.
    """

    def __init__(self) -> None:
        self._counters: dict[tuple[str, torch.device], Tensor] = {}

    def counter(self, outcome: str, device: torch.device) -> Tensor:
        """The counter of one outcome, for graphs on `device`."""
        key = outcome, device
        if key not in self._counters:
            with torch.inference_mode(False):
                self._counters[key] = torch.zeros((), dtype=torch.int64, device=device)
        return self._counters[key]

    def totals(self) -> Counter[str]:
        """By outcome, how many so far; waits for the devices."""
        totals: Counter[str] = Counter()
        for (outcome, _), counter in self._counters.items():
            totals[outcome] += int(counter)
        return totals


class GraphState:
    """The state of a site that compiled graphs change: tensors of its own.

    Views of one block, as the arena has them, would not do: AOTAutograd copies the whole block for
    each view that a graph changes.
    """

    def __init__(self, rows: tuple[State, State], site: GraphSite) -> None:
        """rows: the site's two in the arena."""
        moments, _, counts, bins, channel_counts, channel_bins = rows[0]
        self.rows = rows
        self.identity = identity_moments(len(moments), moments.device)
        self.state: State = (
            self.identity.clone(),
            identity_tallies(len(moments), moments.device),
            None if counts is None else torch.zeros_like(counts),
            bins,
            None if channel_counts is None else torch.zeros_like(channel_counts),
            channel_bins,
        )
        # The same memory, with version counters of its own: graphs may wait for their backward.
        self.memory = _alias(self.state)
        self.folded = site.counter(FOLDED, moments.device)
        self.late = site.counter(LATE, moments.device)


class GraphStates:
    """The states on one device. No method makes the host wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self.sites: list[int] = []
        """The arena's index of each."""
        self._states: list[GraphState] = []
        self._seen = torch.zeros(0, dtype=torch.int64, device=device)

    def add(self, site: int, rows: tuple[State, State], counts: GraphSite) -> GraphState:
        """The state of a site that has these rows in the arena, emptied by `collect` from now."""
        self.sites.append(site)
        self._states.append(GraphState(rows, counts))
        return self._states[-1]

    def folded(self) -> Tensor:
        """int64 [sites]: how many tensors were folded into each since it was emptied."""
        if not self._states:
            return self._seen
        ever = torch.stack([graph.folded for graph in self._states])
        return ever - pad(self._seen, (0, len(ever) - len(self._seen)))

    def collect(self, buffer: int, observed: Int64) -> Tensor:
        """Move every state into its row of the arena's `buffer`; return what `folded` said.

        observed: by the arena's index, how many tensors are in the row already.
        """
        into_empty: list[GraphState] = []
        for site, graph in zip(self.sites, self._states, strict=True):
            if observed[site]:
                _merge_into(graph.rows[buffer], graph.memory)
            else:
                into_empty.append(graph)
        # torch._foreach_* take no empty lists.
        for parts in (_moments, _integers) if into_empty else ():  # of one dtype each: one kernel
            torch._foreach_copy_(
                [row for graph in into_empty for row in parts(graph.rows[buffer])],
                [part for graph in into_empty for part in parts(graph.memory)],
            )
        return self._empty()

    def discard(self) -> None:
        """Empty the states; what was in them came too late."""
        late = self._empty()
        if self._states:
            torch._foreach_add_([graph.late for graph in self._states], list(late))

    def _empty(self) -> Tensor:
        new = self.folded()
        if not self._states:
            return new
        torch._foreach_copy_(
            [graph.memory[0] for graph in self._states], [graph.identity for graph in self._states]
        )
        torch._foreach_zero_([part for graph in self._states for part in _integers(graph.memory)])
        self._seen = pad(self._seen, (0, len(new) - len(self._seen))) + new
        return new


def _alias(state: State) -> State:
    moments, tallies, counts, bins, channel_counts, channel_bins = state
    return (
        moments.data,
        tallies.data,
        None if counts is None else counts.data,
        bins,
        None if channel_counts is None else channel_counts.data,
        channel_bins,
    )


def _moments(state: State) -> list[Tensor]:
    return [state[0]]


def _integers(state: State) -> list[Tensor]:
    _, tallies, counts, _, channel_counts, _ = state
    return [tensor for tensor in (tallies, counts, channel_counts) if tensor is not None]


def _merge_into(row: State, state: State) -> None:
    merge_(*row[:2], *state[:2])
    for mine, other in zip(_integers(row)[1:], _integers(state)[1:], strict=True):
        mine.add_(other)
