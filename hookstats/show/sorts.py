"""SORTS: the ways to sort a table of sites. No numerical library is imported here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookstats.records.summary import SiteSummary


def _descending(value: float) -> float:
    return math.inf if math.isnan(value) else -value


SORTS: dict[str, Callable[[SiteSummary], Any]] = {
    "name": lambda site: site.name,
    "mean": lambda site: _descending(abs(site.mean)),
    "std": lambda site: _descending(site.std),
    "rms": lambda site: _descending(site.rms),
    "min": lambda site: site.min,
    "max": lambda site: -site.max,
    "zero": lambda site: _descending(site.zero / site.finite if site.finite else 0.0),
    "nonfinite": lambda site: -site.nonfinite,
    "dead": lambda site: _descending(site.dead / site.channels if site.channels else 0.0),
}
"""The sort key of each way. "name" and "min" sort upwards, all others downwards: "mean" by its
magnitude, "zero" by the share of the values, "dead" by that of the channels. Sites without a value
come last."""
