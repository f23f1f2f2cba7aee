"""Odd channels: bool [C] of a ChannelStats, from its moments and counts.

Channels without finite values are not odd. The functions also take `StepRecord.whole`, in which
each "channel" is a whole tensor.
"""

from __future__ import annotations

from hookstats.insight.histograms import below
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.lazy_torch import torch

MARGIN = 1 / 16
"""How near to its greatest magnitude a value counts as saturated. 15/16 is an edge of LogBins(3),
and where tanh is 0.9375 its slope is 0.12."""


def dead(stats: ChannelStats) -> torch.Tensor:
    """Whether a channel has finite values and all of them are zero.

    A dead channel of an output carries no signal; a dead channel of a gradient receives none. NaN
    and infinities do not count; a channel with another constant value is not dead. In statistics
    of several merged steps, a channel is dead if it was dead in every step with finite values.

    Raises:
        ValueError: the step did not keep its channels; the message says how many were dead.
    """
    return stats.dead


def constant(stats: ChannelStats) -> torch.Tensor:
    """Whether a channel has two or more finite values, all equal, zero included."""
    return (stats.count > 1) & (stats.min == stats.max)


def outlier(stats: ChannelStats, factor: float = 10.0) -> torch.Tensor:
    """Whether a channel's rms is more than `factor` times the median of all channels' rms.

    A few features of large transformers dwarf all others (Dettmers et al., "LLM.int8", 2022), and
    cost an 8-bit format its resolution. Dead channels do not enter the median.

    Raises:
        ValueError: factor below 1.
    """
    if not factor >= 1:
        raise ValueError(f"factor = {factor}: expected 1 or more")
    rms = stats.rms
    median = rms.where(rms > 0, torch.nan).nanmedian()
    return rms > factor * median


def saturated(stats: ChannelStats, share: float = 0.5, margin: float = MARGIN) -> torch.Tensor:
    """Whether `saturation` is at least `share`.

    Raises:
        ValueError: share or margin outside 0..1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share = {share}: expected a fraction above 0, up to 1")
    return saturation(stats, margin) >= share


def saturation(stats: ChannelStats, margin: float = MARGIN) -> torch.Tensor:
    """The share of the finite values within `margin` of the channel's greatest magnitude.

    That is ``|x| >= (1 - margin) * amax``, which holds for the values of a saturated tanh, hardtanh
    or clamp with bounds of both signs. The share is a lower bound: what the histograms of the
    channels prove, if there are any, and otherwise what the moments prove. Values below
    ``t * amax`` add less than ``(t * amax)**2`` to the mean square, so
    ``share >= (rms**2 / amax**2 - t**2) / (1 - t**2)``. The share of a constant channel is 0.

    Returns:
        float64 [C], in 0..1; 0 for channels without finite values.
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
        share = share.fmax(1 - within.squeeze(1) / hist.counted)
    varied = (stats.count > 1) & (stats.min < stats.max)
    return torch.where(varied, share.clamp(0.0, 1.0), 0.0)
