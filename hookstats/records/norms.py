"""The scalars that come by themselves: their names, and gradient_norm()."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hookstats.records.keys import plain_kind
from hookstats.records.layout import shard_dim
from hookstats.records.record import SiteInfo, StepRecord, kept_of_sites
from hookstats.records.sparse import Int64
from hookstats.stats.state import COUNT, M2, MEAN, NAN, NEGINF, POSINF

COST = "watch_seconds"
"""Seconds in which hooks held their lock, and in which steps were closed, on the threads of the
training, since the step before was closed. A device's own work is not in it."""
RATE = "steps_per_second"
SPEEDS = frozenset({COST, RATE})
"""Scalars that say how fast a training run is, rather than how it goes."""
GRADIENT_NORM = "grad_norm"
"""The scalar that has `gradient_norm`, unless the training logs one by that name."""


def gradient_norm(record: StepRecord) -> float | None:
    """The L2 norm of the watched parameters' gradients, as the optimizer was about to use them.

    So it is that after clipping. NaN where a gradient has a NaN, infinity where one has an infinity
    and none a NaN; None where the record has no gradients of parameters, or lacks one that came.
    A record of one rank has the gradients, or the shards of these, that the rank has.
    """
    chosen = _gradients(record.sites)
    if not len(chosen) or record.unread:
        return None
    moments, tallies = record.tensors.moments[:, chosen], record.tensors.tallies[:, chosen]
    total = tallies.sum(1).tolist()
    if total[NAN]:
        return math.nan
    if total[POSINF] or total[NEGINF]:
        return math.inf
    mean = moments[MEAN]
    with np.errstate(over="ignore"):
        squares = (tallies[COUNT] * mean * mean + moments[M2]).sum()
    return math.sqrt(squares)


@kept_of_sites
def has_parts(sites: tuple[SiteInfo, ...]) -> bool:
    """Whether other ranks have parts of the parameters' gradients, so that their norm is not that
    of all."""
    layouts = [site.layout for site in sites if plain_kind(site.kind) == "param_grad"]
    return any(
        shard_dim(placement) is not None and axis.size > 1
        for layout in layouts
        if layout is not None
        for axis, placement in zip(layout.axes, layout.placements, strict=True)
    )


def unread(coverage: Mapping[str, Any] | None) -> list[str]:
    """The parameters of a run with gradients that came and could not be read, as its coverage says:
    without these there is no norm."""
    rows = [] if coverage is None else coverage["rows"]
    came = [row for row in rows if row["kind"] == "param_grad" and row["backwards"]]
    return [row["name"] for row in came if not row["observed"]]


@kept_of_sites
def _gradients(sites: tuple[SiteInfo, ...]) -> Int64:
    return np.flatnonzero([plain_kind(site.kind) == "param_grad" for site in sites])
