"""History: what the rules know about the steps so far."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import CHOICES, Key, Kind, parse_kind
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.rules.facts import Fact, Graph, What
from hookstats.rules.past_inputs import PastInputs, SeenInputs
from hookstats.rules.setup import Setup
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import Columns, columns_of, rms
from hookstats.stats.merge import reduce_runs
from hookstats.stats.state import COUNT, M2

Flags = NDArray[np.bool_]
_T = TypeVar("_T")

WINDOW = 32
"""How many earlier values of the rms are kept per tensor."""

_START = 4
"""How many steps are the start of a tensor."""

_KNOWN = 8
"""In how many steps in a row a gradient has to be that of a cross-entropy, which it may be in one
by chance."""

_ROUNDING = 1e-3
"""By how much of their magnitude gradients of logits may miss a sum of zero: they are rounded."""

_ADDS_LAST = ("Linear", "Conv", "LayerNorm", "BatchNorm", "GroupNorm")
"""How the names of layers begin that add their bias to what they give."""

SCALARS = 512
"""How many values are kept per scalar."""

RATE = "lr/"
"""How the names of learning rates begin, before the number of their parameter group."""

_LOSS = re.compile(r"loss(?:[/_ -](?:step|train|training|total|batch|mean|avg))?\Z")
_ELSEWHERE = {"val", "valid", "validation", "eval", "evaluation", "dev", "test"}


@lru_cache(1024)
def is_loss(name: str) -> bool:
    """Whether a scalar of this name is a loss of the training."""
    lower = name.lower()
    return bool(_LOSS.search(lower)) and _ELSEWHERE.isdisjoint(re.split(r"[/_ .-]", lower))


class Sites:
    """What follows from the sites of a record alone; most steps have the same."""

    def __init__(self, sites: tuple[SiteInfo, ...]) -> None:
        self.sites = sites
        self.at = {(site.name, site.kind): i for i, site in enumerate(sites)}
        """The index of each site by its name and kind."""
        self.kinds: tuple[Kind, ...] = tuple(parse_kind(site.kind) for site in sites)
        self.plain_kinds = tuple(kind.plain for kind in self.kinds)
        self.gradient: Flags = np.array([kind.is_gradient for kind in self.kinds], bool)
        self.channels: Int64 = np.array([site.channels for site in sites], np.int64)
        self.arguments: Flags = np.array(
            [
                kind.plain == "input" and (site.name == "" or bool(kind.path))
                for site, kind in zip(sites, self.kinds, strict=True)
            ],
            bool,
        )
        """bool [S]: which sites are inputs of the model, or arguments of a module but the first."""
        self.checksums = self.of_kind("checksum")
        """bool [S]: which sites have no size."""
        self.attention = self.of_kind("attention")
        """bool [S]: which sites tell of attention; NaNs there are queries without a key."""
        self.choices = self.of_kind(CHOICES)
        """bool [S]: which sites have shares of values that were chosen."""
        self._found: dict[Hashable, Any] = {}

    def once(self, find: Callable[[Sites], _T]) -> _T:
        """What `find`, a function of a module, finds in the sites; it is called once."""
        if find not in self._found:
            self._found[find] = find(self)
        found: _T = self._found[find]
        return found

    def of_kind(self, kind: str) -> Flags:
        """bool [S]: which sites are of a plain kind."""
        return np.array([plain == kind for plain in self.plain_kinds], bool)


class SeenTargets(NamedTuple):
    """What the gradient of the last output showed of the targets."""

    several: int = 0
    """In how many steps before, in a row, it was negative in several channels."""
    alike: int = 0
    """In how many steps, in a row, it has been negative in one channel alone, or then in none, as
    where a model is sure of it."""
    channel: int = -1
    """The last of these channels."""
    entropies: int = 0
    """In how many steps, in a row, it was that of a cross-entropy; once it was in `_KNOWN`, the
    loss is taken for one: of outputs that are certain, the gradient is rounded away."""

    @property
    def is_entropy(self) -> bool:
        """Whether the loss was known as the cross-entropy of the last output's softmax."""
        return self.entropies >= _KNOWN


