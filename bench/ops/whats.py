"""WHATS: what one call of update_ is asked for."""

from __future__ import annotations

from bench.states import BINS, CHANNEL_BINS, What

MOMENTS = "moments"
LINEAR = "moments + 64 linear bins per channel"
LOG = "moments + log bins of the tensor"
SAMPLED = "moments + log bins of a sample of 8"
WHATS = {
    MOMENTS: What(),
    LINEAR: What(channel_bins=CHANNEL_BINS),
    LOG: What(bins=BINS),
    SAMPLED: What(bins=BINS, sample=8),
}
