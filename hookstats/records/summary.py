"""summarise(): the statistics of each site in a step's record, one small tuple per site."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import NamedTuple

from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.stats.derived import statistic


class SiteSummary(NamedTuple):
    """The statistics of one site's whole tensor in one step.

    mean, std (population), min and max are over the finite values of all channels; without finite
    values they are NaN, NaN, +inf and -inf. `finite` counts these values, `zero` the zeros among
    them, `nonfinite` NaNs and infinities, `dead` the dead channels (see `insight.dead`) of
    `channels`, -1 if unknown, because the step did not keep its channels.
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
    zero: int
    nonfinite: int
    dead: int

    @property
    def dead_of(self) -> str:
        """How many channels of how many are dead, for people: "3/64"; "-" if unknown."""
        return f"{self.dead}/{self.channels}" if self.dead >= 0 and self.channels else "-"

    @property
    def rms(self) -> float:
        """Square root of the mean of squares of the finite values; NaN without finite values."""
        return math.hypot(self.mean, self.std)


def summarise(record: StepRecord, chosen: Container[Key] | None = None) -> list[SiteSummary]:
    """One SiteSummary per site, in the record's order; vectorised over all channels.

    chosen: the sites; by default all.
    """
    whole = record.tensors.column
    told = [statistic(name, whole) for name in ("count", "mean", "std", "min", "max")]
    return [
        SiteSummary(site.name, site.kind, site.shape, *numbers)
        for site, *numbers in zip(
            record.sites,
            [site.channels for site in record.sites],
            record.observed.tolist(),
            *(values.tolist() for values in told),
            whole("zero").tolist(),
            (whole("nan") + whole("posinf") + whole("neginf")).tolist(),
            record.dead.tolist(),
            strict=True,
        )
        if chosen is None or (site.name, site.kind) in chosen
    ]
