"""History: what the rules know about the steps so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import Key, parse_kind
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.rules.past_inputs import PastInputs
from hookstats.rules.setup import Setup
from hookstats.rules.sums import Sums
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import columns_of, dead, rms

WINDOW = 32
"""How many earlier values of the rms are kept per tensor."""

SCALARS = 64
"""How many values are kept per scalar."""


class History:
    """A few numbers per tensor and per channel, from the last steps that observed them.

    After `push`, every array is in the order of the pushed record's S sites and R rows. A tensor
    that a step did not observe keeps its numbers. Arrays are shared: read them, never write to
    them.
    """

    def __init__(self, setup: Setup | None = None) -> None:
        self.setup = setup
        """What the training run began with; None if that is not known."""
        self.pushed = 0
        """How many steps were pushed, with this one."""
        self.unclosed = 0
        """How many iterations, of those whose scalars are checked, closed no step in a row: more
        than in any step before. 0 where scalars are those of a closed step."""
        self.classes: int | None = None
        """The number of channels of the last output in execution order: the classes that a
        classifier tells apart; None before there is one."""
        self.last_output: int | None = None
        """The site of that output."""
        self.last_gradient: int | None = None
        """The site of its gradient."""
        self.outputs_of: dict[str, list[int]] = {}
        """The sites of outputs by the type of their module, where the setup knows it."""
        self.sums = Sums()
        """The gradients of biases, and what they should be."""
        self.scalars: Mapping[str, list[float]] = defaultdict(list)
        """The values of each scalar so far, newest last, `SCALARS` at most."""
        self.inputs = PastInputs()
        """What the inputs of the model were in the steps before."""
        self.calls: Float64 = np.empty(0)
        """float64 [S]: calls merged into each site in this step, by their mean in the steps before;
        NaN in the first step of a site."""
        self.tensors: ChannelStats
        """The statistics of whole tensors in this step: its "channels" are the sites; no hist."""
        self.columns: Callable[[str], Float64]
        """The columns of the state of whole tensors, [S] each; see `stats.derived`."""
        self.plain_kinds: tuple[str, ...]
        """The plain kind of each site."""
        self.gradient: NDArray[np.bool_]
        """bool [S]: which sites are gradients."""
        self.nonfinite: NDArray[np.bool_]
        """bool [S]: which sites have non-finite values in this step."""
        self.nonfinite_steps = 0
        """In how many steps in a row, with this one, any site had."""
        self.rms: Float64
        """float64 [S]: the rms of the finite values in this step; NaN without any."""
        self.past_rms: Float64
        """float64 [S, WINDOW]: the rms in the steps before, oldest first; NaN without a step."""
        self.dead: NDArray[np.bool_]
        """bool [R]: whether each channel is dead in this step, see `insight.dead`."""
        self.dead_steps: Int64
        """int64 [R]: for how many steps in a row each channel has been dead, including this one."""
        self.dead_values: Int64
        """int64 [R]: how many zeros the channel had in these steps."""
        self._known: dict[Key, int] = {}
        self._first_rows: dict[tuple[str, str, int], int] = {}  # by site and number of channels
        self._keys: set[Key] = set()
        self._sites: tuple[SiteInfo, ...] | None = None
        self._at: NDArray[np.intp]  # where the record's sites and rows are in what follows
        self._rows: NDArray[np.intp]
        self._all_rms = np.empty((0, WINDOW))
        self._all_dead_steps = np.zeros(0, np.int64)
        self._all_dead_values = np.zeros(0, np.int64)
        self._all_seen = np.zeros(0, np.int64)  # in how many steps, and when last
        self._all_last = np.zeros(0, np.int64)
        self._all_calls = np.zeros(0, np.int64)

    def push_scalars(self, values: Mapping[str, float]) -> None:
        """Add the scalars of a step."""
        for name, value in values.items():
            past = self.scalars[name]
            past.append(value)
            del past[:-SCALARS]

    def gone(self, kind: str, steps: int, after: int) -> list[str]:
        """The tensors of a kind that were in every step, `after` or more, and in none of the last
        `steps`, as of this one: their names."""
        if self.pushed < steps + after:
            return []
        gone = (self._all_last == self.pushed - steps) & (self._all_seen == self._all_last)
        names = list(self._known) if gone.any() else []
        return [names[i][0] for i in np.flatnonzero(gone).tolist() if names[i][1] == kind]

    def knows(self, key: Key) -> bool:
        """Whether a tensor was in any step so far."""
        return key in self._keys

    def push(self, record: StepRecord) -> None:
        """Add a step."""
        if record.sites != self._sites:
            self._place(record)
        self.pushed += 1
        with np.errstate(invalid="ignore", divide="ignore"):
            self.calls = record.observed * self._all_seen[self._at] / self._all_calls[self._at]
        self._all_seen[self._at] += 1
        self._all_last[self._at] = self.pushed
        self._all_calls[self._at] += record.observed
        self.tensors = record.whole
        whole = self.tensors.moments.numpy(), self.tensors.tallies.numpy()
        self.columns = columns_of(*whole)
        bad = (self.columns(name) for name in ("nan", "posinf", "neginf"))
        self.nonfinite = np.add.reduce(list(bad)) > 0
        self.nonfinite_steps = self.nonfinite_steps + 1 if self.nonfinite.any() else 0
        self.rms = rms(self.columns)
        self.past_rms = self._all_rms[self._at]
        seen = ~np.isnan(self.rms)
        moved = np.column_stack((self.past_rms[seen, 1:], self.rms[seen]))
        self._all_rms[self._at[seen]] = moved

        columns = columns_of(record.moments, record.tallies)
        self.dead = dead(columns)
        alive = ~self.dead & (columns("count") > 0)  # without finite values nothing is known
        steps, values = self._all_dead_steps[self._rows], self._all_dead_values[self._rows]
        self.dead_steps = np.where(alive, 0, steps + self.dead)
        self.dead_values = np.where(alive, 0, values + columns("count"))
        self._all_dead_steps[self._rows] = self.dead_steps
        self._all_dead_values[self._rows] = self.dead_values
        self.inputs.push(record)
        self.sums.push(record)

    def _place(self, record: StepRecord) -> None:
        """Find where the sites of `record` are, and make room for those that are new."""
        self._sites = record.sites
        self._keys.update((site.name, site.kind) for site in record.sites)
        kinds = [parse_kind(site.kind) for site in record.sites]
        self.plain_kinds = tuple([kind.plain for kind in kinds])
        self.gradient = np.array([kind.is_gradient for kind in kinds], bool)
        outputs = [i for i, kind in enumerate(kinds) if kind.plain == "output"]
        self.last_output = outputs[-1] if outputs else None
        self.classes = record.sites[outputs[-1]].channels if outputs else None
        self.last_gradient = None
        if outputs:
            last = record.sites[outputs[-1]]
            key = last.name, parse_kind(last.kind).gradient
            keys = [(site.name, site.kind) for site in record.sites]
            self.last_gradient = keys.index(key) if key in keys else None
        types: Mapping[str, str] = {} if self.setup is None else self.setup.modules
        self.outputs_of = {}
        for i in outputs:
            self.outputs_of.setdefault(types.get(record.sites[i].name, ""), []).append(i)
        self.sums.place(record, types)
        at, rows = [], [np.empty(0, np.intp)]
        sites, width = len(self._all_rms), len(self._all_dead_steps)
        for site in record.sites:
            index = self._known.setdefault((site.name, site.kind), sites)
            sites = max(sites, index + 1)
            row = self._first_rows.setdefault((site.name, site.kind, site.channels), width)
            width = max(width, row + site.channels)
            at.append(index)
            rows.append(np.arange(row, row + site.channels))
        self._at, self._rows = np.array(at, np.intp), np.concatenate(rows)
        more = np.zeros(sites - len(self._all_rms), np.int64)
        self._all_seen, self._all_last, self._all_calls = (
            np.concatenate((known, more))
            for known in (self._all_seen, self._all_last, self._all_calls)
        )
        new = np.full((sites - len(self._all_rms), WINDOW), np.nan)
        self._all_rms = np.concatenate((self._all_rms, new))
        none = np.zeros(width - len(self._all_dead_steps), np.int64)
        self._all_dead_steps = np.concatenate((self._all_dead_steps, none))
        self._all_dead_values = np.concatenate((self._all_dead_values, none))
