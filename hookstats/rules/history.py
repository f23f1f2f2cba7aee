"""History: what the rules know about the steps so far."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hookstats.records.keys import Key, parse_kind
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.rules.past_inputs import PastInputs, SeenInputs
from hookstats.rules.setup import Setup
from hookstats.rules.steps import Flags, Lasting, Sites, Steps, in_steps
from hookstats.rules.sums import Sums
from hookstats.rules.windows import Windows
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import columns_of

WINDOW = 32
"""How many earlier values of the rms are kept per tensor."""

SCALARS = 64
"""How many values are kept per scalar."""


class History:
    """A few numbers per tensor and per channel, from the last steps that observed them.

    After `push`, every array is in the order of the pushed record's S sites and R rows. A tensor
    that a step did not observe keeps its numbers. Arrays are shared, and the next step may go into
    the same memory: read them, never write to them, and keep copies.
    """

    def __init__(self, setup: Setup | None = None) -> None:
        self.setup = setup
        """What the training run began with; None if that is not known."""
        self.pushed = 0
        """How many steps were pushed, with this one."""
        self.unclosed = 0
        """How many iterations, of those whose scalars are checked, closed no step in a row, each of
        as many micro-batches as any step had. 0 where scalars are those of a closed step."""
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
        self.greatest: dict[str, float] = defaultdict(lambda: -math.inf)
        """The greatest value of each scalar before the newest one."""
        self._steps: Steps
        self._step = 0  # the one in question, among these
        self._pushed = 0  # how many steps there were in all
        self._sites = Sites(())
        self._nonfinite_steps = 0
        self._inputs = PastInputs()
        self._known: dict[Key, int] = {}
        self._first_rows: dict[tuple[str, str, int], int] = {}  # by site and number of channels
        self._width = 0  # the rows that all of these take
        self._keys: set[Key] = set()
        self._at = np.zeros(0, np.intp)  # where the records' sites and rows are in what follows
        self._rows = np.zeros(0, np.intp)
        self._rows_in_order = True  # whether they are all of the first
        self._all_rms = np.empty((0, WINDOW))
        self._all_dead_steps = np.zeros(0, np.int64)
        self._all_dead_values = np.zeros(0, np.int64)
        self._all_seen = np.zeros(0, np.int64)  # in how many steps, and when last
        self._all_last = np.zeros(0, np.int64)
        self._all_calls = np.zeros(0, np.int64)

    @property
    def inputs(self) -> SeenInputs:
        """What the inputs of the model were in this step, and before."""
        return self._steps.inputs[self._step]

    @property
    def calls(self) -> Float64:
        """float64 [S]: calls merged into each site in this step, by their mean in the steps before;
        NaN in the first step of a site."""
        calls: Float64 = self._steps.calls[self._step]
        return calls

    @property
    def samples(self) -> float:
        """How many samples the last output has classes of in this step; infinite where it has other
        dimensions, too, such as tokens, or where there is none."""
        site = self.last_output
        if site is None or not self.classes or len(self._sites.sites[site].shape) != 2:
            return math.inf
        return float(self.columns("count")[site]) / self.classes

    @property
    def tensors(self) -> ChannelStats:
        """The statistics of whole tensors in this step: its "channels" are the sites; no hist."""
        return self._steps.records[self._step].whole

    @property
    def columns(self) -> Callable[[str], Float64]:
        """The columns of the state of whole tensors, [S] each; see `stats.derived`."""
        return columns_of(self._steps.moments[self._step], self._steps.tallies[self._step])

    @property
    def sites(self) -> Sites:
        """The sites of this step, with what follows from them."""
        return self._sites

    @property
    def plain_kinds(self) -> tuple[str, ...]:
        """The plain kind of each site."""
        return self._sites.plain_kinds

    @property
    def gradient(self) -> Flags:
        """bool [S]: which sites are gradients."""
        return self._sites.gradient

    @property
    def nonfinite(self) -> Flags:
        """bool [S]: which sites have non-finite values in this step."""
        found: Flags = self._steps.nonfinite[self._step]
        return found

    @property
    def nonfinite_steps(self) -> int:
        """In how many steps in a row, with this one, any site had."""
        return self._steps.nonfinite_steps[self._step]

    @property
    def rms(self) -> Float64:
        """float64 [S]: the rms of the finite values in this step; NaN without any."""
        out: Float64 = self._steps.rms[self._step]
        return out

    @property
    def past_rms(self) -> Float64:
        """float64 [S, WINDOW]: the rms in the steps before, oldest first; NaN without a step."""
        return self._steps.past.before(self._step)

    @property
    def dead(self) -> Flags:
        """bool [R]: whether each channel is dead in this step, see `insight.dead`."""
        found: Flags = self._steps.dead[self._step]
        return found

    @property
    def dead_steps(self) -> Int64:
        """int64 [R]: for how many steps in a row each channel has been dead, with this one."""
        return self._of_all_rows(self._steps.lasting.steps)

    @property
    def dead_values(self) -> Int64:
        """int64 [R]: how many zeros the channel had in these steps."""
        return self._of_all_rows(self._steps.lasting.values)

    def _of_all_rows(self, lasting: Int64) -> Int64:
        out = np.zeros(len(self._rows), np.int64)
        out[self._steps.lasting.rows] = lasting[self._step]
        return out

    def push_scalars(self, values: Mapping[str, float]) -> None:
        """Add the scalars of a step."""
        for name, value in values.items():
            past = self.scalars[name]
            if past:
                self.greatest[name] = max(self.greatest[name], past[-1])
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
        self.extend([record])
        self.show(0)

    def show(self, step: int) -> None:
        """Have the attributes be those of one of the steps that were added last, by its place."""
        self._step = step
        self.sums.show(step)
        self.pushed = int(self._steps.pushed[step])

    def extend(self, records: Sequence[StepRecord]) -> Steps:
        """Add steps that have the same sites; `show` says for which the attributes are."""
        if records[0].sites != self._sites.sites:
            try:
                self._place(records[0])
            except BaseException:  # such as a full memory: the sites are placed again
                self._sites = Sites(())
                raise
        steps = self._steps = Steps(records, self._sites)
        steps.complete = len(self._at) == len(self._all_seen)
        with np.errstate(invalid="ignore", divide="ignore"):
            self._add_calls(steps)
        self._add_rms(steps)
        self._add_dead(steps)
        steps.nonfinite_steps = []
        for has_any in in_steps(steps.nonfinite).tolist():
            self._nonfinite_steps = self._nonfinite_steps + 1 if has_any else 0
            steps.nonfinite_steps.append(self._nonfinite_steps)
        steps.inputs = self._inputs.push(records, self._sites.kinds, steps.channels)
        self.sums.extend(steps.channels)
        steps.sums, steps.outputs_of = self.sums, self.outputs_of
        steps.last_output, steps.last_gradient = self.last_output, self.last_gradient
        return steps

    def _add_calls(self, steps: Steps) -> None:
        at, number = self._at, len(steps)
        before, self._pushed = self._pushed, self._pushed + number
        steps.pushed = np.arange(before + 1, self._pushed + 1)
        calls = np.array([record.observed for record in steps.records])
        sums = np.cumsum(np.concatenate((self._all_calls[None, at], calls)), 0)
        steps.calls = calls * (self._all_seen[at] + np.arange(number)[:, None]) / sums[:-1]
        self._all_seen[at] += number
        self._all_last[at] = self._pushed
        self._all_calls[at] = sums[-1]

    def _add_rms(self, steps: Steps) -> None:
        steps.past = Windows(self._all_rms[self._at], steps.rms)
        self._all_rms[self._at] = steps.past.before(len(steps))

    def _add_dead(self, steps: Steps) -> None:
        counts = [columns("count") for columns in steps.channels]
        # Of channels without finite values nothing is known.
        lasting = np.array([columns("zero") == columns("count") for columns in steps.channels])
        in_order = self._rows_in_order
        rows: Int64 | slice = slice(0, len(self._rows)) if in_order else self._rows
        # All others are alive, and were.
        found = np.flatnonzero(lasting.any(0) | (self._all_dead_steps[rows] > 0))
        some: Int64 | slice = found
        at: Int64 | slice = found if in_order else self._rows[found]
        if in_order and len(found) > len(self._rows) // 8:  # cheaper than to pick them
            some = at = rows
        streak, values = self._all_dead_steps[at], self._all_dead_values[at]
        # A step that comes alone may be large: nothing is copied.
        alone = isinstance(at, slice) and len(steps) == 1
        shape = len(steps), len(streak)
        steps.lasting = Lasting(
            some,
            streak[None] if alone else np.empty(shape, np.int64),
            values[None] if alone else np.empty(shape, np.int64),
        )
        for i in range(len(steps)):
            lasts = lasting[i, some]
            for total, added, of in (
                (streak, steps.dead, steps.lasting.steps),
                (values, counts, steps.lasting.values),
            ):
                total += added[i][some]
                # Where a third are alive, an eighth of the time of setting these to zero.
                total *= lasts
                if not alone:
                    of[i] = total
        if not isinstance(at, slice):  # else these are its own
            self._all_dead_steps[at], self._all_dead_values[at] = streak, values

    def _place(self, record: StepRecord) -> None:
        """Find where the sites of `record` are, and make room for those that are new."""
        self._sites = Sites(record.sites)
        self._keys.update((site.name, site.kind) for site in record.sites)
        outputs = np.flatnonzero(self._sites.of_kind("output"))
        self.classes = None
        self.last_output = int(outputs[-1]) if len(outputs) else None
        self.last_gradient = None
        if len(outputs):
            last = record.sites[outputs[-1]]
            self.classes = last.merged or last.channels
            key = last.name, parse_kind(last.kind).gradient
            keys = [(site.name, site.kind) for site in record.sites]
            self.last_gradient = keys.index(key) if key in keys else None
        types: Mapping[str, str] = {} if self.setup is None else self.setup.modules
        self.outputs_of = {}
        for i in outputs.tolist():
            self.outputs_of.setdefault(types.get(record.sites[i].name, ""), []).append(i)
        self.sums.place(record, types)
        at, rows = [], [np.empty(0, np.intp)]
        for site in record.sites:
            at.append(self._known.setdefault((site.name, site.kind), len(self._known)))
            place = site.name, site.kind, site.channels
            row = self._first_rows.setdefault(place, self._width)
            self._width = max(self._width, row + site.channels)
            rows.append(np.arange(row, row + site.channels))
        self._at, self._rows = np.array(at, np.intp), np.concatenate(rows)
        self._rows_in_order = bool((self._rows == np.arange(len(self._rows))).all())
        more = np.zeros(len(self._known) - len(self._all_rms), np.int64)
        self._all_seen, self._all_last, self._all_calls = (
            np.concatenate((known, more))
            for known in (self._all_seen, self._all_last, self._all_calls)
        )
        new = np.full((len(more), WINDOW), np.nan)
        self._all_rms = np.concatenate((self._all_rms, new))
        none = np.zeros(self._width - len(self._all_dead_steps), np.int64)
        self._all_dead_steps = np.concatenate((self._all_dead_steps, none))
        self._all_dead_values = np.concatenate((self._all_dead_values, none))
