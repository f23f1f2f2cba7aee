"""PastInputs: what the inputs of the model were in the steps before, for the rules about inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hookstats.records.keys import Key, Kind
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.stats.derived import columns_of, rms
from hookstats.stats.state import COUNT, ZERO

_BATCHES = 16
"""How many batches are compared with the newest one, to find the same batch again."""
_STEPS = 64
"""How many distances are kept."""
_KNOWN = 16
"""How many steps show how large columns are."""
_GROWN = 8.0
"""How many times larger than ever before a column is that has grown."""
_BESIDE = re.compile(r"mask|label|target|position|segment|type_id|length|weight|past|cache")
"""What the names of arguments that only go with the data have."""


class Grown(NamedTuple):
    """A column of the input that is `_GROWN` times as large as it, and the median column, ever
    were, while most columns are not: the one that grew most."""

    channel: int
    rms: float
    before: float
    """The greatest rms of the column in the steps before."""
    steps: int
    """In how many steps in a row, with this one, it has been so."""


@dataclass(frozen=True)
class SeenInputs:
    """The input of the model, the root's, or else that of the first watched module, in a step: its
    first argument; where all have names, as in ``model(**batch)``, the largest but for masks,
    labels and the like."""

    site: int | None = None
    """The site of the input in this step; None without one."""
    distance: float = np.nan
    """The share of values, 0..1, that one has to move to make the average histogram of the steps
    before out of this step's (the total variation distance), by what is usual of a batch of its
    size: times the root of its size by the median size. Of integers, as numbers of tokens, which
    have no order: the share in bins that no step before had. NaN without any."""
    past_distances: Sequence[float] = ()
    """The same of the steps before, oldest first, 64 at most."""
    far: int = 0
    """How many steps in a row, with this one, were unlike those before; see `rules.inputs`."""
    repeated: int = 0
    """How many steps in a row, with this one, had a batch that was equal in all statistics to one
    of the 16 batches before it."""
    varied: int = 0
    """How many steps in a row before these had a new batch."""
    constant_site: int | None = None
    """The first output, in this step, in which each channel is constant; None without one."""
    constant: int = 0
    """How many steps in a row, with this one, had one."""
    lived: Int64 = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    """int64 [C]: in how many steps, all before those in which it is dead, a channel had fewer than
    9 zeros of 10 values; -1 where there were other steps, too."""
    grown: Grown | None = None
    """None without one; of integers, too."""
    sizes: Sequence[float] = field(default=(), repr=False)
    """The numbers of values of the steps before, oldest first, 64 at most."""


class PastInputs:
    """What is kept of the inputs of the steps before."""

    def __init__(self) -> None:
        self._last = SeenInputs()
        self.key: Key | None = None
        """Of the input that was looked at last."""
        self._average: Float64 | None = None
        self._batches: list[bytes] = []
        self._was_dead = np.empty(0, bool)
        self._greatest = np.empty(0)  # float64 [C]: the greatest rms of each column
        self._latest = np.empty(0)  # float64 [C]: the same, of the steps in which it had grown
        self._columns = np.empty(0)  # float64 [C]: for how many steps in a row it has
        self._pushed = 0  # in how many steps these columns were

    def push(self, record: StepRecord, kinds: Sequence[Kind]) -> SeenInputs:
        """Add a step; what was seen in it. kinds: of the sites."""
        site = _input_site(record.sites, kinds, self.key)
        constant = _constant(record, kinds)
        last = self._last
        seen = replace(
            last,
            site=site,
            distance=np.nan,
            past_distances=_kept(last.past_distances, last.distance),
            constant_site=constant,
            constant=last.constant + 1 if constant is not None else 0,
        )
        if site is not None:
            self.key = record.sites[site].name, record.sites[site].kind
            seen = self._seen(record, site, seen)
        self._last = seen
        return seen

    def _seen(self, record: StepRecord, site: int, seen: SeenInputs) -> SeenInputs:
        is_known = self._has_seen(record, site)
        size = float(record.tensors.tallies[COUNT, site])
        usual = float(np.median(seen.sizes)) if seen.sizes else size
        distance = self._distance(record, site, len(seen.past_distances))
        distance *= min(1.0, math.sqrt(size / usual)) if usual else 1.0
        # Steps in a row that are far say nothing of what was usual before them.
        limit = usual_limit(seen.past_distances[: len(seen.past_distances) - seen.far])
        if is_known:
            repeated, varied = seen.repeated + 1, seen.varied
        else:
            repeated, varied = 0, 1 if seen.repeated else seen.varied + 1
        return replace(
            seen,
            distance=distance,
            far=seen.far + 1 if distance > limit else 0,
            repeated=repeated,
            varied=varied,
            lived=self._lived(record, site, seen.lived),
            grown=self._grown(record, site),
            sizes=_kept(seen.sizes, size),
        )

    def _has_seen(self, record: StepRecord, site: int) -> bool:
        rows = slice(*record.offsets[site : site + 2])
        batch = record.moments[rows].tobytes() + record.tallies[rows].tobytes()
        is_known = batch in self._batches
        self._batches = [*self._batches, batch][-_BATCHES:]
        return is_known

    def _lived(self, record: StepRecord, site: int, before: Int64) -> Int64:
        zeros, count = (
            record.tallies[slice(*record.offsets[site : site + 2]), column]
            for column in (ZERO, COUNT)
        )
        if len(before) != len(count):
            before, self._was_dead = np.zeros(len(count), np.int64), np.zeros(len(count), bool)
        lasts = zeros == count  # nothing is known of channels without values
        is_other = (before < 0) | ((self._was_dead | (10 * zeros >= 9 * count)) & ~lasts)
        self._was_dead = lasts & (self._was_dead | (count > 0))
        lived: Int64 = np.where(is_other, -1, before + ~lasts)
        return lived

    def _grown(self, record: StepRecord, site: int) -> Grown | None:
        rows = slice(*record.offsets[site : site + 2])
        now = np.nan_to_num(rms(columns_of(record.moments[rows], record.tallies[rows])))
        if len(now) != len(self._greatest):
            self._greatest, self._latest, self._columns = now * 0, now * 0, now * 0
            self._pushed = 0
        if not len(now):
            return None
        self._pushed += 1
        before = np.maximum(self._greatest, np.median(self._greatest))
        grew = (now >= _GROWN * before) & (self._pushed > _KNOWN) & (before > 0)
        self._columns = np.where(grew, self._columns + 1, 0)
        self._latest = np.where(grew, np.maximum(self._latest, now), self._latest)
        own = self._greatest
        self._greatest = np.where(grew, own, np.maximum(np.maximum(own, self._latest), now))
        if not 0 < grew.sum() < len(now) / 2 or "float" not in record.sites[site].dtype:
            return None
        channel = int(np.where(grew, now / np.maximum(before, np.finfo(float).tiny), 0).argmax())
        about = float(now[channel]), float(own[channel]), int(self._columns[channel])
        return Grown(channel, *about)

    def _distance(self, record: StepRecord, site: int, known: int) -> float:
        if record.bins is None:
            return np.nan
        counts = record.hist.dense_row(site, record.bins.slots).astype(np.float64)
        total = counts.sum()
        if not total:
            return np.nan
        shares: Float64 = counts / total
        if self._average is None or len(self._average) != len(shares):
            self._average = shares
            return np.nan
        away = shares - self._average
        new = shares[self._average == 0].sum()
        self._average += away / min(known + 2, 32)
        return float(np.abs(away).sum() / 2 if "float" in record.sites[site].dtype else new)


def usual_limit(distances: Sequence[float]) -> float:
    """The distance from which on a batch is unlike those before; infinite before 16 of them.

    It is above what they had by 8 times their usual deviation (1.4826 times the median absolute
    deviation: Hampel, 1974), by 0.15, and by a quarter of the greatest of them.
    """
    if len(distances) < 16:
        return math.inf
    past = np.array(distances)
    usual = float(np.median(past))
    spread = 1.4826 * float(np.median(np.abs(past - usual)))
    return max(usual + max(8.0 * spread, 0.15), 1.25 * float(past.max()))


def _kept(past: Sequence[float], value: float) -> Sequence[float]:
    return past if math.isnan(value) else [*past, value][-_STEPS:]


def _input_site(sites: Sequence[SiteInfo], kinds: Sequence[Kind], last: Key | None) -> int | None:
    """The input to look at, see `SeenInputs`; `last`, as long as it is there."""
    inputs = [i for i, kind in enumerate(kinds) if kind.plain == "input"]
    first = [i for i in inputs if not kinds[i].path]
    named = [i for i in inputs if sites[i].name == "" and not _BESIDE.search(kinds[i].path or "")]
    found = [i for i in first if sites[i].name == ""] or named or first
    known = [i for i in found if (sites[i].name, sites[i].kind) == last]
    if known or not found:
        return next(iter(known), None)
    # Of the same size, the first.
    return found[0] if found[0] in first else max(found, key=lambda i: math.prod(sites[i].shape))


def _constant(record: StepRecord, kinds: Sequence[Kind]) -> int | None:
    """The first output of several channels that has a row for each of 8 samples or more, if its
    channels have no variation: so it is where all samples of a batch are equal. A site whose values
    are all equal is another matter."""
    for i, (site, kind) in enumerate(zip(record.sites, kinds, strict=True)):
        if kind.plain == "output" and site.channels >= 4 and len(site.shape) == 2:
            rows = slice(*record.offsets[i : i + 2])
            of = columns_of(record.moments[rows], record.tallies[rows])
            least, most = of("min"), of("max")
            varies = least.min() < least.max()
            return i if (of("count") >= 8).all() and (least == most).all() and varies else None
    return None
