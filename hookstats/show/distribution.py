"""distributions(): the histograms of one site by column, on an axis that people can read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hookstats.records.sparse import Float64, Int32, Int64
from hookstats.stats.bins import Bins

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_REACH = 1e3  # the axis ends at this multiple of the usual extreme


@dataclass(frozen=True)
class Axis:
    """An axis for values of either sign and any magnitude: `asinh(x / scale)` from lo to hi.

    The axis is linear within about +-scale, and logarithmic beyond.
    """

    scale: float
    lo: float
    hi: float

    def values(self, count: int) -> Float64:
        """`count` values at equal distances on the axis, from its first end to its last."""
        with np.errstate(over="ignore"):
            values: Float64 = np.sinh(np.linspace(self.lo, self.hi, count)) * self.scale
        return values

    def position(self, values: Float64) -> Float64:
        """The positions of values: 0 at lo, 1 at hi; a value beyond an end is placed there."""
        where = (np.arcsinh(values / self.scale) - self.lo) / (self.hi - self.lo)
        clipped: Float64 = np.clip(where, 0.0, 1.0)
        return clipped


@dataclass(frozen=True)
class Distributions:
    """How the finite values of one site are distributed, in T columns."""

    axis: Axis
    shares: Float64
    """float64 [rows, T]: the share of a column's finite values in each of the equal parts of the
    axis, from lo to hi; the first and the last part include the values beyond the axis. NaN where a
    column has no finite values."""
    quantiles: Float64
    """float64 [len(QUANTILES), T]: NaN where a column has no finite values."""


@dataclass(frozen=True)
class _Steps:
    """The nonzero slots of a histogram: their edges, their counts, and the cumulative counts."""

    left: Float64
    right: Float64
    counts: Int64
    reached: Float64

    def quantiles(self, fractions: Sequence[float]) -> Float64:
        """The quantiles, as `Histogram.quantile` defines them."""
        rank = np.array(fractions) * self.reached[-1]
        slot = np.searchsorted(self.reached, rank)
        inside = (rank - (self.reached[slot] - self.counts[slot])) / self.counts[slot]
        values: Float64 = self.left[slot] + (self.right[slot] - self.left[slot]) * inside
        return values

    def below(self, values: Float64) -> Float64:
        """The number of values below each of `values`, if every slot is filled evenly."""
        x = np.stack((self.left, self.right), 1).ravel()
        y = np.stack((self.reached - self.counts, self.reached), 1).ravel()
        below: Float64 = np.interp(values, x, y)
        return below


def distributions(
    bins: Bins,
    columns: Sequence[tuple[Int32, Int64]],
    least: Float64,
    greatest: Float64,
    rows: int,
) -> Distributions | None:
    """Put histograms on one axis of `rows` parts; None if no column has finite values.

    columns: T pairs, the nonzero slots of a histogram and their counts. least, greatest: float64
    [T], the extremes of the finite values.
    """
    edges = bins.edges().double().numpy()
    steps = [
        _steps(edges, slots, counts, *ends) if len(slots) else None
        for (slots, counts), *ends in zip(columns, least.tolist(), greatest.tolist(), strict=True)
    ]
    quantiles = np.full((len(QUANTILES), len(columns)), np.nan)
    for t, column in enumerate(steps):
        if column is not None:
            quantiles[:, t] = column.quantiles(QUANTILES)
    axis = choose_axis(quantiles, least, greatest)
    if axis is None:
        return None
    shares = np.full((rows, len(columns)), np.nan)
    inner = axis.values(rows + 1)[1:-1]
    for t, column in enumerate(steps):
        if column is not None:
            below = np.concatenate(([0.0], column.below(inner), column.reached[-1:]))
            shares[:, t] = np.diff(below) / column.reached[-1]
    return Distributions(axis, shares, quantiles)


def choose_axis(quantiles: Float64, least: Float64, greatest: Float64) -> Axis | None:
    """The axis for these columns; None if none of them has finite values.

    The axis is linear where most values usually are, so that a bell curve looks like one. It
    reaches the extremes, but not those a thousand times beyond the usual: a single explosion would
    leave no room for anything else.
    """
    some = np.isfinite(least) & np.isfinite(greatest)
    if not some.any():
        return None
    least, greatest = least[some], greatest[some]
    usual = float(np.median(np.maximum(-least, greatest)))
    top, bottom = float(greatest.max()), float(least.min())
    if usual > 0:
        top, bottom = min(top, _REACH * usual), max(bottom, -_REACH * usual)
    else:
        usual = max(top, -bottom)
    low, first, _, third, high = (float(np.nanmedian(q)) for q in quantiles)
    # For a normal distribution, the first two are both two thirds of the standard deviation.
    scale = max((third - first) / 2, (high - low) / 7, usual / 100) or 1.0
    lo, hi = math.asinh(min(bottom, 0.0) / scale), math.asinh(max(top, 0.0) / scale)
    if lo == hi:
        lo, hi = -1.0, 1.0
    margin = (hi - lo) / 50  # so that no extreme, and no zero, lies on the edge of a part
    return Axis(scale, lo - margin, hi + margin)


def _steps(edges: Float64, slots: Int32, counts: Int64, least: float, greatest: float) -> _Steps:
    bounds = np.concatenate(([-np.inf], edges, [np.inf]))
    left = np.clip(bounds[slots], least, greatest)
    right = np.clip(bounds[slots + 1], least, greatest)
    return _Steps(left, right, counts, np.cumsum(counts, dtype=np.float64))
