"""Curves: the loss, the learning rate and the norm of the gradients, on the columns of a page."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from hookstats.records.norms import GRADIENT_NORM, unread
from hookstats.records.sparse import Float64, Int64
from hookstats.rules.history import RATE
from hookstats.runs.run import Run
from hookstats.show.overview import Overview, norms_of

_DIGITS = 6


def curves(run: Run, view: Overview) -> list[dict[str, Any]]:
    """The curves that there are, as JSON: the name, the label for people, and per column the value
    of its step; null where there is none, and "nan", "inf" or "-inf" where it is not finite.

    A column of several steps, or of a step that has no value itself, has the mean of the values up
    to the next column; the last one, up to the step that the run recorded next.
    """
    after = bisect_right(run.steps, view.steps[-1])
    limit = run.steps[after] if after < len(run.steps) else np.iinfo(np.int64).max
    found: dict[str, list[float | None]] = {}
    for name in filter(None, (_loss(run.scalars), _rate(run.scalars))):
        series = run.scalars[name]
        found[name] = _by_column(view, series.steps, series.values, limit)
    norms = norms_of(view)
    if norms is not None and not unread(run.coverage):
        found.setdefault(GRADIENT_NORM, norms)
    rates = sum(map(_is_rate, run.scalars))
    return [
        {"name": name, "label": _label(name, rates), "values": list(map(_json, each))}
        for name, each in found.items()
    ]


def _label(name: str, rates: int) -> str:
    """What people call a curve; `rates` is how many learning rates are logged."""
    if not _is_rate(name):
        return name
    return "learning rate" if rates == 1 else f"learning rate {name.removeprefix(RATE)}"


def _is_rate(name: str) -> bool:
    return name.startswith(RATE)


def _loss(names: Iterable[str]) -> str | None:
    """The name of the loss of training, if any is logged."""
    alike = [name for name in names if "loss" in name.lower() and "val" not in name.lower()]
    return min(alike, key=lambda name: (name != "loss", alike.index(name)), default=None)


def _rate(names: Iterable[str]) -> str | None:
    return next(filter(_is_rate, names), None)


def _by_column(view: Overview, steps: Int64, values: Float64, limit: int) -> list[float | None]:
    """The value of each column, None where there is none; see `curves`."""
    starts = [view.steps[first] for first, _ in view.spans]
    bounds = np.searchsorted(steps, [*starts, limit]).tolist()
    found: list[float | None] = []
    for t, (first, end) in enumerate(pairwise(bounds)):
        span = view.spans[t]
        if first == end:
            found.append(None)
        elif span[1] - span[0] == 1 and steps[first] == starts[t]:
            found.append(float(values[first]))
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                found.append(float(values[first:end].mean()))
    return found


def _json(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return None if value is None else float(f"{value:.{_DIGITS}g}")
    return str(value)
