"""coarsen(), below(): a histogram in fewer bins, and how many of its values lie below a number."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hookstats.records.sparse import Float64, Int64
from hookstats.stats.bins import Bins, LogBins
from hookstats.stats.histogram import Histogram
from hookstats.stats.lazy_torch import torch

_OCTAVES = 16
"""The number of octaves below the greatest magnitude that matter more than resolution."""


def coarsen(hist: Histogram, most: int) -> tuple[Int64, Float64]:
    """The histogram of one tensor in `most` bins or fewer, by merging neighbouring bins.

    For tools that cannot take thousands of bins.

    Counts stay exact: the edges are some of the old edges, except that the underflow begins at min
    and the overflow ends at max. Empty bins are left out at both ends. LogBins keep their
    resolution for the greatest magnitudes, and all smaller values, with the zeros, become one bin
    around zero; if that would leave fewer than 16 octaves, subdivision bits are given up, one by
    one. LinearBins are merged in groups of equal size.

    Args:
        hist: of one channel or tensor (C = 1).
        most: at least 8.
    Returns:
        counts int64 [n] and ascending edges float64 [n + 1], 1 <= n <= most; both empty without
        finite values.
    Raises:
        ValueError: hist has several channels, or most is too small.
    """
    if len(hist) != 1:
        raise ValueError(f"hist has {len(hist)} channels: expected one")
    if most < 8:
        raise ValueError(f"most = {most}: expected 8 or more")
    counts: Int64 = hist.slot_counts[0].numpy()
    occupied = np.flatnonzero(counts)
    if not len(occupied):
        return np.empty(0, np.int64), np.empty(0)
    first, last = int(occupied[0]), int(occupied[-1])
    if isinstance(hist.bins, LogBins):
        cuts = _log_cuts(hist.bins, first, last, most)
    else:
        cuts = np.arange(first, last + 1, -(-(last + 1 - first) // most))
        cuts = np.append(cuts, last + 1)
    bounds = _bounds(hist.bins)[cuts]
    if cuts[0] == 0:
        bounds[0] = float(hist.min[0])
    if cuts[-1] == len(counts):
        bounds[-1] = float(hist.max[0])
    return np.add.reduceat(counts[: cuts[-1]], cuts[:-1]), bounds


def _log_cuts(bins: LogBins, first: int, last: int, most: int) -> Int64:
    """The first slot of each merged bin, and the slot after the last."""
    zero = bins.slots // 2
    small = int(bins.min_exponent > -127)  # the bin next to zero is of no octave
    farthest = max(last - zero, zero - first) - small
    sides = max((first < zero) + (last > zero), 1)
    room = (most - 1) // sides
    bits = bins.subdivision_bits  # less the log2 of how many old bins make a new one
    while bits and farthest > room << (bins.subdivision_bits - bits) and room >> bits < _OCTAVES:
        bits -= 1
    width = 1 << (bins.subdivision_bits - bits)
    outer = -(-farthest // width)
    inner = max(outer - room, 1)  # the zeros have no width
    away = np.arange(inner, max(outer, inner) + 1) * width + small
    cuts = np.concatenate((zero - away[::-1], zero + 1 + away)).clip(0, bins.slots)
    used = slice(
        np.searchsorted(cuts, first, "right") - 1, np.searchsorted(cuts, last, "right") + 1
    )
    return cuts[used]


@lru_cache(maxsize=8)
def _bounds(bins: Bins) -> Float64:
    """Where each slot begins, and where the last one ends: float64 [slots + 1], infinite at both
    ends. The array is shared: never write to it.
    """
    edges: Float64 = bins.bounds()
    return np.concatenate(([-np.inf], edges, [np.inf]))


class Below(NamedTuple):
    """The number of counted values below a threshold, float64 [C, K]: at least `low`, at most
    `high`.

    The two are equal where the threshold is an edge of a bin. `estimate` lies between them, as if
    the values of a bin were spread evenly over it.
    """

    low: torch.Tensor
    estimate: torch.Tensor
    high: torch.Tensor


def below(hist: Histogram, thresholds: torch.Tensor) -> Below:
    """The number of counted values (`Histogram.counted`) of each channel below each threshold.

    If a threshold is an edge, values equal to it count as their bin does: they are in the bin above
    the edge, or, for a negative edge of LogBins, in the bin below it.

    Args:
        thresholds: float64 [K], or [C, K] with the thresholds of each channel. Not zero: the zero
            bin of LogBins has two equal edges.
    """
    # NumPy: these are small, and torch would start the threads that the training computes with.
    counts, limits = hist.slot_counts.numpy(), thresholds.numpy()
    edges = hist.bins.bounds()
    # Slot s lies between bounds s and s + 1, where bound 0 is -inf and the last one +inf.
    slot = np.searchsorted(edges, limits, side="right")
    slot, limits = (np.broadcast_to(x, (len(hist), limits.shape[-1])) for x in (slot, limits))
    count = np.take_along_axis(counts, slot, 1)
    before = np.take_along_axis(np.cumsum(counts, 1), slot, 1) - count
    bounds = _bounds(hist.bins)
    left = np.maximum(bounds[slot], hist.min.numpy()[:, None])
    right = np.minimum(bounds[slot + 1], hist.max.numpy()[:, None])
    # No value lies below the least, and none above the greatest.
    none, all_ = limits <= left, limits > right
    some = ~(none | all_)
    inside = np.divide(limits - left, right - left, out=np.where(none, 0.0, 1.0), where=some)
    parts = (before + count * all_, before + count * inside, before + count * ~none)
    return Below(*(torch.from_numpy(part.astype(np.float64)) for part in parts))
