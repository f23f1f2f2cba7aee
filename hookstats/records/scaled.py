"""scaled(): a record with the gradients of modules' tensors multiplied by a factor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import plain_kind
from hookstats.records.record import StepRecord, Table
from hookstats.records.sparse import Float64, Int32, Int64, SparseCounts
from hookstats.stats.bins import Bins, LogBins
from hookstats.stats.state import M2, MAX, MIN, MOMENTS

SCALED = ("grad_output", "grad_input")
"""The kinds that depend on how a loss is averaged over ranks and micro-batches, while `param_grad`
is what the optimizer uses."""


def scaled(record: StepRecord, factor: float) -> StepRecord:
    """The record of gradients `factor` times as large, of the kinds `SCALED`; factor > 0.

    The values of a bin are counted in the bin that then has its middle: exact for LogBins where
    `factor` is a power of two. Values beyond all bins count in the middle of where they can be.
    """
    chosen = np.array([plain_kind(site.kind) in SCALED for site in record.sites], bool)
    if factor == 1 or not chosen.any():
        return record
    channels = record.channels
    if channels is not None:
        rows = np.repeat(chosen, np.diff(record.offsets))
        channels = _scaled(channels, rows, factor, record.channel_bins)
    tensors = _scaled(record.tensors, chosen, factor, record.bins)
    return replace(record, tensors=tensors, channels=channels)


def _scaled(table: Table, chosen: NDArray[np.bool_], factor: float, bins: Bins | None) -> Table:
    factors = np.full(len(MOMENTS), factor)
    factors[M2] = factor**2
    with np.errstate(over="ignore"):
        moments = np.where(chosen, table.moments * factors[:, None], table.moments)
    hist = table.hist
    if bins is not None:
        hist = _moved(hist, bins, chosen, table.moments[MIN], table.moments[MAX], factor)
    return Table(moments, table.tallies, hist)


def _moved(
    hist: SparseCounts,
    bins: Bins,
    chosen: NDArray[np.bool_],
    low: Float64,
    high: Float64,
    factor: float,
) -> SparseCounts:
    """The chosen histograms of values `factor` times as large; the values of row r are in
    low[r]..high[r]."""
    row = np.repeat(np.arange(hist.rows), np.diff(hist.offsets))
    moves = chosen[row]
    row, old = row[moves], hist.slots[moves]
    bounds = np.concatenate(([-np.inf], bins.bounds(), [np.inf]))
    left = np.clip(bounds[old], low[row], high[row])
    right = np.clip(bounds[old + 1], low[row], high[row])
    slots = hist.slots.copy()
    slots[moves] = _slots_of(bins, (left / 2 + right / 2) * factor)
    moved = SparseCounts(hist.offsets, slots, hist.counts)
    return moved.added(np.arange(hist.rows), hist.rows)


def _slots_of(bins: Bins, values: Float64) -> Int32:
    edges = bins.bounds()
    slots: Int64 = np.searchsorted(edges, values, "right")
    if isinstance(bins, LogBins):
        slots = np.where(values < 0, np.searchsorted(edges, values, "left"), slots)
        slots = np.where(values == 0, bins.slots // 2, slots)
    else:
        slots = np.where(values == edges[-1], bins.bins, slots)
    return slots.astype(np.int32)
