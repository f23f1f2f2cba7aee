"""summarise(): the statistics of each site in a step's record, one small tuple per site."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hookstats.records.record import StepRecord
from hookstats.stats.derived import columns_of, dead, statistic
from hookstats.stats.merge import reduce_runs


class SiteSummary(NamedTuple):
    """The statistics of one site's whole tensor in one step.

    mean, std (population), min and max are over the finite values of all channels; without finite
    values they are NaN, NaN, +inf and -inf. `finite` counts these values, `nonfinite` NaNs and
    infinities, `dead` the dead channels (see `insight.dead`) of `channels`, which is 0 where the
    record has the whole tensor alone.
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
    def dead_of(self) -> str:
        """How many channels of how many are dead, for people: "3/64"; "-" where nobody knows."""
        return f"{self.dead}/{self.channels}" if self.channels else "-"

    @property
    def rms(self) -> float:
        """Square root of the mean of squares of the finite values; NaN without finite values."""
        return math.hypot(self.mean, self.std)


def summarise(record: StepRecord) -> list[SiteSummary]:
    """One SiteSummary per site, in the record's order; vectorised over all channels."""
    whole = columns_of(*record.whole_state)
    told = [statistic(name, whole) for name in ("count", "mean", "std", "min", "max")]
    merged = np.array([site.merged > 0 for site in record.sites], bool)
    died = dead(columns_of(record.moments, record.tallies)).astype(np.int64)
    died = np.where(merged, 0, reduce_runs(np.add, died, record.offsets, 0))
    return [
        SiteSummary(site.name, site.kind, site.shape, *numbers)
        for site, *numbers in zip(
            record.sites,
            np.where(merged, 0, np.diff(record.offsets)).tolist(),
            record.observed.tolist(),
            *(values.tolist() for values in told),
            (whole("nan") + whole("posinf") + whole("neginf")).tolist(),
            died.tolist(),
            strict=True,
        )
    ]
