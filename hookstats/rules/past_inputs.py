"""PastInputs: what the inputs of the model were in the steps before, for the rules about inputs."""

from __future__ import annotations

import numpy as np

from hookstats.records.keys import parse_kind
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.stats.derived import columns_of

_BATCHES = 16
"""How many batches are compared with the newest one, to find the same batch again."""
_STEPS = 32
"""How many distances are kept."""


class PastInputs:
    """The first input of the model: the root's, or else that of the first watched module."""

    def __init__(self) -> None:
        self.site: int | None = None
        """The site of the input in this step; None without one."""
        self.distance = np.nan
        """The share of values, 0..1, that one has to move to make the average histogram of the
        steps before out of this step's (the total variation distance); NaN without any."""
        self.past_distances: list[float] = []
        """The same of the steps before, oldest first, 32 at most."""
        self.repeated = 0
        """How many steps in a row, with this one, had a batch that was equal in all statistics to
        one of the 16 batches before it."""
        self.varied = 0
        """How many steps before had a new batch."""
        self.constant_site: int | None = None
        """The first output, in this step, in which each channel is constant; None without one."""
        self._average: Float64 | None = None
        self._batches: list[bytes] = []

    def push(self, record: StepRecord) -> None:
        """Add a step."""
        self.site = _input_site(record)
        self.constant_site = _constant_output(record)
        if not np.isnan(self.distance):
            self.past_distances = [*self.past_distances, self.distance][-_STEPS:]
        self.distance = np.nan
        if self.site is None:
            return
        self._see_batch(record, self.site)
        if record.bins is None:
            return
        counts = record.hist.dense(self.site, record.bins.slots).astype(np.float64)
        total = counts.sum()
        if not total:
            return
        shares: Float64 = counts / total
        if self._average is None or len(self._average) != len(shares):
            self._average = shares
            return
        self.distance = float(np.abs(shares - self._average).sum() / 2)
        self._average += (shares - self._average) / min(len(self.past_distances) + 2, _STEPS)

    def _see_batch(self, record: StepRecord, site: int) -> None:
        rows = slice(*record.offsets[site : site + 2])
        batch = record.moments[rows].tobytes() + record.tallies[rows].tobytes()
        if batch in self._batches:
            self.repeated += 1
        else:
            self.varied += 1
            self.repeated = 0
        self._batches = [*self._batches, batch][-_BATCHES:]


def _input_site(record: StepRecord) -> int | None:
    """The first input in execution order, the root's if there is one."""
    first = None
    for i, site in enumerate(record.sites):
        kind = parse_kind(site.kind)
        if kind.plain == "input" and not kind.path:
            if site.name == "":
                return i
            first = i if first is None else first
    return first


def _constant_output(record: StepRecord) -> int | None:
    """The first output of several channels, and of more than one sample, that has no variation.

    So it is where all samples of a batch are equal; a site whose values are all equal is another
    matter.
    """
    for i, site in enumerate(record.sites):
        if parse_kind(site.kind).plain != "output" or site.channels < 4 or len(site.shape) != 2:
            continue
        rows = slice(*record.offsets[i : i + 2])
        column = columns_of(record.moments[rows], record.tallies[rows])
        least, most = column("min"), column("max")
        if (column("count") > 1).all() and (least == most).all() and least.min() < least.max():
            return i
        return None
    return None
