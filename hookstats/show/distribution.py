"""distributions(): one site's histograms over the columns, on an axis that people can read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hookstats.records.sparse import Float64, Int32, Int64
from hookstats.stats.bins import Bins

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_REACH = 1e3  # how many times farther than is usual the axis goes


@dataclass(frozen=True)
class Axis:
    """An axis for values of either sign and any magnitude: `asinh(x / scale)` from lo to hi.

    Linear within about +-scale, logarithmic beyond.
    """

    scale: float
    lo: float
    hi: float

    def values(self, count: int) -> Float64:
        """`count` values at equal distances on the axis, its ends first and last."""
        with np.errstate(over="ignore"):
            values: Float64 = np.sinh(np.linspace(self.lo, self.hi, count)) * self.scale
        return values

    def position(self, values: Float64) -> Float64:
        """Where values are, 0 at lo and 1 at hi; what is beyond is at the end."""
        where = (np.arcsinh(values / self.scale) - self.lo) / (self.hi - self.lo)
        clipped: Float64 = np.clip(where, 0.0, 1.0)
        return clipped


@dataclass(frozen=True)
class Distributions:
    """One site in T columns: how its finite values are spread."""

    axis: Axis
    shares: Float64
    """[rows, T]: of a column's finite values, those in each of the equal parts of the axis, from
    lo to hi; what is beyond the axis is in its first or last part. NaN without finite values."""
    quantiles: Float64
    """[len(QUANTILES), T]: NaN without finite values."""


@dataclass(frozen=True)
class _Steps:
    """A histogram's nonzero slots: they reach from `left` to `right`, `reached` up to there."""

    left: Float64
    right: Float64
    counts: Int64
    reached: Float64

    def quantiles(self, fractions: Sequence[float]) -> Float64:
        """As Histogram.quantile."""
        rank = np.array(fractions) * self.reached[-1]
        slot = np.searchsorted(self.reached, rank)
        inside = (rank - (self.reached[slot] - self.counts[slot])) / self.counts[slot]
        values: Float64 = self.left[slot] + (self.right[slot] - self.left[slot]) * inside
        return values

    def below(self, values: Float64) -> Float64:
        """How many are below each value, taking every slot to be filled evenly."""
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
    """Put histograms on one axis of `rows` parts; None where no column has finite values.

    columns: [T], the nonzero slots and their counts; least, greatest: [T], the extremes of the
    finite values.
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
    """The axis for these columns; None where none of them has finite values.

    It is linear where most values usually are, so that a bell looks like one, and goes as far as
    the extremes, but for those a thousand times farther than is usual: one explosion would leave
    no room for anything else.
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
    # Both of the first two are two thirds of a normal distribution's standard deviation.
    scale = max((third - first) / 2, (high - low) / 7, usual / 100) or 1.0
    lo, hi = math.asinh(min(bottom, 0.0) / scale), math.asinh(max(top, 0.0) / scale)
    if lo == hi:
        lo, hi = -1.0, 1.0
    margin = (hi - lo) / 50  # so that the extremes, and zero, lie within a part, not on its edge
    return Axis(scale, lo - margin, hi + margin)


def _steps(edges: Float64, slots: Int32, counts: Int64, least: float, greatest: float) -> _Steps:
    bounds = np.concatenate(([-np.inf], edges, [np.inf]))
    left = np.clip(bounds[slots], least, greatest)
    right = np.clip(bounds[slots + 1], least, greatest)
    return _Steps(left, right, counts, np.cumsum(counts, dtype=np.float64))
