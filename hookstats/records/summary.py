"""summarise(): what a step's record says of each site, one small tuple per site."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hookstats.records.groups import over_site, per_site
from hookstats.records.record import StepRecord
from hookstats.stats.state import COUNT, M2, MAX, MEAN, MIN, NAN, NEGINF, POSINF, ZERO


class SiteSummary(NamedTuple):
    """The statistics of one site's whole tensor in one step.

    mean, std (population), min and max are over the finite values of all channels: NaN, NaN, +inf
    and -inf where there are none. `finite` counts those, `nonfinite` NaN and infinities.
    `dead` counts dead channels: those with finite values in the step, every one of them zero. In
    an output such a channel told nothing, in a gradient it learnt nothing; a channel stuck at
    another value is not dead.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    channels: int
    observed: int
    finite: int
    mean: float
    std: float
    min: float
    max: float
    nonfinite: int
    dead: int

    @property
    def rms(self) -> float:
        """Square root of the mean of squares of the finite values; NaN without any."""
        return math.hypot(self.mean, self.std)


def summarise(record: StepRecord) -> list[SiteSummary]:
    """One SiteSummary a site, in the record's order; vectorised over all channels."""
    moments, tallies = per_site(record.moments, record.tallies, record.offsets)
    count = record.tallies[:, COUNT]
    dead = ((count > 0) & (record.tallies[:, ZERO] == count)).astype(np.int64)
    finite = tallies[:, COUNT]
    with np.errstate(invalid="ignore", divide="ignore"):  # no values: 0 / 0
        mean = np.where(finite > 0, moments[:, MEAN], np.nan)
        std = np.sqrt(moments[:, M2] / finite)
    return [
        SiteSummary(site.name, site.kind, site.shape, *numbers)
        for site, *numbers in zip(
            record.sites,
            np.diff(record.offsets).tolist(),
            record.observed.tolist(),
            finite.tolist(),
            mean.tolist(),
            std.tolist(),
            moments[:, MIN].tolist(),
            moments[:, MAX].tolist(),
            tallies[:, [NAN, POSINF, NEGINF]].sum(1).tolist(),
            over_site(np.add, dead, record.offsets, 0).tolist(),
            strict=True,
        )
    ]
