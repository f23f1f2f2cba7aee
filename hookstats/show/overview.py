"""overview(): a whole run in a bounded number of columns, each merging neighbouring steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hookstats.records.keys import Key, plain_kind
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.runs.run import Run
from hookstats.stats import state
from hookstats.stats.arguments import check_integer
from hookstats.stats.bins import Bins
from hookstats.stats.derived import columns_of, dead, statistic
from hookstats.stats.printable import printable

Bool = NDArray[np.bool_]
Spans = tuple[tuple[int, int], ...]

_MAX_COLUMNS = 240  # about as many as a screen has room for
_MIN_COLUMNS = 80
_CELLS = 18_000  # the aim for sites * columns, which keeps a report of many sites small


@dataclass(frozen=True)
class ChannelColumns:
    """The C channels of one site in T columns."""

    rms: Float64
    """float64 [T, C]: NaN where there are no finite values."""
    dead: Bool
    """bool [T, C]: dead in every step of the column that had finite values, see `insight.dead`."""
    nonfinite: Bool
    """bool [T, C]: there is a NaN or an infinity."""

    @property
    def known(self) -> Bool:
        """bool [T]: whether there is any value; not where the steps have whole tensors alone."""
        known: Bool = np.any(self.nonfinite | ~np.isnan(self.rms), axis=1)
        return known


@dataclass(frozen=True)
class Overview:
    """S sites in T columns; a column merges all recorded steps of its span.

    Sites are in order of execution; gradients and parameters stand beside their module's output.
    """

    rank: int | None
    """None: all ranks, merged."""
    steps: tuple[int, ...]
    """Every recorded step, ascending."""
    spans: Spans
    """[T]: column t merges ``steps[first:end]``."""
    sites: tuple[SiteInfo, ...]
    """[S]: the sites as the last of their steps recorded them."""
    moments: Float64
    """[T, S, 5]: `state.MOMENTS` of the whole tensor."""
    tallies: Int64
    """[T, S, 5]: `state.TALLIES` of the whole tensor."""
    observed: Int64
    """int64 [T, S]: the number of calls merged; 0 where nothing was recorded."""
    channels: tuple[ChannelColumns | None, ...]
    """[S]: None where the number of channels changed from step to step."""
    bins: Bins | None
    hist: tuple[SparseCounts, ...]
    """[T]: the histograms of the whole tensors; empty without bins."""
    hist_rows: Int64
    """int64 [S]: the row of each site in `hist`; a column that ends before it counted nothing."""


def overview(
    run: Run,
    columns: int | None = None,
    each: Callable[[StepRecord], object] | None = None,
) -> Overview:
    """Merge the steps of a run into at most `columns` columns, and those set apart.

    Every step is read once, in order.

    Args:
        columns: by default 80 to 240; the more sites there are, the fewer.
        each: called with every record, in order, so that other readers need not read them again. A
            step for which `each` returns something true gets a column of its own, so that the
            column shows what was found in that step; of such there are no more than `columns`.
    Raises:
        ValueError: the run has no steps; columns < 1.
    """
    steps = run.steps
    if not steps:
        raise ValueError(f"{printable(str(run.path))}: expected a run with steps, found none yet")
    if columns is None:
        sites = max(1, len(run[steps[-1]]))
        columns = min(max(_CELLS // sites, _MIN_COLUMNS), _MAX_COLUMNS)
    columns = check_integer("columns", columns, 1)
    ends = set(
        np.linspace(0, len(steps), min(columns, len(steps)) + 1).round().astype(int).tolist()
    )
    rows = _Rows()
    bounds, merged = [0], []
    apart = columns  # steps that may still get a column of their own
    column = _Merger(rows, run.bins)
    for i, step in enumerate(steps):
        record = run[step]
        alone = each is not None and bool(each(record)) and apart > 0
        if column.steps and (alone or i in ends):
            bounds.append(i)
            merged.append(column.merged())
            column = _Merger(rows, run.bins)
        column.add(record)
        if alone:
            apart -= 1
            bounds.append(i + 1)
            merged.append(column.merged())
            column = _Merger(rows, run.bins)
    if column.steps:
        bounds.append(len(steps))
        merged.append(column.merged())
    return _join(run, steps, tuple(pairwise(bounds)), rows, merged)


class _Rows:
    """The row of each site in the overview, and the rows of its channels."""

    def __init__(self) -> None:
        self.sites: list[SiteInfo] = []  # as recorded last
        self.channels: list[slice] = []  # the rows of each, as recorded first; none until then
        self.of_channels = 0  # all of these
        self.uneven: set[int] = set()  # the sites whose number of channels changed
        self._index: dict[Key, int] = {}
        self._known: dict[tuple[SiteInfo, ...], tuple[Int64, Int64, Int64]] = {}

    def of(self, sites: tuple[SiteInfo, ...]) -> tuple[Int64, Int64, Int64]:
        """The rows of the sites; the record's channels that have a place; these places."""
        if sites not in self._known:
            self._known[sites] = self._place(sites)
        return self._known[sites]

    def _place(self, sites: tuple[SiteInfo, ...]) -> tuple[Int64, Int64, Int64]:
        rows, taken, places = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        first = 0
        for site in sites:
            row = self._index.setdefault((site.name, site.kind), len(self._index))
            if row == len(self.sites):
                self.sites.append(site)
                self.channels.append(slice(0, 0))
            if not site.merged or self.sites[row].merged:  # the tensor's row has no dimension
                self.sites[row] = site
            rows.append(row)
            if not site.merged:
                span = self._rows_of(row, site.channels)
                if span.stop - span.start == site.channels:
                    taken.append(np.arange(first, first + site.channels))
                    places.append(np.arange(span.start, span.stop))
                else:
                    self.uneven.add(row)
            first += site.channels
        return np.array(rows, np.int64), np.concatenate(taken), np.concatenate(places)

    def _rows_of(self, row: int, channels: int) -> slice:
        """The channels' rows of a site, which gets `channels` of them if it has none yet."""
        if self.channels[row] == slice(0, 0):
            self.channels[row] = slice(self.of_channels, self.of_channels + channels)
            self.of_channels += channels
        return self.channels[row]


