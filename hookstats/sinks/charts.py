"""charts(): a record as dashboards draw it: scalars in groups, and histograms of few bins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hookstats.insight.histograms import coarsen
from hookstats.insight.layers import per_tensor
from hookstats.records.keys import label
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.stats.derived import STATISTICS
from hookstats.stats.histogram import Histogram

SCALARS = ("mean", "std", "rms", "min", "max", "nan")
"""The statistics that are drawn by default."""


class Chart(NamedTuple):
    """A histogram of one tensor: int64 [n] counts between float64 [n + 1] edges, and its sums of
    values."""

    counts: Int64
    edges: Float64
    min: float
    max: float
    num: int
    sum: float
    sum_squares: float


def charts(
    record: StepRecord, scalars: Sequence[str], most_bins: int
) -> tuple[dict[str, float], dict[str, Chart]]:
    """Scalars and histograms by tag.

    The tag of a scalar is "kind.statistic/name", that of a histogram "kind/name": dashboards group
    charts by the part before the slash. The root module is "(root)". Statistics that are not finite
    and histograms without values are left out. Bins are merged by `insight.rebinn`; with
    `most_bins` = 0 there are no histograms.
    """
    tensors = per_tensor(record, hist=most_bins > 0)
    hist = tensors.hist
    numbers: dict[str, float] = {}
    histograms: dict[str, Chart] = {}
    needed = {*scalars, "count", "min", "max", "mean", "l2_norm"}
    columns = {name: getattr(tensors, name).tolist() for name in needed}
    for row, site in enumerate(record.sites):
        name = label(site.name)
        for statistic in scalars:
            if math.isfinite(value := columns[statistic][row]):
                numbers[f"{site.kind}.{statistic}/{name}"] = value
        if hist is not None and (count := columns["count"][row]):
            one = slice(row, row + 1)
            columns_of_one = (hist.slot_counts, hist.min, hist.max, hist.count)
            whole = Histogram(hist.bins, *(column[one] for column in columns_of_one))
            counts, edges = coarsen(whole, most_bins)
            histograms[f"{site.kind}/{name}"] = Chart(
                counts,
                edges,
                columns["min"][row],
                columns["max"][row],
                count,
                columns["mean"][row] * count,
                columns["l2_norm"][row] ** 2,
            )
    return numbers, histograms


def logged(values: Mapping[str, float]) -> dict[str, float]:
    """The numbers that training logs by tag, such as "scalar/loss"; finite numbers only."""
    return {f"scalar/{name}": x for name, x in values.items() if math.isfinite(x)}


def check_scalars(scalars: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple; a ValueError unless all of them are in STATISTICS."""
    if isinstance(scalars, str) or not set(scalars) <= set(STATISTICS):
        raise ValueError(f"scalars = {scalars!r}: expected some of {', '.join(STATISTICS)}")
    return tuple(scalars)
