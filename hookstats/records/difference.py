"""compare(): where two step records differ, by site and statistic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64, SparseCounts, rows_of
from hookstats.records.weighing import estimated
from hookstats.stats import derived
from hookstats.stats.bins import Bins, is_sampled
from hookstats.stats.derived import columns_of, statistic
from hookstats.stats.merge import offsets_of
from hookstats.stats.state import COUNT, MOMENTS, TALLIES, ZERO

_OF_SITES = ("site", "channels", "dtype", "observed", "hist", "channel_hist")
_MOMENTS = tuple(one.name for one in derived.STATISTICS.values() if one.column in MOMENTS)
_NON_FINITE = ("nan", "posinf", "neginf")
STATISTICS = (*_OF_SITES, *TALLIES, *_MOMENTS)
"""What is compared. Beside the statistics of ChannelStats these are "site", whether the record has
the site; "channels", how many; "dtype"; "observed", calls merged; "hist" and "channel_hist", how
many values lie in bins where the other record has fewer."""


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


@dataclass(frozen=True, eq=False)
class Comparison:
    """How two records with n sites between them differ.

    keys: (name, kind) of every site, in the order in which the first record saw the sites; sites
    that only the second record has come last.
    relative: float64 [n, len(STATISTICS)], the greatest distance over a site's channels, 0 if all
    are equal. The distance of a moment is relative to the greater magnitude, of a mean to the
    greater rms; of a count to the number of the channel's values, of a histogram to the number of
    its values. It is inf for all else, for NaNs or infinities beside none, and for a finite moment
    beside one that is not finite.
    """

    keys: list[Key]
    relative: Float64
    rms: Float64
    """float64 [n, 2]: the rms of the whole tensor in each record; NaN where there is none."""
    moved: Float64
    """float64 [n]: the share of the tensor's values that lie in other bins; NaN without bins that
    both records have."""
    _starts: Int64  # of each site's channels in the arrays of _channels
    _channels: dict[str, tuple[NDArray[Any], NDArray[Any], Float64]]  # of a, of b, distances
    _sites: dict[tuple[int, str], tuple[Any, Any]]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.relative.any())

    def of(self, site: int) -> list[Difference]:
        """Every statistic of a site that differs."""
        return [self.at(site, int(i)) for i in np.flatnonzero(self.relative[site])]

    def at(self, site: int, statistic: int) -> Difference:
        """The difference of one statistic of a site."""
        what, channel = STATISTICS[statistic], None
        if what in _OF_SITES:
            a, b = self._sites[site, what]
        else:
            of_a, of_b, distances = self._channels[what]
            first, end = self._starts[site : site + 2]
            channel = int(distances[first:end].argmax())
            a, b = of_a[first + channel].item(), of_b[first + channel].item()
        relative = float(self.relative[site, statistic])
        return Difference(*self.keys[site], what, channel, a, b, relative)


def compare(a: StepRecord, b: StepRecord, rtol: float = 0.0) -> Comparison:
    """Compare integers exactly, moments to `rtol`, histograms where both have the same bins.

    Where one of them has no channels, tensors are compared.

    Raises:
        ValueError: rtol is not 0 or more.
    """
    if not rtol >= 0:
        raise ValueError(f"rtol = {rtol}: expected 0 or more")
    if a.channels is None or b.channels is None:
        a, b = a.without_channels(), b.without_channels()
    in_a, in_b = ({key: i for i, key in enumerate(record)} for record in (a, b))
    keys = list(in_a | in_b)
    relative = np.zeros((len(keys), len(STATISTICS)))
    sites: dict[tuple[int, str], tuple[Any, Any]] = {}
    alike = []  # sites whose channels can be compared
    for n, key in enumerate(keys):
        layout = _compare_layout(a, in_a.get(key), b, in_b.get(key))
        sites.update({(n, what): pair for what, pair in layout.items()})
        if not layout.keys() & {"site", "channels"}:
            alike.append(n)
    for n, what in sites:
        relative[n, STATISTICS.index(what)] = np.inf
    of_a = np.array([in_a[keys[n]] for n in alike], np.int64)
    of_b = np.array([in_b[keys[n]] for n in alike], np.int64)
    owners = np.array(alike, np.int64)
    widths = np.zeros(len(keys), np.int64)
    widths[owners] = np.diff(a.offsets)[of_a]
    starts = offsets_of(widths)
    rows_a, rows_b = rows_of(a.offsets, of_a), rows_of(b.offsets, of_b)

    channels = _compare_channels(a, rows_a, b, rows_b)
    some = np.flatnonzero(widths)
    for what, (_, _, distances) in channels.items():
        limit = rtol if what in _MOMENTS else 0.0
        worst = np.maximum.reduceat(distances, starts[some]) if len(some) else np.zeros(0)
        relative[some, STATISTICS.index(what)] = np.where(worst > limit, worst, 0.0)

    share = np.full(len(keys), np.nan)
    if a.bins is not None and a.bins == b.bins:
        hist_a, hist_b = (_of_all(r.hist, r.bins, r.whole_state[1][:, COUNT]) for r in (a, b))
        moved = _moved(hist_a, of_a, hist_b, of_b, owners, a.bins.slots, len(keys))
        _add_moved("hist", moved, relative, sites)
        share[owners] = moved[2][owners]
    if a.channels is not None and a.channel_bins is not None and a.channel_bins == b.channel_bins:
        owners, slots = np.repeat(np.arange(len(keys)), widths), a.channel_bins.slots
        hist_a, hist_b = (_of_all(r.rows.hist, r.channel_bins, r.tallies[:, COUNT]) for r in (a, b))
        moved = _moved(hist_a, rows_a, hist_b, rows_b, owners, slots, len(keys))
        _add_moved("channel_hist", moved, relative, sites)
    rms = np.stack([_rms(record, known, keys) for record, known in ((a, in_a), (b, in_b))], 1)
    return Comparison(keys, relative, rms, share, starts, channels, sites)


def _rms(record: StepRecord, known: Mapping[Key, int], keys: Sequence[Key]) -> Float64:
    """The rms of each site's whole tensor; NaN where the record has no such site."""
    of_sites = np.append(statistic("rms", columns_of(*record.whole_state)), np.nan)
    found: Float64 = of_sites[[known.get(key, -1) for key in keys]]
    return found


