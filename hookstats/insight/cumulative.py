"""below(): how many values lie below a threshold, as far as a histogram can tell."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hookstats.stats.histogram import Histogram
from hookstats.stats.lazy_torch import torch


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
    bounds = np.concatenate(([-np.inf], edges, [np.inf]))
    left = np.maximum(bounds[slot], hist.min.numpy()[:, None])
    right = np.minimum(bounds[slot + 1], hist.max.numpy()[:, None])
    # No value lies below the least, and none above the greatest.
    none, all_ = limits <= left, limits > right
    some = ~(none | all_)
    inside = np.divide(limits - left, right - left, out=np.where(none, 0.0, 1.0), where=some)
    parts = (before + count * all_, before + count * inside, before + count * ~none)
    return Below(*(torch.from_numpy(part.astype(np.float64)) for part in parts))
