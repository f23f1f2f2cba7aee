"""RankScalars: the scalars that several ranks logged, as those of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hookstats.records.norms import COST, GRADIENT_NORM, RATE, gradient_norm
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.runs.format import SCALARS, merged_schema, require_pyarrow
from hookstats.runs.scalars import OfStep, Scalars, ScalarsByName, ScalarSeries

_MERGES: dict[str, Callable[[Float64], float]] = {RATE: np.min, COST: np.max}


class RankScalars(ScalarsByName):
    """The scalars of several ranks of a run, by name, one value per step.

    "grad_norm" is that of the whole gradients, which each rank may have a part of: it follows from
    the merged records, and is made when it is asked for. "steps_per_second" is that of the slowest
    rank, "watch_seconds" the greatest; of all others, which as a rule are numbers of the rank's own
    batch, the mean over the ranks that logged the step.
    """

    def __init__(
        self, ranks: Callable[[], Sequence[Scalars]], record: Callable[[int], StepRecord | None]
    ) -> None:
        """ranks: the scalars of each rank; record: what all ranks recorded in a step, merged, or
        None where nothing is recorded."""
        self._ranks = ranks
        self._record = record
        self._known: tuple[list[dict[str, ScalarSeries]], dict[str, ScalarSeries]] | None = None

    def _read(self) -> dict[str, ScalarSeries]:
        found = [scalars._read() for scalars in self._ranks()]
        known = self._known
        if (
            known is None
            or len(known[0]) != len(found)
            or any(one is not other for one, other in zip(known[0], found, strict=True))
        ):
            names = dict.fromkeys(name for series in found for name in series)
            merged = {n: _merged(n, [each[n] for each in found if n in each]) for n in names}
            known = self._known = found, merged
        return known[1]

    def __getitem__(self, name: str) -> ScalarSeries:
        found = super().__getitem__(name)
        if name != GRADIENT_NORM:
            return found
        pairs = zip(found.steps.tolist(), found.values.tolist(), strict=True)
        return found._replace(values=np.array([self._norm(*pair) for pair in pairs], np.float64))

    def at(self, step: int) -> dict[str, float]:
        found = super().at(step)
        if GRADIENT_NORM in found:
            found[GRADIENT_NORM] = self._norm(step, found[GRADIENT_NORM])
        return found

    def of(self, step: int, record: StepRecord | None = None) -> Mapping[str, float]:
        norm = None if record is None else gradient_norm(record)
        if norm is None:
            return super().of(step)
        logged = super().at  # the ranks need not be merged again
        return OfStep(lambda: _with_norm(logged(step), norm))

    def _norm(self, step: int, logged: float) -> float:
        record = self._record(step)
        norm = None if record is None else gradient_norm(record)
        return logged if norm is None else norm

    def table(self) -> Any:
        """All scalars as a pyarrow.Table: step, rank (null: of several), name, value, time."""
        pa = require_pyarrow()
        rows = [
            (step, name, value, time)
            for name in self
            for step, value, time in zip(*(column.tolist() for column in self[name]), strict=True)
        ]
        rows.sort(key=lambda row: row[0])
        steps, names, values, times = zip(*rows, strict=True) if rows else ((), (), (), ())
        columns = [steps, pa.nulls(len(rows), pa.int32()), names, values, times]
        return pa.table(columns, schema=merged_schema(SCALARS))


def _with_norm(values: dict[str, float], norm: float) -> dict[str, float]:
    return values | {GRADIENT_NORM: norm} if GRADIENT_NORM in values else values


def _merged(name: str, ranks: Sequence[ScalarSeries]) -> ScalarSeries:
    steps = np.concatenate([each.steps for each in ranks])
    order = np.argsort(steps, kind="stable")
    found, starts = np.unique(steps[order], return_index=True)
    of_step = [
        np.split(np.concatenate([getattr(each, column) for each in ranks])[order], starts[1:])
        for column in ("values", "times")
    ]
    merge = _MERGES.get(name, _mean)
    return ScalarSeries(
        found,
        np.array([merge(values) for values in of_step[0][: len(found)]], np.float64),
        np.array([times.max() for times in of_step[1][: len(found)]], np.float64),
    )


def _mean(values: Float64) -> float:
    """The mean; of equal values, such as learning rates, that value to the bit."""
    return float(values[0] if (values == values[0]).all() else values.mean())
