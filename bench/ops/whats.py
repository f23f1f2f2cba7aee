"""What, WHATS: what one call of update_ is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from sample import BINS, CHANNEL_BINS

from hookstats import LinearBins, LogBins


@dataclass(frozen=True)
class What:
    """The histograms that are asked for besides the moments and tallies."""

    channel_bins: LinearBins | None = None
    bins: LogBins | None = None


MOMENTS = "moments"
LINEAR = "moments + 64 linear bins per channel"
LOG = "moments + log bins of the tensor"
WHATS = {MOMENTS: What(), LINEAR: What(channel_bins=CHANNEL_BINS), LOG: What(bins=BINS)}