@dataclass(frozen=True)
class _Column:
    """One column, over the rows that were known when the column ended."""

    moments: Float64
    tallies: Int64
    observed: Int64
    hist: SparseCounts
    channels: Float64
    """float64 [4, R]: per channel the l2 norm, and the number of finite, zero and non-finite
    values, which is exact up to 2**53."""


class _Merger:
    """Merges the records of a column."""

    def __init__(self, rows: _Rows, bins: Bins | None) -> None:
        self.steps = 0
        self._rows = rows
        self._bins = bins
        self._tensors: list[tuple[Int64, Float64, Int64, Int64]] = []
        self._channels = np.zeros((4, rows.of_channels))
        self._counts = np.zeros((len(rows.sites), 0 if bins is None else bins.slots), np.int64)

    def add(self, record: StepRecord) -> None:
        """Take a record."""
        self.steps += 1
        row, taken, place = self._rows.of(record.sites)
        whole = record.whole
        self._tensors.append((row, whole.moments.numpy(), whole.tallies.numpy(), record.observed))
        self._channels = channels = _grown(self._channels, 1, self._rows.of_channels)
        columns = columns_of(record.moments[taken], record.tallies[taken])
        channels[0, place] = np.hypot(channels[0, place], statistic("l2_norm", columns))
        channels[1, place] += columns("count")
        channels[2, place] += columns("zero")
        channels[3, place] += columns("nan") + columns("posinf") + columns("neginf")
        if self._bins is not None:
            self._counts = _grown(self._counts, 0, len(self._rows.sites))
            owner = np.repeat(row, np.diff(record.hist.offsets))
            self._counts[owner, record.hist.slots] += record.hist.counts

    def merged(self) -> _Column:
        """All records that were taken, as one column."""
        size, tensors = len(self._rows.sites), self._tensors
        known = _in_all([moments for _, moments, _, _ in tensors])
        identity = state.IDENTITY[:known]
        moments = np.tile(identity, (len(tensors), size, 1))
        tallies = np.zeros((len(tensors), size, len(state.TALLIES)), np.int64)
        observed = np.zeros(size, np.int64)
        for i, (row, moments_i, tallies_i, observed_i) in enumerate(tensors):
            moments[i, row], tallies[i, row] = moments_i[:, :known], tallies_i
            observed[row] += observed_i
        both = state.combine(torch.from_numpy(moments), torch.from_numpy(tallies))
        counts = SparseCounts.from_dense(_grown(self._counts, 0, size))
        return _Column(both[0].numpy(), both[1].numpy(), observed, counts, self._channels)


def _join(
    run: Run, steps: list[int], spans: Spans, rows: _Rows, columns: list[_Column]
) -> Overview:
    """The overview of these columns, the sites in order of execution."""
    size = len(rows.sites)
    order = execution_order([(site.name, site.kind) for site in rows.sites])
    channels = np.stack([_grown(column.channels, 1, rows.of_channels) for column in columns])
    norm, count, zero, nonfinite = channels.transpose(1, 0, 2)
    died = dead({"count": count, "zero": zero}.__getitem__)
    with np.errstate(invalid="ignore"):
        rms = norm / np.sqrt(count)
    hists = [c.hist for c in columns]
    known = _in_all([c.moments for c in columns])
    moments = [_grown(c.moments[:, :known], 0, size, state.IDENTITY[:known]) for c in columns]
    return Overview(
        rank=run.rank,
        steps=tuple(steps),
        spans=spans,
        sites=tuple(rows.sites[i] for i in order),
        moments=np.stack(moments)[:, order],
        tallies=np.stack([_grown(c.tallies, 0, size) for c in columns])[:, order],
        observed=np.stack([_grown(c.observed, 0, size) for c in columns])[:, order],
        channels=tuple(
            None
            if i in rows.uneven
            else ChannelColumns(rms[:, span], died[:, span], nonfinite[:, span] > 0)
            for i, span in ((i, rows.channels[i]) for i in order)
        ),
        bins=run.bins,
        hist=tuple(hists),
        hist_rows=np.array(order, np.int64),
    )


def _in_all(moments: Sequence[Float64]) -> int:
    """How many columns all have: ranks may keep the higher moments or not."""
    return min(int(each.shape[1]) for each in moments)


def _grown(array: NDArray[Any], axis: int, size: int, fill: Any = 0) -> NDArray[Any]:
    """`array` with `size` entries along the axis; new entries are `fill`."""
    if array.shape[axis] == size:
        return array
    shape = list(array.shape)
    shape[axis] = size
    out = np.empty(shape, array.dtype)
    out[...] = fill
    out[tuple(slice(n) for n in array.shape)] = array
    return out


def execution_order(keys: Sequence[Key]) -> list[int]:
    """The indices of keys, ordered by when the module first gave an output or took an input.

    Gradients and parameters arrive in any order: they stand where the values of their module do.
    Modules without a recorded value come last, in the order of the keys.
    """
    first: dict[str, int] = {}
    for i, (name, kind) in enumerate(keys):
        if plain_kind(kind) in ("output", "input"):
            first.setdefault(name, i)

    def place(i: int) -> tuple[int, int]:
        name, kind = keys[i]
        if plain_kind(kind) in ("param", "param_grad"):
            name = name.rpartition(".")[0]
        return first.get(name, len(keys)), i

    return sorted(range(len(keys)), key=place)
