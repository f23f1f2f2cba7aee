"""Tolerance, check(): whether the statistics that were timed are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hookstats import ChannelStats


@dataclass(frozen=True)
class Tolerance:
    """How far the statistics may be off; counts, min and max may not be at all."""

    mean: float
    """Of |mean| + std."""
    var: float
    """Relative."""
    cancellation: float
    """Of mean^2, more for var: what E[x^2] - E[x]^2 loses."""
    l1: float
    """Relative."""
    misplaced: float
    """The share of the values that may lie in a bin next to their own."""


HOOKSTATS = Tolerance(mean=2e-6, var=1e-5, cancellation=0.0, l1=1e-6, misplaced=0.0)
"""What hookstats promises."""

FLOAT32 = Tolerance(mean=1e-4, var=1e-3, cancellation=1e-5, l1=1e-4, misplaced=1e-5)
"""What is left to sums in float32 and to bins that are computed in it."""


def as_statistics(stats: ChannelStats) -> dict[str, Tensor]:
    """What `eager.statistics` gives."""
    names = ("count", "mean", "var", "min", "max", "nan", "posinf", "neginf", "zero")
    found = {name: getattr(stats, name) for name in names}
    found["l1"] = stats.l1_norm
    if stats.hist is not None:
        found["channel_counts"] = stats.hist.slot_counts
    if stats.tensor_hist is not None:
        found["counts"] = stats.tensor_hist.slot_counts[0]
    return found


def check(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: Tolerance
) -> None:
    """Assert that `found` is `expected`, which may have more histograms."""
    mean, var = expected["mean"], expected["var"]
    allowed = {
        "mean": tolerance.mean * (mean.abs() + var.sqrt()),
        "var": tolerance.var * var + tolerance.cancellation * mean.square(),
        "l1": tolerance.l1 * expected["l1"],
    }
    for name, values in found.items():
        off = (values - expected[name]).abs()
        if name in allowed:
            assert (off <= allowed[name]).all(), f"{name} is off by up to {off.max()}"
        elif name in ("counts", "channel_counts"):
            # Who is in the wrong bin is missing in one and too much in another.
            misplaced = int(off.sum()) / (2 * int(expected["count"].sum()))
            assert misplaced <= tolerance.misplaced, f"{name}: {misplaced:.1e} are misplaced"
        else:
            assert values.equal(expected[name]), f"{name} is off by up to {off.max()}"
