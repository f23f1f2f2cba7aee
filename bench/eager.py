"""The statistics in plain torch operations, as one would write them without hookstats.

What eager torch and torch.compile are timed on. Where there are several ways, it is the one that
was the fastest once compiled. So the variance is E[x^2] - E[x]^2, and a linear bin is computed
rather than searched for: good enough for values around zero, and only there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hookstats import LinearBins, LogBins

Statistics = dict[str, Tensor]
"""Tensors [C]: count, mean, var, min, max, l1, nan, posinf, neginf, zero, as in ChannelStats;
channel_counts [C, slots] and counts [slots] where there are such histograms."""

_MANTISSA_BITS = 23


def statistics(
    x: Tensor, axis: int, channel_bins: LinearBins | None = None, bins: LogBins | None = None
) -> Statistics:
    """The statistics of `x`, two dimensions or more, a channel of its dimension `axis`.

    channel_bins: of one histogram per channel, or None. bins: of one for the whole tensor, or None;
    they have to hold every float32.
    """
    dims = [dim for dim in range(x.dim()) if dim != axis]
    x = x.float()
    finite = x.isfinite()
    clean = torch.where(finite, x, 0.0)
    count = finite.sum(dims)
    mean = clean.sum(dims) / count
    found = {
        "count": count,
        "mean": mean,
        "var": clean.square().sum(dims) / count - mean.square(),
        "min": torch.where(finite, x, torch.inf).amin(dims),
        "max": torch.where(finite, x, -torch.inf).amax(dims),
        "l1": clean.abs().sum(dims),
        "nan": x.isnan().sum(dims),
        "posinf": (x == torch.inf).sum(dims),
        "neginf": (x == -torch.inf).sum(dims),
        "zero": (x == 0).sum(dims),
    }
    # A slot more than the histogram has, for what is not finite.
    if channel_bins is not None:
        slots = channel_bins.slots + 1
        slot = torch.where(finite, _linear_slot(x, channel_bins), slots - 1)
        channel = torch.arange(len(count), dtype=slot.dtype)
        slot = slot + slots * channel.view([-1 if dim == axis else 1 for dim in range(x.dim())])
        slot = slot.reshape(-1).to(torch.int64)
        counts = torch.zeros(slots * len(count), dtype=torch.int64)
        counts.scatter_add_(0, slot, torch.ones((), dtype=torch.int64).expand_as(slot))
        found["channel_counts"] = counts.view(-1, slots)[:, :-1]
    if bins is not None:
        slots = bins.slots + 1
        slot = torch.where(finite, _log_slot(x, bins), slots - 1)
        found["counts"] = torch.bincount(slot.reshape(-1), minlength=slots)[:-1]
    return found


def _linear_slot(x: Tensor, bins: LinearBins) -> Tensor:
    """int32: a value within a rounding error of an edge may land beyond it."""
    nth = (x - bins.lo) * (bins.bins / (bins.hi - bins.lo))
    return nth.floor().clamp(-1, bins.bins).to(torch.int32) + 1


def _log_slot(x: Tensor, bins: LogBins) -> Tensor:
    """int32: the sign and the first bits of the float itself."""
    bits = x.view(torch.int32)
    away = 1 + ((bits & 0x7FFF_FFFF) >> (_MANTISSA_BITS - bins.subdivision_bits))
    return bins.slots // 2 + torch.where(x == 0, 0, torch.where(bits < 0, -away, away))


def compiled() -> Callable[..., Statistics]:
    """`statistics`, compiled for each shape; dynamo forgets others, as it gives up on many."""
    torch.compiler.reset()
    return torch.compile(statistics, dynamic=False)