class Sums:
    """Of R channels: what arrived in the biases of layers, and in the layers' outputs.

    A layer adds its bias to each value of a channel; so the gradient of the bias is the sum of the
    gradients of the channel.
    """

    def __init__(self) -> None:
        self.biases: Float64 = np.empty(0)
        """float64 [R]: the gradients of the biases in this step."""
        self.sums: Float64 = np.empty(0)
        """float64 [R]: the sums of the gradients of outputs in this step."""
        self.before: Float64 = np.empty(0)
        """float64 [R]: the gradients of the biases in the step before; NaN where other layers were
        observed."""
        self.first: int | None = None
        """The site of the first of these biases; None without one."""
        self._biases: Int64 = np.empty(0, np.int64)  # rows of a record
        self._outputs: Int64 = np.empty(0, np.int64)

    def place(self, of: Sites, offsets: Int64, types: Mapping[str, str]) -> None:
        """Find the layers among sites; offsets: of their rows; types: of modules, by name."""
        none = np.empty(0, np.int64)
        biases, outputs = [none], [none]
        self.first = None
        for i, site in enumerate(of.sites):
            owner = site.name.removesuffix(".bias")
            output = of.at.get((owner, "grad_output"))
            if site.kind != "param_grad" or owner == site.name or output is None:
                continue
            fits = of.sites[output].channels == site.channels == sum(site.shape)
            if fits and types.get(owner, "").startswith(_ADDS_LAST):
                self.first = i if self.first is None else self.first
                biases.append(np.arange(*offsets[i : i + 2]))
                outputs.append(np.arange(*offsets[output : output + 2]))
        self._biases, self._outputs = np.concatenate(biases), np.concatenate(outputs)
        self.biases = np.full(len(self._biases), np.nan)

    def push(self, channels: Columns) -> None:
        """Add a step of the sites that were placed; channels: the columns of theirs."""
        self.before = self.biases
        self.biases = channels("mean")[self._biases]
        self.sums = channels("mean")[self._outputs] * channels("count")[self._outputs]


