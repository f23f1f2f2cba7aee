"""distributions(): the histograms of one site by column, on an axis that people can read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hookstats.records.sparse import Float64, Integers
from hookstats.stats.bins import Bins
from hookstats.stats.merge import offsets_of

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


class _Slots:
    """The nonzero slots of T histograms, one after the other."""

    def __init__(
        self,
        edges: Float64,
        columns: Sequence[tuple[Integers, Integers]],
        least: Float64,
        greatest: Float64,
    ) -> None:
        lengths = [len(slots) for slots, _ in columns]
        owner = np.repeat(np.arange(len(columns)), lengths)
        slots = np.concatenate([slots for slots, _ in columns]).astype(np.int64)
        bounds = np.concatenate(([-np.inf], edges, [np.inf]))
        self._edges = edges
        self._keys = owner * len(bounds) + slots  # ascending
        self._counts = np.concatenate([counts for _, counts in columns]).astype(np.int64)
        self._reached = np.cumsum(self._counts)
        ends = np.concatenate(([0], self._reached))[offsets_of(lengths)]
        self._before = ends[:-1]  # of each histogram, the counts of those before
        self.total = np.diff(ends)
        """int64 [T]: the finite values."""
        self._left = np.clip(bounds[slots], least[owner], greatest[owner])
        self._right = np.clip(bounds[slots + 1], least[owner], greatest[owner])

    def quantiles(self, fractions: Sequence[float]) -> Float64:
        """float64 [fractions, T], as `Histogram.quantile` defines them; NaN without values."""
        found = np.full((len(fractions), len(self.total)), np.nan)
        some = self.total > 0
        before = self._before[some]
        rank = np.array(fractions)[:, None] * self.total[some]
        slot = np.searchsorted(self._reached, before + rank)
        counts = self._counts[slot]
        inside = (rank - (self._reached[slot] - before - counts)) / counts
        found[:, some] = self._left[slot] + (self._right[slot] - self._left[slot]) * inside
        return found

    def below(self, values: Float64) -> Float64:
        """float64 [values, T]: the number of values below each, if every slot is filled evenly."""
        slots = np.searchsorted(self._edges, values, side="right")[:, None]
        keys = np.arange(len(self.total)) * (len(self._edges) + 2) + slots
        at = np.searchsorted(self._keys, keys)
        below = np.concatenate(([0], self._reached))[at] - self._before
        last = np.minimum(at, len(self._keys) - 1)
        width = self._right[last] - self._left[last]
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.clip((values[:, None] - self._left[last]) / width, 0.0, 1.0)
        inside = np.where(width > 0, inside, values[:, None] > self._left[last])
        found: Float64 = below + np.where(self._keys[last] == keys, inside * self._counts[last], 0)
        return found


def distributions(
    bins: Bins,
    columns: Sequence[tuple[Integers, Integers]],
    least: Float64,
    greatest: Float64,
    rows: int,
) -> Distributions | None:
    """Put histograms on one axis of `rows` parts; None if no column has finite values.

    columns: T pairs, the nonzero slots of a histogram and their counts. least, greatest: float64
    [T], the extremes of the finite values.
    """
    slots = _Slots(bins.bounds(), columns, least, greatest)
    quantiles = slots.quantiles(QUANTILES)
    axis = choose_axis(quantiles, least, greatest)
    if axis is None:
        return None
    below = slots.below(axis.values(rows + 1)[1:-1])
    ends = np.zeros((1, len(columns))), slots.total[None].astype(np.float64)
    with np.errstate(invalid="ignore"):
        shares = np.diff(np.concatenate((ends[0], below, ends[1])), axis=0) / slots.total
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
    # One sort of all: a column has all quantiles, or none.
    known = quantiles[:, ~np.isnan(quantiles).any(axis=0)]
    usually = np.median(known, axis=1) if known.size else np.zeros(len(quantiles))
    low, first, _, third, high = usually.tolist()
    # For a normal distribution, the first two are both two thirds of the standard deviation.
    scale = max((third - first) / 2, (high - low) / 7, usual / 100) or 1.0
    lo, hi = math.asinh(min(bottom, 0.0) / scale), math.asinh(max(top, 0.0) / scale)
    if lo == hi:
        lo, hi = -1.0, 1.0
    margin = (hi - lo) / 50  # so that no extreme, and no zero, lies on the edge of a part
    return Axis(scale, lo - margin, hi + margin)
