"""From layer to layer: the first non-finite tensor, growth with depth, gradient to weight.

The sites of a record are in the order in which they first ran in its step: outputs in forward
order, gradients in backward order, parameters last.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hookstats.records.record import StepRecord
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import statistic
from hookstats.stats.lazy_torch import torch
from hookstats.stats.state import NAN, NEGINF, POSINF

if TYPE_CHECKING:
    from hookstats.runs.run import Run


def per_tensor(
    record: StepRecord, sites: Sequence[int] | None = None, *, hist: bool = True
) -> ChannelStats:
    """The statistics of whole tensors, with all sites, or the given ones, as "channels".

    `hist` of the result has a row per site with all slots, which is large with many bins and many
    sites. If `hist` is false, the result has no histograms; for all sites it is then
    `StepRecord.whole`.
    """
    bins, counts = record.bins if hist else None, None
    if bins is None and sites is None:
        return record.whole
    chosen = np.arange(len(record)) if sites is None else np.asarray(sites, np.intp)
    if bins is not None:
        dense = np.empty((len(chosen), bins.slots), np.int64)
        for row, site in enumerate(chosen.tolist()):
            dense[row] = record.hist.dense_row(site, bins.slots)
        counts = torch.from_numpy(dense)
    return ChannelStats(
        record.whole.moments[chosen],
        record.whole.tallies[chosen],
        channel_counts=counts,
        channel_bins=bins,
    )


@dataclass(frozen=True)
class NonFinite:
    """A tensor with non-finite values; `channel` is the first channel that has any.

    nan, posinf and neginf are counts of the whole tensor; `after` is the number of later tensors of
    the same step that have non-finite values, too.
    """

    step: int
    rank: int | None
    """None: of the whole model."""
    site: str
    kind: str
    channel: int
    nan: int
    posinf: int
    neginf: int
    after: int


def first_nonfinite(source: StepRecord | Run, without: Collection[int] = ()) -> NonFinite | None:
    """The first tensor in execution order that had a NaN or an infinity; None if all were finite.

    In a Run, steps are read one by one until such a tensor is found.

    without: sites of a record, by index, that are left out.
    """
    if not isinstance(source, StepRecord):
        found = (first_nonfinite(source[step]) for step in source.steps)
        return next((one for one in found if one is not None), None)
    bad = source.tallies[:, [NAN, POSINF, NEGINF]]
    for site in without:
        bad[slice(*source.offsets[site : site + 2])] = 0
    rows = np.flatnonzero(bad.any(1))
    if not len(rows):
        return None
    site = int(np.searchsorted(source.offsets, rows[0], "right")) - 1
    start, end = source.offsets[site : site + 2].tolist()
    others = np.searchsorted(source.offsets, rows[rows >= end], "right")
    info = source.sites[site]
    nan, posinf, neginf = bad[start:end].sum(0).tolist()
    return NonFinite(
        step=source.step,
        rank=source.rank,
        site=info.name,
        kind=info.kind,
        channel=int(rows[0]) - start,
        nan=nan,
        posinf=posinf,
        neginf=neginf,
        after=len(np.unique(others)),
    )


def gradient_to_weight(record: StepRecord) -> dict[str, float]:
    """For each parameter, the rms of its gradient divided by the rms of its values.

    Multiplied by the learning rate, the ratio is the relative change that a step of plain SGD
    makes. The kinds "param" and "param_grad" must be watched: parameters without both are left out.
    The ratio of a parameter of zeros is infinite, or NaN if the gradient is zero, too.
    """
    return _to_weight(record, "param_grad")


def _to_weight(record: StepRecord, what: str) -> dict[str, float]:
    rms = statistic("rms", record.tensors.column)
    index = {key: i for i, key in enumerate(record)}
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            name: float(rms[index[name, what]] / rms[i])
            for (name, kind), i in index.items()
            if kind == "param" and (name, what) in index
        }


def update_to_weight(record: StepRecord) -> dict[str, float]:
    """For each parameter, the rms of what the optimizer changed divided by the rms of its values.

    A rule of thumb is 1e-3 for weights. The kinds "param" and "update" must be watched: parameters
    without both are left out. The ratio of a parameter of zeros is infinite, or NaN if nothing
    changed. The values are those before the step.
    """
    return _to_weight(record, "update")


def growth(record: StepRecord, kind: str = "output") -> float:
    """The factor by which the rms grows from one tensor of the kind to the next in `record`.

    This is the geometric mean: exp of the least-squares slope of log(rms) over the sites of the
    kind in order of execution. Outputs go from the first layer to the last, gradients from the last
    to the first. A factor near 1 is sound: a network of n layers multiplies by its n-th power.
    Tensors that are all zero or have no finite values are left out; fewer than two tensors give
    NaN.
    """
    rms = statistic("rms", record.tensors.column)
    of_kind = np.array([other == kind for _, other in record], bool)
    values = rms[of_kind]
    depth = np.flatnonzero(values > 0)  # NaN is not
    if len(depth) < 2:
        return math.nan
    away = depth - depth.mean()
    return float(np.exp((away * np.log(values[depth])).sum() / np.square(away).sum()))
