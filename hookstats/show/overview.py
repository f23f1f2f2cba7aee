"""overview(): a whole run in a bounded number of columns, each merging neighbouring steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hookstats.records.groups import per_site
from hookstats.records.keys import Key, plain_kind
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.runs.run import Run
from hookstats.stats import state
from hookstats.stats.bins import Bins

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
    """bool [T, C]: there are finite values, and every one of them is zero."""
    nonfinite: Bool
    """bool [T, C]: there is a NaN or an infinity."""


@dataclass(frozen=True)
class Overview:
    """S sites in T columns; a column merges all recorded steps of its span.

    Sites are in order of execution; gradients and parameters stand beside their module's output.
    """

    rank: int
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
    rank: int = 0,
    columns: int | None = None,
    each: Callable[[StepRecord], object] | None = None,
) -> Overview:
    """Merge the steps that `rank` recorded into at most `columns` columns.

    Every step is read once, in order.

    Args:
        columns: by default 80 to 240; the more sites there are, the fewer.
        each: called with every record, in order, so that other readers need not read them again.
    Raises:
        ValueError: `rank` recorded no step; columns < 1.
    """
    steps = run.steps_of(rank)
    if not steps:
        raise ValueError(f"{run.path}: expected a run with steps of rank {rank}, found none yet")
    if columns is None:
        sites = max(1, len(run.record(steps[-1], rank)))
        columns = min(max(_CELLS // sites, _MIN_COLUMNS), _MAX_COLUMNS)
    if columns < 1:
        raise ValueError(f"columns = {columns}: expected 1 or more")
    bounds = np.linspace(0, len(steps), min(columns, len(steps)) + 1).round().astype(int).tolist()
    spans = tuple(pairwise(bounds))
    rows = _Rows()

    def records(first: int, end: int) -> Iterator[StepRecord]:
        for step in steps[first:end]:
            record = run.record(step, rank)
            if each is not None:
                each(record)
            yield record

    merged = [_merge(records(first, end), rows, run.bins) for first, end in spans]
    return _join(run, rank, steps, spans, rows, merged)


class _Rows:
    """The row of each site in the overview, and the rows of its channels."""

    def __init__(self) -> None:
        self.sites: list[SiteInfo] = []  # as recorded last
        self.channels: list[int] = []  # as recorded first
        self.offsets = [0]  # site s owns the channels' rows offsets[s]:offsets[s + 1]
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
                self.channels.append(site.channels)
                self.offsets.append(self.offsets[-1] + site.channels)
            self.sites[row] = site
            rows.append(row)
            if site.channels == self.channels[row]:
                taken.append(np.arange(first, first + site.channels))
                places.append(np.arange(self.offsets[row], self.offsets[row + 1]))
            else:
                self.uneven.add(row)
            first += site.channels
        return np.array(rows, np.int64), np.concatenate(taken), np.concatenate(places)


@dataclass(frozen=True)
class _Column:
    """One column, over the rows that were known when the column ended."""

    moments: Float64
    tallies: Int64
    observed: Int64
    hist: SparseCounts
    channels: Float64
    """float64 [4, R]: per channel the sum of squares, and the number of finite, zero and non-finite
    values, which is exact up to 2**53."""


def _merge(records: Iterable[StepRecord], rows: _Rows, bins: Bins | None) -> _Column:
    tensors: list[tuple[Int64, Float64, Int64, Int64]] = []
    channels = np.zeros((4, rows.offsets[-1]))
    counts = np.zeros((len(rows.sites), 0 if bins is None else bins.slots), np.int64)
    for record in records:
        row, taken, place = rows.of(record.sites)
        whole = per_site(record.moments, record.tallies, record.offsets)
        tensors.append((row, *whole, record.observed))
        channels = _grown(channels, 1, rows.offsets[-1])
        moments, tallies = record.moments[taken], record.tallies[taken]
        count = tallies[:, state.COUNT]
        with np.errstate(over="ignore"):
            squares = moments[:, state.M2] + count * np.square(moments[:, state.MEAN])
        channels[0, place] += np.where(count > 0, squares, 0.0)
        channels[1, place] += count
        channels[2, place] += tallies[:, state.ZERO]
        channels[3, place] += tallies[:, [state.NAN, state.POSINF, state.NEGINF]].sum(1)
        if bins is not None:
            counts = _grown(counts, 0, len(rows.sites))
            owner = np.repeat(row, np.diff(record.hist.offsets))
            counts[owner, record.hist.slots] += record.hist.counts
    size = len(rows.sites)
    moments = np.tile(state.IDENTITY, (len(tensors), size, 1))
    tallies = np.zeros((len(tensors), size, len(state.TALLIES)), np.int64)
    observed = np.zeros(size, np.int64)
    for i, (row, moments_i, tallies_i, observed_i) in enumerate(tensors):
        moments[i, row], tallies[i, row] = moments_i, tallies_i
        observed[row] += observed_i
    merged = state.combine(torch.from_numpy(moments), torch.from_numpy(tallies))
    return _Column(
        merged[0].numpy(), merged[1].numpy(), observed, SparseCounts.from_dense(counts), channels
    )


def _join(
    run: Run, rank: int, steps: list[int], spans: Spans, rows: _Rows, columns: list[_Column]
) -> Overview:
    """The overview of these columns, the sites in order of execution."""
    size = len(rows.sites)
    order = execution_order([(site.name, site.kind) for site in rows.sites])
    offsets = np.array(rows.offsets)
    channels = np.stack([_grown(column.channels, 1, rows.offsets[-1]) for column in columns])
    squares, count, zero, nonfinite = channels.transpose(1, 0, 2)
    dead = (count > 0) & (zero == count)
    with np.errstate(invalid="ignore"):
        rms = np.sqrt(squares / count)
    hists = [c.hist for c in columns]
    return Overview(
        rank=rank,
        steps=tuple(steps),
        spans=spans,
        sites=tuple(rows.sites[i] for i in order),
        moments=np.stack([_grown(c.moments, 0, size, state.IDENTITY) for c in columns])[:, order],
        tallies=np.stack([_grown(c.tallies, 0, size) for c in columns])[:, order],
        observed=np.stack([_grown(c.observed, 0, size) for c in columns])[:, order],
        channels=tuple(
            None
            if i in rows.uneven
            else ChannelColumns(rms[:, span], dead[:, span], nonfinite[:, span] > 0)
            for i, span in ((i, slice(*offsets[i : i + 2])) for i in order)
        ),
        bins=run.bins,
        hist=tuple(hists),
        hist_rows=np.array(order, np.int64),
    )


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
