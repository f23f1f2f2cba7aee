"""PastInputs: what the inputs of the model were in the steps before, for the rules about inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hookstats.records.keys import Key, Kind
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64
from hookstats.stats.derived import Columns, of_rows

_BATCHES = 16
"""How many batches are compared with the newest one, to find the same batch again."""
_STEPS = 32
"""How many distances are kept."""
_BESIDE = re.compile(r"mask|label|target|position|segment|type_id|length|weight|past|cache")
"""What the names of arguments that only go with the data have."""


class SeenInputs(NamedTuple):
    """The input of the model, the root's, or else that of the first watched module, in a step: its
    first argument; where all have names, as in ``model(**batch)``, the largest but for masks,
    labels and the like."""

    site: int | None = None
    """The site of the input in this step; None without one."""
    distance: float = np.nan
    """The share of values, 0..1, that one has to move to make the average histogram of the steps
    before out of this step's (the total variation distance); NaN without any."""
    past_distances: Sequence[float] = ()
    """The same of the steps before, oldest first, 32 at most."""
    repeated: int = 0
    """How many steps in a row, with this one, had a batch that was equal in all statistics to one
    of the 16 batches before it."""
    varied: int = 0
    """How many steps before had a new batch."""
    constant_site: int | None = None
    """The first output, in this step, in which each channel is constant; None without one."""


class PastInputs:
    """What is kept of the inputs of the steps before."""

    def __init__(self) -> None:
        self._last = SeenInputs()
        self._key: Key | None = None  # of the input that was looked at last
        self._site: int | None = None  # where it is, if there
        self._of_samples: int | None = None  # the output that may be the same for all samples
        self._kinds: Sequence[Kind] = ()  # of the sites that these were looked for in
        self._average: Float64 | None = None
        self._batches: list[bytes] = []

    def push(
        self, records: Sequence[StepRecord], kinds: Sequence[Kind], channels: Sequence[Columns]
    ) -> list[SeenInputs]:
        """Add steps with the same sites; what was seen in each.

        kinds: of the sites. channels: the columns of the channels, by step.
        """
        sites = records[0].sites
        if kinds is not self._kinds:  # most steps have the same
            self._kinds, self._site = kinds, _input_site(sites, kinds, self._key)
            self._of_samples = _first_of_samples(sites, kinds)
        site = self._site
        if site is not None:
            self._key = sites[site].name, sites[site].kind
        constant = self._of_samples
        rows = slice(0) if constant is None else slice(*records[0].offsets[constant : constant + 2])
        are_constant = _are_constant(channels, rows)
        seen = []
        for record, is_constant in zip(records, are_constant, strict=True):
            self._last = self._seen(record, site, constant if is_constant else None)
            seen.append(self._last)
        return seen

    def _seen(self, record: StepRecord, site: int | None, constant: int | None) -> SeenInputs:
        last, past = self._last, self._last.past_distances
        if last.distance == last.distance:
            past = [*past, last.distance][-_STEPS:]
        if site is None:
            return last._replace(
                site=None, distance=np.nan, past_distances=past, constant_site=constant
            )
        is_known = self._has_seen(record, site)
        return SeenInputs(
            site,
            self._distance(record, site, len(past)),
            past,
            last.repeated + 1 if is_known else 0,
            last.varied + (not is_known),
            constant,
        )

    def _has_seen(self, record: StepRecord, site: int) -> bool:
        rows = slice(*record.offsets[site : site + 2])
        batch = record.moments[rows].tobytes() + record.tallies[rows].tobytes()
        is_known = batch in self._batches
        self._batches = [*self._batches, batch][-_BATCHES:]
        return is_known

    def _distance(self, record: StepRecord, site: int, known: int) -> float:
        if record.bins is None:
            return np.nan
        counts = record.hist.dense(site, record.bins.slots).astype(np.float64)
        total = counts.sum()
        if not total:
            return np.nan
        shares: Float64 = counts / total
        if self._average is None or len(self._average) != len(shares):
            self._average = shares
            return np.nan
        away = shares - self._average
        self._average += away / min(known + 2, _STEPS)
        return float(np.abs(away).sum() / 2)


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


def _first_of_samples(sites: Sequence[SiteInfo], kinds: Sequence[Kind]) -> int | None:
    """The first output of several channels that has a row for each sample."""
    for i, (site, kind) in enumerate(zip(sites, kinds, strict=True)):
        if kind.plain == "output" and site.channels >= 4 and len(site.shape) == 2:
            return i
    return None


def _are_constant(channels: Sequence[Columns], rows: slice) -> list[bool]:
    """In which of the steps the channels of an output, of more than one sample, have no variation.

    So it is where all samples of a batch are equal; a site whose values are all equal is another
    matter.
    """
    count, least, most = (of_rows(channels, name, rows) for name in ("count", "min", "max"))
    if not count.size:
        return [False] * len(channels)
    varies = least.min(1) < least.max(1)
    found: list[bool] = ((count > 1).all(1) & (least == most).all(1) & varies).tolist()
    return found
