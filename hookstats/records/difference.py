"""differences(): where two runs differ in some steps, by site and statistic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import InOrder, Key
from hookstats.records.merge import estimated
from hookstats.records.record import StepRecord, Table
from hookstats.records.sparse import Float64, Int64, SparseCounts, rows_of
from hookstats.stats import derived
from hookstats.stats.bins import Bins, is_sampled
from hookstats.stats.derived import statistic
from hookstats.stats.merge import offsets_of, reduce_runs
from hookstats.stats.state import COUNT, MOMENTS, TALLIES, ZERO

_DESCRIBED = ("channels", "dtype", "observed")
_OF_SITES = ("site", *_DESCRIBED, "hist", "channel_hist")
_MOMENTS = tuple(one.name for one in derived.STATISTICS.values() if one.column in MOMENTS)
_NON_FINITE = ("nan", "posinf", "neginf")
STATISTICS = (*_OF_SITES, *TALLIES, *_MOMENTS)
"""What is compared. Beside the statistics of ChannelStats these are "site", whether the record has
the site; "channels", how many; "dtype"; "observed", calls merged; "hist" and "channel_hist", how
many values lie in bins where the other record has fewer."""

_UNLIKE = tuple(map(STATISTICS.index, ("site", "channels", *_NON_FINITE)))


class Difference(NamedTuple):
    """One statistic of one site, in the channel where the statistic differs most."""

    name: str
    kind: str
    statistic: str
    channel: int | None
    """The channel; None if the statistic has no channels."""
    a: Any
    b: Any
    relative: float
    """The distance, as in `Comparison.relative`."""


class Side(NamedTuple):
    """N tensors of one step or more, as one of two runs has them."""

    places: Int64
    """int64 [N]: where each is in a `Comparison`."""
    channels: Int64
    dtype: NDArray[Any]
    observed: Int64
    tensors: Table
    of_channels: Table | None
    """The channels of all tensors; None to compare the tensors alone."""
    bins: Bins | None
    channel_bins: Bins | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """How two runs differ in T steps and S sites, which are n = T * S places.

    Place t * S + s is of ``steps[t]`` and ``keys[s]``, the name and kind of a site. With one step,
    keys are in the order in which the first record saw the sites; sites that only the second record
    has come last.
    relative: float64 [n, len(STATISTICS)], the greatest distance over a site's channels, 0 if all
    are equal. The distance of a moment is relative to the greater magnitude, of a mean to the
    greater rms; of a count to the number of the channel's values, of a histogram to the number of
    its values. It is inf for all else, for NaNs or infinities beside none, and for a finite moment
    beside one that is not finite.
    """

    steps: Sequence[int]
    keys: list[Key]
    relative: Float64
    rms: Float64
    """float64 [n, 2]: the rms of the whole tensor in each record; NaN where there is none."""
    distance: Float64
    """float64 [n]: how far apart the tensors are in size and shape: ``abs(log(rms of B / rms of
    A))``, plus the differences of their means and of their mean magnitudes, each in units of its
    tensor's rms. It is inf where only one record has the site or has NaNs or infinities in it,
    where only one rms is 0, or where the numbers of channels differ."""
    moved: Float64
    """float64 [n]: the share of the tensor's values that lie in other bins; NaN without bins that
    both sides have."""
    there: NDArray[np.bool_]
    """bool [n]: whether either run has the site in the step."""
    _starts: Int64  # of each place's channels in the arrays of _channels
    _channels: dict[str, tuple[NDArray[Any], NDArray[Any], Float64]]  # of a, of b, distances
    _places: dict[str, tuple[NDArray[Any], NDArray[Any]]]  # of a, of b: [n] each

    def __bool__(self) -> bool:
        return bool(self.relative.any())

    def of(self, place: int) -> list[Difference]:
        return [self.at(place, int(i)) for i in np.flatnonzero(self.relative[place])]

    def at(self, place: int, statistic: int) -> Difference:
        """The difference of one statistic of a site."""
        what, channel = STATISTICS[statistic], None
        if what in _OF_SITES:
            a, b = (values[place] for values in self._places[what])
            if what in ("hist", "channel_hist"):  # of samples, estimates
                a, b = round(a), round(b)
        else:
            of_a, of_b, distances = self._channels[what]
            first, end = self._starts[place : place + 2]
            channel = int(distances[first:end].argmax())
            a, b = of_a[first + channel], of_b[first + channel]
        a, b = (x.item() if isinstance(x, np.generic) else x for x in (a, b))
        relative = float(self.relative[place, statistic])
        return Difference(*self.keys[place % len(self.keys)], what, channel, a, b, relative)


def between(
    a: StepRecord, b: StepRecord, rtol: float = 0.0, called: Callable[[str], str] = str
) -> Comparison:
    """`differences` of two records of one step; `called` says what a site of B is called in A."""
    keys_b = [(called(name), kind) for name, kind in b]
    numbers = {key: i for i, key in enumerate(InOrder((a, keys_b)))}

    def side(record: StepRecord, keys: Iterable[Key]) -> Side:
        return Side(
            np.array([numbers[key] for key in keys], np.int64),
            np.array([site.channels for site in record.sites], np.int64),
            np.array([site.dtype for site in record.sites], object),
            record.observed,
            record.tensors,
            record.channels,
            record.bins,
            record.channel_bins,
        )

    return differences([a.step], list(numbers), side(a, a), side(b, keys_b), rtol)


def differences(
    steps: Sequence[int], keys: list[Key], a: Side, b: Side, rtol: float = 0.0
) -> Comparison:
    """Compare integers exactly, moments to `rtol`, histograms where both have the same bins; loops
    over no sites.

    Where one side has no channels, tensors are compared.

    Raises:
        ValueError: rtol is not 0 or more.
    """
    if not rtol >= 0:
        raise ValueError(f"rtol = {rtol}: expected 0 or more")
    n = len(steps) * len(keys)
    in_a, in_b = np.full((2, n), -1)  # the rows of each place
    in_a[a.places], in_b[b.places] = np.arange(len(a.places)), np.arange(len(b.places))
    relative = np.zeros((len(STATISTICS), n)).T  # written statistic by statistic
    found: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {"site": (in_a >= 0, in_b >= 0)}
    relative[(in_a < 0) != (in_b < 0), STATISTICS.index("site")] = np.inf
    both = np.flatnonzero((in_a >= 0) & (in_b >= 0))
    for what in _DESCRIBED:
        of_a, of_b = getattr(a, what)[in_a[both]], getattr(b, what)[in_b[both]]
        relative[both, STATISTICS.index(what)] = np.where(of_a == of_b, 0.0, np.inf)
        found[what] = _spread(of_a, both, n), _spread(of_b, both, n)
    both = both[found["channels"][0][both] == found["channels"][1][both]]

    rows_a, rows_b = in_a[both], in_b[both]
    x, y = _chosen(a.tensors, rows_a), _chosen(b.tensors, rows_b)
    widths = np.ones(len(both), np.int64)
    moved = np.full(n, np.nan)
    if a.bins is not None and a.bins == b.bins:
        only_a, only_b, share = _moved(x, y, a.bins, both, offsets_of(widths), n)
        found["hist"] = only_a, only_b
        moved[both] = share[both]
        relative[:, STATISTICS.index("hist")] = share
    if a.of_channels is not None and b.of_channels is not None:
        widths = a.channels[rows_a]
        x = _chosen(a.of_channels, rows_of(offsets_of(a.channels), rows_a))
        y = _chosen(b.of_channels, rows_of(offsets_of(b.channels), rows_b))
        if a.channel_bins is not None and a.channel_bins == b.channel_bins:
            bins, offsets = a.channel_bins, offsets_of(widths)
            only_a, only_b, share = _moved(x, y, bins, both, offsets, n)
            found["channel_hist"] = only_a, only_b
            relative[:, STATISTICS.index("channel_hist")] = share
    channels = _compare_rows(x, y)
    for what, (_, _, distances) in channels.items():
        worst = reduce_runs(np.maximum, distances, offsets_of(widths), 0.0)
        limit = rtol if what in _MOMENTS else 0.0
        relative[both, STATISTICS.index(what)] = np.where(worst > limit, worst, 0.0)

    sizes = np.full((2, 3, n), np.nan)
    for of_side, side in zip(sizes, (a, b), strict=True):
        of_side[:, side.places] = _size_and_shape(side.tensors)
    distance = _apart(*sizes)
    distance[np.isinf(relative[:, _UNLIKE]).any(1)] = np.inf
    starts = offsets_of(_spread(widths, both, n))
    there = (in_a >= 0) | (in_b >= 0)
    rms = sizes[:, 0].T
    return Comparison(steps, keys, relative, rms, distance, moved, there, starts, channels, found)


def _size_and_shape(table: Table) -> Float64:
    """[3, rows]: the rms; the mean and the mean magnitude in units of it."""
    rms, mean = (statistic(name, table.column) for name in ("rms", "mean"))
    with np.errstate(all="ignore"):
        return np.stack([rms, mean / rms, table.column("l1") / (table.column("count") * rms)])


def _apart(a: Float64, b: Float64) -> Float64:
    """`Comparison.distance` of tensors of these sizes and shapes, [3, n] each."""
    with np.errstate(all="ignore"):
        distance: Float64 = np.abs(np.log(b[0] / a[0]))
    distance[(a[0] == b[0]) | (np.isnan(a[0]) & np.isnan(b[0]))] = 0.0
    distance[np.isnan(distance)] = np.inf
    distance += np.nan_to_num(np.abs(a[1:] - b[1:])).sum(0)
    return distance


def _spread(values: NDArray[Any], places: Int64, n: int) -> NDArray[Any]:
    """[n]: `values` at these places, zeros elsewhere."""
    spread = np.zeros(n, values.dtype)
    spread[places] = values
    return spread


def _chosen(table: Table, rows: Int64) -> Table:
    """These rows; the table itself where they are all of its rows in order, as they mostly are."""
    return table if np.array_equal(rows, np.arange(table.rows)) else table.chosen(rows)


def _compare_rows(a: Table, b: Table) -> dict[str, tuple[NDArray[Any], NDArray[Any], Float64]]:
    """The values of every statistic in both tables, row by row, and their distances."""
    out: dict[str, tuple[NDArray[Any], NDArray[Any], Float64]] = {}
    # A zero is a finite value, which was counted already.
    values = np.maximum(*(t.tallies.sum(0) - t.tallies[ZERO] for t in (a, b)))
    for what in TALLIES:
        x, y = a.column(what), b.column(what)
        share: Float64 = np.abs(x - y) / np.maximum(values, 1)
        if what in _NON_FINITE:
            share[(x > 0) != (y > 0)] = np.inf
        out[what] = x, y, share
    for what in _MOMENTS:
        x, y = statistic(what, a.column), statistic(what, b.column)
        by = "rms" if what == "mean" else what
        scale = np.fmax(*(np.abs(statistic(by, t.column)) for t in (a, b)))
        out[what] = x, y, _distance(x, y, scale)
    return out


def _distance(x: Float64, y: Float64, scale: Float64) -> Float64:
    """|x - y| / scale: 0 only for equal values, NaN equals NaN; inf if the quotient is NaN."""
    with np.errstate(all="ignore"):
        distance: Float64 = np.fmax(np.abs(x - y) / scale, np.finfo(np.float64).tiny)
        distance[~np.isfinite(x - y)] = np.inf
    distance[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    return distance


def _moved(
    a: Table, b: Table, bins: Bins, places: Int64, offsets: Int64, n: int
) -> tuple[Float64, Float64, Float64]:
    """[n] each: the values that only `a`, and only `b`, has in a slot; their share.

    The rows ``offsets[i]:offsets[i + 1]`` are of places[i].
    """
    hists = [
        estimated(table.hist, table.tallies[COUNT]) if is_sampled(bins) else table.hist
        for table in (a, b)
    ]
    shared = reduce_runs(np.add, _shared(hists[0], hists[1], bins.slots), offsets, 0)
    totals = [
        reduce_runs(np.add, reduce_runs(np.add, one.counts, one.offsets, 0), offsets, 0)
        for one in hists
    ]
    only = [total - shared for total in totals]
    share = np.maximum(*only) / np.maximum(1, np.maximum(*totals))
    return _spread(only[0], places, n), _spread(only[1], places, n), _spread(share, places, n)


def _shared(a: SparseCounts, b: SparseCounts, slots: int) -> NDArray[Any]:
    """[rows]: how many values lie in the same slots of a row in both."""
    in_a, in_b = (
        np.repeat(np.arange(each.rows), np.diff(each.offsets)) * slots + each.slots
        for each in (a, b)
    )
    both, i, j = np.intersect1d(in_a, in_b, assume_unique=True, return_indices=True)
    return np.bincount(both // slots, np.minimum(a.counts[i], b.counts[j]), a.rows)
