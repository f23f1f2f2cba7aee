"""What follows from recorded statistics and histograms, without another pass over any tensor.

Pure functions: `formats` (number formats), `channels` (odd channels), `histograms` (fewer bins),
`layers` (from layer to layer: the first non-finite one, growth with depth, gradient and update to
weight), `replicas` (ranks whose parameters part).
"""

from hookstats.insight.channels import constant, dead, outlier, saturated, saturation
from hookstats.insight.formats import FORMATS, Format, best_scale, over, under
from hookstats.insight.histograms import coarsen
from hookstats.insight.layers import (
    NonFinite,
    first_nonfinite,
    gradient_to_weight,
    growth,
    per_tensor,
    update_to_weight,
)
from hookstats.insight.replicas import unequal_replicas
from hookstats.records.replicas import UnequalReplicas

__all__ = [
    "FORMATS",
    "Format",
    "NonFinite",
    "UnequalReplicas",
    "best_scale",
    "coarsen",
    "constant",
    "dead",
    "first_nonfinite",
    "gradient_to_weight",
    "growth",
    "outlier",
    "over",
    "per_tensor",
    "saturated",
    "saturation",
    "under",
    "unequal_replicas",
    "update_to_weight",
]