class History:
    """A few numbers per tensor and per channel, from the last steps that observed them.

    After `push`, every array is in the order of the pushed record's S sites and R rows. A tensor
    that a step did not observe keeps its numbers. Arrays are shared, and the next step may go into
    the same memory: read them, never write to them, and keep copies.
    """

    def __init__(self, setup: Setup | None = None) -> None:
        self.setup = setup or Setup()
        """What the training run began with; empty if that is not known."""
        self.pushed = 0
        """How many steps were pushed, with this one."""
        self.step = 0
        """The number of this step."""
        self.before = 0
        """The number of the step that was pushed before it."""
        self.past_steps: list[int] = []
        """The steps that were pushed before it, oldest first, `WINDOW` + 1 at most."""
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
        self.shows_entropy = False
        """Whether this step's loss is the cross-entropy of the last output's softmax.

        The gradient of such a loss is the difference of two distributions over the channels, what
        is predicted less the targets: its sum over the channels is zero.
        """
        self.targets = SeenTargets()
        """In how many steps the targets were of several classes, and of one."""
        self.graphs: dict[str, Graph] = {}
        """The graph of each logged loss that was looked at."""
        self.in_loop: set[What] = set()
        """What the training loop did wrong at any time."""
        self.batches: list[float] = []
        """How many values the input of the model had in recorded steps, newest last, 64 at most."""
        self.small: dict[int, bool] = {}
        """Whether the last 64 recorded steps had batches far smaller than is usual, as the last of
        an epoch, by step."""
        self.inputs = SeenInputs()
        """What the inputs of the model were in this step, and before."""
        self.scalars: Mapping[str, list[float]] = defaultdict(list)
        """The values of each scalar so far, newest last, `SCALARS` at most."""
        self.counts: dict[str, int] = defaultdict(int)
        """How many values each scalar has had."""
        self.greatest: dict[str, float] = defaultdict(lambda: -math.inf)
        """The greatest value of each scalar before the newest one."""
        self.first: dict[str, list[float]] = defaultdict(list)
        """The first values of each scalar, 16 at most."""
        self.unread: set[str] = set()
        """The parameters with gradients that came, and could not be read."""
        self.sites = Sites(())
        """The sites of this step, with what follows from them."""
        self.columns: Callable[[str], NDArray[Any]]
        """The columns of the state of whole tensors, [S] each; see `stats.derived`."""
        self.channels: Callable[[str], NDArray[Any]]
        """The columns of the state of channels, [R] each."""
        self.rms: Float64
        """float64 [S]: the rms of the finite values in this step; NaN without any."""
        self.past_rms: Float64
        """float64 [S, WINDOW]: the rms in the steps before, oldest first; NaN without a step."""
        self.start_rms: Float64
        """float64 [S]: the greatest rms of each site in its first four steps; NaN before these are
        over."""
        self.nonfinite: Flags
        """bool [S]: which sites have non-finite values in this step that are no mask's."""
        self.nonfinite_steps = 0
        """In how many steps in a row, with this one, any site had."""
        self.dead: Flags
        """bool [R]: whether each channel of an input, output or choice is dead in this step, see
        `stats.derived.dead`."""
        self.dead_steps: Int64
        """int64 [R]: for how many steps in a row each channel has been dead, with this one."""
        self.dead_values: Int64
        """int64 [R]: how many zeros the channel had in these steps."""
        self.dead_since: Int64
        """int64 [R]: the number of the first of these steps."""
        self._record: StepRecord
        self._inputs = PastInputs()
        self._known: dict[Key, int] = {}
        self._first_rows: dict[tuple[str, str, int], int] = {}  # by site and number of channels
        self._at = np.zeros(0, np.intp)  # where the sites are in what follows
        self._rows: NDArray[np.intp] | slice = slice(0)  # where the rows are
        self._width = 0  # how many these are
        self._of_values = np.empty(0, bool)  # bool [R]: which rows may be dead
        self._all_rms = np.empty((0, WINDOW))
        self._all_start = np.empty((0, 1))
        self._all_seen = np.zeros((0, 2), np.int64)  # in how many steps, when last
        self._all_dead = np.zeros((3, 0), np.int64)  # steps, values, since

    @property
    def tensors(self) -> ChannelStats:
        """The statistics of whole tensors in this step: its "channels" are the sites; no hist."""
        return self._record.whole

    @property
    def plain_kinds(self) -> tuple[str, ...]:
        """The plain kind of each site."""
        return self.sites.plain_kinds

    @property
    def gradient(self) -> Flags:
        """bool [S]: which sites are gradients."""
        return self.sites.gradient

    def type_of(self, site: int) -> str:
        """The type of the module of a site; "" if unknown."""
        name = self.sites.sites[site].name
        return self.setup.modules.get(name, "")

    def deviations(self, record: StepRecord) -> Float64:
        """float64 [S]: how far this step's values are from the means of their channels, as an rms:
        what depends on the sample."""
        within = reduce_runs(np.add, record.moments[:, M2], record.offsets, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Float64 = np.sqrt(within / self.columns("count"))
        return found

    def push_scalars(self, values: Mapping[str, float]) -> None:
        """Add the scalars of a step."""
        for name, value in values.items():
            past = self.scalars[name]
            if past:
                self.greatest[name] = max(self.greatest[name], past[-1])
            if self.counts[name] < 16:
                self.first[name].append(value)
            self.counts[name] += 1
            past.append(value)
            if len(past) > 2 * SCALARS:  # so that most steps move nothing
                del past[:-SCALARS]

    def push_fact(self, fact: Fact) -> None:
        """Add what is seen of the training without reading a tensor."""
        if isinstance(fact, Graph):
            self.graphs[fact.name] = fact
        else:
            self.in_loop.add(fact.what)

    def push_batch(self, record: StepRecord) -> None:
        """Note the size of a recorded step's batch, whether the step is looked at or not."""
        key = self._inputs.key
        named = ((site.name, site.kind) for site in record.sites)
        at = next((i for i, name in enumerate(named) if name == key), None)
        is_small = False
        if at is not None:
            size = float(record.tensors.tallies[COUNT][at])
            is_small = bool(self.batches) and size < 0.5 * float(np.median(self.batches))
            self.batches = [*self.batches[-63:], size]
        self.small[record.step] = is_small
        if len(self.small) > 64:
            del self.small[next(iter(self.small))]

    def gone(self, kind: str, steps: int, after: int) -> list[str]:
        """The tensors of a kind that were in every step, `after` or more, and in none of the last
        `steps`, as of this one: their names."""
        if self.pushed < steps + after:
            return []
        seen, last = self._all_seen.T
        gone = (last == self.pushed - steps) & (seen == last)
        names = list(self._known) if gone.any() else []
        return [names[i][0] for i in np.flatnonzero(gone).tolist() if names[i][1] == kind]

    def knows(self, key: Key) -> bool:
        """Whether a tensor was in any step so far."""
        return key in self._known

    def push(self, record: StepRecord) -> None:
        """Add a step."""
        if record.sites != self.sites.sites or record.rows.rows != self._width:
            try:
                self._place(record)
            except BaseException:  # such as a full memory: the sites are placed again
                self.sites = Sites(())
                raise
        self._record = record
        self.unread.update(record.unread)
        self.pushed += 1
        if self.pushed > 1:
            self.past_steps = [*self.past_steps[-WINDOW:], self.step]
        self.before, self.step = self.step, record.step
        self.columns = record.tensors.column
        self.channels = columns_of(record.moments, record.tallies)
        with np.errstate(all="ignore"):
            self._push_tensors(record)
            self._push_dead()
            self.inputs = self._inputs.push(record, self.sites.kinds)
            self.sums.push(self.channels)
            self._push_targets(record)

    def _push_targets(self, record: StepRecord) -> None:
        self.shows_entropy = False
        if self.last_gradient is None:
            return
        rows = slice(*record.offsets[self.last_gradient : self.last_gradient + 2])
        mean, count, l1, least = (
            self.channels(name)[rows] for name in ("mean", "count", "l1", "min")
        )
        magnitude = float(l1.sum())
        total = float((mean * count).sum()) if count.all() else math.inf
        has_sum = magnitude > 0 and abs(total) <= _ROUNDING * magnitude
        self.shows_entropy = has_sum and len(mean) > 1
        several, alike, one, entropies = self.targets
        if entropies < _KNOWN:
            entropies = entropies + 1 if self.shows_entropy else 0
        negative = np.flatnonzero(least < 0).tolist()
        if len(negative) == 1 or (alike and not negative):
            channel = negative[0] if negative else one
            self.targets = SeenTargets(several, alike + 1, channel, entropies)
        else:
            self.targets = SeenTargets(several + 1 if not alike else 1, entropies=entropies)

    def _push_tensors(self, record: StepRecord) -> None:
        column, at = self.columns, self._at
        self.rms, self.past_rms = rms(column), self._all_rms[at]
        self.rms[self.sites.checksums] = np.nan
        seen = ~np.isnan(self.rms)
        moved = np.concatenate((self.past_rms[:, 1:], self.rms[:, None]), 1)
        self._all_rms[at[seen]] = moved[seen]
        bad = column("nan") + column("posinf") + column("neginf")
        masks = (column("nan") + column("posinf") == 0) & (column("zero") == column("count"))
        self.nonfinite = (bad > 0) & ~(self.sites.arguments & masks) & ~self.sites.attention
        self.nonfinite_steps = self.nonfinite_steps + 1 if self.nonfinite.any() else 0
        seen_before = self._all_seen[at, 0]
        begins = seen_before < _START
        self._all_start[at[begins], 0] = np.fmax(self._all_start[at[begins], 0], self.rms[begins])
        self.start_rms = np.where(begins, np.nan, self._all_start[at, 0])
        self._all_seen[at] = np.stack((seen_before + 1, np.full(len(at), self.pushed)), 1)

    def _push_dead(self) -> None:
        count = self.channels("count")
        lasts = self._of_values & (self.channels("zero") == count)
        # Few channels are dead, and few were: the others keep their zeros.
        found = np.flatnonzero(lasts | (self._all_dead[0, self._rows] > 0))
        places = found if isinstance(self._rows, slice) else self._rows[found]
        steps, values, since = self._all_dead[:, places]
        lasts, count = lasts[found], count[found]  # nothing is known of channels without values
        is_dead, since = lasts & (count > 0), np.where(steps > 0, since, self.step)
        self._all_dead[:, places] = np.stack((steps + is_dead, values + count, since)) * lasts
        self.dead_steps, self.dead_values, self.dead_since = self._all_dead[:, self._rows]
        self.dead = np.zeros(self._width, bool)
        self.dead[found] = is_dead

    def _place(self, record: StepRecord) -> None:
        """Find where the sites of `record` are, and make room for new ones."""
        self.sites = Sites(record.sites)
        outputs = np.flatnonzero(self.sites.of_kind("output"))
        self.classes = self.last_output = self.last_gradient = None
        if len(outputs):
            self.last_output = int(outputs[-1])
            last = record.sites[self.last_output]
            self.classes = last.channels
            self.last_gradient = self.sites.at.get((last.name, parse_kind(last.kind).gradient))
        self.outputs_of = {}
        for i in outputs.tolist():
            self.outputs_of.setdefault(self.type_of(i), []).append(i)
        self.sums.place(self.sites, record.offsets, self.setup.modules)
        at, rows = [], [np.empty(0, np.intp)]
        width = self._all_dead.shape[1]
        for site, channels in zip(record.sites, np.diff(record.offsets).tolist(), strict=True):
            at.append(self._known.setdefault((site.name, site.kind), len(self._known)))
            row = self._first_rows.setdefault((site.name, site.kind, channels), width)
            width = max(width, row + channels)
            rows.append(np.arange(row, row + channels))
        self._at, places = np.array(at, np.intp), np.concatenate(rows)
        in_order = bool((places == np.arange(len(places))).all())
        self._rows, self._width = slice(0, len(places)) if in_order else places, len(places)
        self._all_rms = _longer(self._all_rms, len(self._known), np.nan)
        self._all_start = _longer(self._all_start, len(self._known), np.nan)
        self._all_seen = _longer(self._all_seen, len(self._known), 0)
        self._all_dead = _longer(self._all_dead.T, width, 0).T.copy()
        of_values = self.sites.of_kind("output") | self.sites.of_kind("input")
        of_values |= self.sites.choices
        self._of_values = np.repeat(of_values, np.diff(record.offsets))


def _longer(values: NDArray[Any], length: int, fill: float) -> NDArray[Any]:
    """Rows with more of them at the end, full of `fill`."""
    more = np.full((length - len(values), values.shape[1]), fill, values.dtype)
    return np.concatenate((values, more))
