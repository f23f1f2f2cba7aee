"""sampled(): the histograms and channels of some steps of a run, each as it was recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64, Integers
from hookstats.runs.run import Run
from hookstats.show.overview import Overview
from hookstats.show.progress import track
from hookstats.stats.derived import columns_of, dead, statistic

Bool = NDArray[np.bool_]

_MOST = 240  # about as many as a chart has room for
_LEAST = 80
_CELLS = 18_000  # the aim for sites * steps, which keeps a page of many sites small


@dataclass(frozen=True)
class ChannelColumns:
    """The C channels of one site in K steps."""

    rms: Float64
    """float64 [K, C]: NaN where there are no finite values."""
    dead: Bool
    """bool [K, C]: see `insight.dead`."""
    nonfinite: Bool
    """bool [K, C]: there is a NaN or an infinity."""

    @property
    def known(self) -> Bool:
        """bool [K]: whether there is any value; not where steps have whole tensors alone."""
        known: Bool = np.any(self.nonfinite | ~np.isnan(self.rms), axis=1)
        return known


@dataclass(frozen=True)
class Sampled:
    """K steps of a run, with the S sites of its overview."""

    steps: tuple[int, ...]
    """[K]: ascending."""
    channels: tuple[ChannelColumns | None, ...]
    """[S]: None where the number of channels changed from step to step."""
    least: Float64
    """float64 [S, K]: the least finite value; +inf where there is none."""
    greatest: Float64
    """float64 [S, K]: the greatest finite value; -inf where there is none."""
    _rows: Int64  # [S, K]: the row of a site in the histograms of a step; -1 where it has none
    _hists: tuple[tuple[Int64, Integers, Integers], ...]  # [K]: as of SparseCounts

    def hist(self, s: int) -> list[tuple[Integers, Integers]]:
        """[K]: the nonzero slots of the whole tensor's histogram and their counts; none where the
        step did not record the site, or there are no bins."""
        empty: Integers = np.zeros(0, np.int64)
        found = [(empty, empty)] * len(self.steps)
        for k in np.flatnonzero(self._rows[s] >= 0).tolist():
            offsets, slots, counts = self._hists[k]
            row = self._rows[s, k]
            span = slice(offsets[row], offsets[row + 1])
            found[k] = slots[span], counts[span]
        return found


def choose_steps(
    steps: Sequence[int],
    sites: int,
    apart: Collection[int] = (),
    detailed: Collection[int] = (),
) -> list[int]:
    """At most 80 to 240 steps at equal distances, the first and the last among them, and those
    apart with the steps beside them; the more sites there are, the fewer. Of the `detailed` steps
    there are as many, and they stand in for the others within half a distance."""
    most = min(max(_CELLS // max(1, sites), _LEAST), _MOST)
    places = {step: i for i, step in enumerate(steps)}
    there = _evenly(np.array([places[step] for step in detailed if step in places], int), most)
    even = _evenly(np.arange(len(steps)), most)
    if len(there):
        nearest = there[np.searchsorted((there[1:] + there[:-1]) / 2, even[1:-1])]
        is_far = np.abs(nearest - even[1:-1]) > len(steps) / most / 2
        even = np.concatenate((even[[0, -1]], even[1:-1][is_far], there))
    near = {places[step] + k for step in apart if step in places for k in (-1, 0, 1)}
    return [steps[i] for i in sorted({*even.tolist(), *near}) if 0 <= i < len(steps)]


def _evenly(values: Int64, most: int) -> Int64:
    """At most so many of some values, the first and the last among them."""
    chosen = np.linspace(0, max(0, len(values) - 1), min(most, len(values))).round().astype(int)
    found: Int64 = values[chosen]
    return found


def sampled(
    run: Run,
    view: Overview,
    apart: Collection[int] = (),
) -> Sampled:
    """Read the steps of `choose_steps` from a run.

    view: the overview of the run.
    """
    steps = choose_steps(view.steps, len(view.sites), apart, run.steps_with_channels)
    size, count = len(view.sites), len(steps)
    rows = {(site.name, site.kind): s for s, site in enumerate(view.sites)}
    row_of, hists = np.full((size, count), -1), []
    least, greatest = np.full((size, count), np.inf), np.full((size, count), -np.inf)
    channels = [
        None if s in view.uneven else _nothing(count, site.channels)
        for s, site in enumerate(view.sites)
    ]
    for k, step in enumerate(track(steps, "reading channels")):
        record = run[step]
        here = np.array([rows[key] for key in record], np.int64)
        whole = record.tensors.column
        least[here, k], greatest[here, k] = whole("min"), whole("max")
        _take_channels(record, k, here, channels)
        if run.bins is not None:
            row_of[here, k] = np.arange(len(here))
            hist = record.hist
            hists.append((hist.offsets, _small(hist.slots), _small(hist.counts)))
    return Sampled(tuple(steps), tuple(channels), least, greatest, row_of, tuple(hists))


def _small(values: Integers) -> Integers:
    """A copy, as what is stored beside the values would stay in memory, in the fewest bytes."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def _nothing(steps: int, channels: int) -> ChannelColumns:
    shape = steps, channels
    return ChannelColumns(np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape, bool))


def _take_channels(
    record: StepRecord, k: int, rows: Int64, channels: Sequence[ChannelColumns | None]
) -> None:
    """Put the channels of a record into place `k`; `rows` are those of its sites."""
    state = columns_of(record.moments, record.tallies)
    rms, died = statistic("rms", state), dead(state)
    bad = (state("nan") + state("posinf") + state("neginf")) > 0
    bounds = record.offsets.tolist()
    for i, s in enumerate(rows.tolist()):
        columns, span = channels[s], slice(bounds[i], bounds[i + 1])
        if columns is not None and (record.channels is not None or record.sites[i].channels == 1):
            columns.rms[k], columns.dead[k], columns.nonfinite[k] = rms[span], died[span], bad[span]
