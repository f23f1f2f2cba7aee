"""What follows from recorded statistics and histograms, without another pass over any tensor.

Pure functions: `formats` (number formats), `channels` (odd channels), `histograms` (fewer bins),
`layers` (from layer to layer: the first non-finite one, growth with depth, gradient and update to
weight), `replicas` (ranks whose parameters part). `quantities` are of a tensor itself, for
`observe`.
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
from hookstats.insight.quantities import (
    BLOCK_FORMATS,
    BlockFormat,
    block_losses,
    singular_entropy,
    stable_rank,
)
from hookstats.insight.replicas import unequal_replicas
from hookstats.records.replicas import UnequalReplicas

__all__ = [
    "BLOCK_FORMATS",
    "FORMATS",
    "BlockFormat",
    "Format",
    "NonFinite",
    "UnequalReplicas",
    "best_scale",
    "block_losses",
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
    "singular_entropy",
    "stable_rank",
    "under",
    "unequal_replicas",
    "update_to_weight",
]