def _compare_layout(
    a: StepRecord, i: int | None, b: StepRecord, j: int | None
) -> dict[str, tuple[Any, Any]]:
    """The differences between descriptions of sites, apart from their values."""
    if i is None or j is None:
        return {"site": (i is not None, j is not None)}
    pairs = {
        "channels": (a.sites[i].channels, b.sites[j].channels),
        "dtype": (a.sites[i].dtype, b.sites[j].dtype),
        "observed": (int(a.observed[i]), int(b.observed[j])),
    }
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def _compare_channels(
    a: StepRecord, rows_a: Int64, b: StepRecord, rows_b: Int64
) -> dict[str, tuple[NDArray[Any], NDArray[Any], Float64]]:
    """The values of every statistic in both records, row by row, and their distances."""
    tallies_a, tallies_b = a.tallies[rows_a], b.tallies[rows_b]
    columns_a = columns_of(a.moments[rows_a], tallies_a)
    columns_b = columns_of(b.moments[rows_b], tallies_b)
    out: dict[str, tuple[NDArray[Any], NDArray[Any], Float64]] = {}
    # A zero is a finite value, which was counted already.
    values = np.maximum(*(np.delete(t, ZERO, 1).sum(1) for t in (tallies_a, tallies_b)))
    for what in TALLIES:
        x, y = columns_a(what), columns_b(what)
        share: Float64 = np.abs(x - y) / np.maximum(values, 1)
        if what in _NON_FINITE:
            share[(x > 0) != (y > 0)] = np.inf
        out[what] = x, y, share
    for what in _MOMENTS:
        x, y = statistic(what, columns_a), statistic(what, columns_b)
        by = "rms" if what == "mean" else what
        scale = np.fmax(*(np.abs(statistic(by, columns)) for columns in (columns_a, columns_b)))
        out[what] = x, y, _distance(x, y, scale)
    return out


def _distance(x: Float64, y: Float64, scale: Float64) -> Float64:
    """|x - y| / scale: 0 only for equal values, NaN equals NaN; inf if the quotient is NaN."""
    with np.errstate(all="ignore"):
        distance: Float64 = np.fmax(np.abs(x - y) / scale, np.finfo(np.float64).tiny)
        distance[~np.isfinite(x - y)] = np.inf
    distance[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    return distance


def _of_all(hist: SparseCounts, bins: Bins | None, values: Int64) -> SparseCounts:
    """The histograms of all values, of sampled ones their estimates."""
    return estimated(hist, values) if is_sampled(bins) else hist


def _moved(
    a: SparseCounts,
    rows_a: Int64,
    b: SparseCounts,
    rows_b: Int64,
    owners: Int64,
    slots: int,
    n: int,
) -> tuple[Int64, Int64, Float64]:
    """For each of n owners: the values that only `a`, and only `b`, has in a slot; their share."""
    entries_a, entries_b = rows_of(a.offsets, rows_a), rows_of(b.offsets, rows_b)
    row = np.arange(len(owners))
    keys_a = np.repeat(row, np.diff(a.offsets)[rows_a]) * slots + a.slots[entries_a]
    keys_b = np.repeat(row, np.diff(b.offsets)[rows_b]) * slots + b.slots[entries_b]
    counts_a, counts_b = a.counts[entries_a], b.counts[entries_b]
    if np.array_equal(keys_a, keys_b):  # as mostly where runs are equal: no sorting
        keys, surplus = keys_a, counts_a - counts_b
    else:
        keys, where = np.unique(np.concatenate((keys_a, keys_b)), return_inverse=True)
        surplus = np.zeros(len(keys), np.result_type(counts_a, counts_b))
        np.add.at(surplus, where, np.concatenate((counts_a, -counts_b)))
    only_a, only_b, total_a, total_b = np.zeros((4, n), surplus.dtype)
    np.add.at(only_a, owners[keys // slots], np.maximum(surplus, 0))
    np.add.at(only_b, owners[keys // slots], np.maximum(-surplus, 0))
    np.add.at(total_a, owners[keys_a // slots], counts_a)
    np.add.at(total_b, owners[keys_b // slots], counts_b)
    share = np.maximum(only_a, only_b) / np.maximum(1, np.maximum(total_a, total_b))
    return only_a, only_b, share


def _add_moved(
    what: str,
    moved: tuple[Int64, Int64, Float64],
    relative: Float64,
    sites: dict[tuple[int, str], tuple[Any, Any]],
) -> None:
    only_a, only_b, share = moved
    relative[:, STATISTICS.index(what)] = share
    for n in np.flatnonzero(share).tolist():
        sites[n, what] = round(only_a[n].item()), round(only_b[n].item())
