"""Odd channels: bool [C] of a ChannelStats, from its moments and counts.

Channels without finite values are none of these. The whole tensors of a record have such
statistics, too: `StepRecord.whole`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hookstats.insight.cumulative import below
from hookstats.stats.channel_stats import ChannelStats

MARGIN = 1 / 16
"""How near to its greatest magnitude a value is saturated. 15/16 of 1 is an edge of LogBins(3), and
where tanh is at 0.9375 its slope is 0.12."""


def dead(stats: ChannelStats) -> Tensor:
    """The channel has finite values, and every one of them is zero.

    In an output such a channel carries no signal, in a gradient the channel receives none. NaN and
    infinities do not count; a channel stuck at another value is not dead. Of several steps merged,
    a channel is dead if it was dead in each of them that had finite values.
    """
    return stats.dead


def constant(stats: ChannelStats) -> Tensor:
    """All finite values are one and the same, be it zero; there are two of them at least."""
    return (stats.count > 1) & (stats.min == stats.max)


def outlier(stats: ChannelStats, factor: float = 10.0) -> Tensor:
    """The rms is more than `factor` times the median of the channels' rms.

    As of the few features of large transformers that dwarf all others (Dettmers et al., "LLM.int8",
    2022), which cost an 8-bit format its resolution. Dead channels do not enter the median.

    Raises:
        ValueError: factor below 1.
    """
    if not factor >= 1:
        raise ValueError(f"factor = {factor}: expected 1 or more")
    rms = stats.rms
    median = rms.where(rms > 0, torch.nan).nanmedian()
    return rms > factor * median


def saturated(stats: ChannelStats, share: float = 0.5, margin: float = MARGIN) -> Tensor:
    """At least the given share of the finite values is near the greatest magnitude: `saturation`.

    Raises:
        ValueError: share or margin outside 0..1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share = {share}: expected a fraction above 0, up to 1")
    return saturation(stats, margin) >= share


def saturation(stats: ChannelStats, margin: float = MARGIN) -> Tensor:
    """The share of the finite values within `margin` of the channel's greatest magnitude.

    That is ``|x| >= (1 - margin) * amax``: where tanh, hardtanh or a clamp of both signs is
    saturated. A lower bound: what the histograms of the channels prove, where there are any, and in
    any case what the moments prove, as values below ``t * amax`` add less than ``(t * amax)**2`` to
    the mean square: ``share >= (rms**2 / amax**2 - t**2) / (1 - t**2)``. Constant channels have 0,
    they are another matter.

    Returns:
        float64 [C], in 0..1; 0 where there is no finite value.
    Raises:
        ValueError: margin outside 0..1.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin = {margin}: expected a number between 0 and 1")
    inner = 1 - margin
    share = ((stats.rms / stats.amax).square() - inner**2) / (1 - inner**2)
    hist = stats.hist
    if hist is not None:
        threshold = (inner * stats.amax).clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        within = below(hist, threshold).high - below(hist, -threshold).low
        share = share.fmax(1 - within.squeeze(1) / stats.count)
    varied = (stats.count > 1) & (stats.min < stats.max)
    return torch.where(varied, share.clamp(0.0, 1.0), 0.0)
