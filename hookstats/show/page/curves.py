"""Curves: the loss, the learning rate and the norm of the gradients, on the columns of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hookstats.records.norms import GRADIENT_NORM
from hookstats.records.sparse import Float64, Int64
from hookstats.runs.run import Run
from hookstats.show.overview import Overview

_DIGITS = 6


def curves(run: Run, view: Overview, norms: Mapping[int, float]) -> list[dict[str, Any]]:
    """The curves that there are, as JSON: the name, and per column the mean of its steps' values;
    null where there are none, and "nan", "inf" or "-inf" where one is not finite.

    norms: those of the gradients, by step.
    """
    found: dict[str, tuple[Int64, Float64]] = {}
    for name in filter(None, (_loss(run.scalars), _rate(run.scalars))):
        series = run.scalars[name]
        found[name] = series.steps, series.values
    if norms:
        steps = np.array(sorted(norms), np.int64)
        found[GRADIENT_NORM] = steps, np.array([norms[step] for step in steps.tolist()], np.float64)
    return [{"name": name, "values": _by_column(view, *each)} for name, each in found.items()]


def _loss(names: Iterable[str]) -> str | None:
    """The name of the loss of training, if any is logged."""
    alike = [name for name in names if "loss" in name.lower() and "val" not in name.lower()]
    return min(alike, key=lambda name: (name != "loss", alike.index(name)), default=None)


def _rate(names: Iterable[str]) -> str | None:
    return next((name for name in names if name.startswith("lr/")), None)


def _by_column(view: Overview, steps: Int64, values: Float64) -> list[float | str | None]:
    """The means of the values in each column, which reaches to the first step of the next."""
    starts = [view.steps[first] for first, _ in view.spans]
    bounds = np.searchsorted(steps, [*starts, np.iinfo(np.int64).max])
    found: list[float | str | None] = []
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            mean = float(values[first:end].mean()) if end > first else None
        if mean is None:
            found.append(None)
        else:
            found.append(float(f"{mean:.{_DIGITS}g}") if np.isfinite(mean) else str(mean))
    return found
