"""summarise(): what a step's record says of each site, one small tuple a site."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records import StepRecord
from hookstats.state import COUNT, M2, MAX, MEAN, MIN, NAN, NEGINF, POSINF, ZERO


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


def summarise(record: StepRecord) -> list[SiteSummary]:
    """One SiteSummary a site, in the record's order; vectorised over all channels."""
    channels = np.diff(record.offsets)
    some = channels > 0
    starts = record.offsets[:-1][some]

    def over_site(ufunc: np.ufunc, values: NDArray[Any], empty: float) -> NDArray[Any]:
        """`ufunc` over each site's channels, `empty` where it has none."""
        out = np.full((len(record), *values.shape[1:]), empty, values.dtype)
        out[some] = ufunc.reduceat(values, starts)
        return out

    moments, tallies = record.moments, record.tallies
    count = tallies[:, COUNT]
    total = over_site(np.add, tallies, 0)
    dead = over_site(np.add, ((count > 0) & (tallies[:, ZERO] == count)).astype(np.int64), 0)
    # Chan's merge of all channels at once, around the largest of their means: where all are equal
    # the result is that mean to the last bit.
    with np.errstate(invalid="ignore", over="ignore"):  # no values: 0 / 0; infinite moments
        shift = over_site(np.maximum, np.where(count > 0, moments[:, MEAN], -np.inf), -np.inf)
        away = np.where(count > 0, moments[:, MEAN] - np.repeat(shift, channels), 0.0)
        offset = over_site(np.add, count * away, 0.0) / total[:, COUNT]
        between = count * np.square(away - np.repeat(offset, channels))
        m2 = over_site(np.add, moments[:, M2] + np.where(count > 0, between, 0.0), 0.0)
        std = np.sqrt(m2 / total[:, COUNT])
    return [
        SiteSummary(site.name, site.kind, site.shape, *numbers)
        for site, *numbers in zip(
            record.sites,
            channels.tolist(),
            record.observed.tolist(),
            total[:, COUNT].tolist(),
            (shift + offset).tolist(),
            std.tolist(),
            over_site(np.minimum, moments[:, MIN], np.inf).tolist(),
            over_site(np.maximum, moments[:, MAX], -np.inf).tolist(),
            total[:, [NAN, POSINF, NEGINF]].sum(1).tolist(),
            dead.tolist(),
            strict=True,
        )
    ]
