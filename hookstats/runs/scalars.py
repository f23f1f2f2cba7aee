"""Scalars: the numbers that training logs, such as losses and learning rates, step by step."""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hookstats.records.keys import did_you_mean
from hookstats.records.norms import COST, GRADIENT_NORM, RATE, gradient_norm
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.runs.arrays import numbers_as, texts_of
from hookstats.runs.decode import numbers
from hookstats.runs.encode import Rows
from hookstats.runs.format import (
    SCALARS,
    PartName,
    list_parts,
    merged_schema,
    require_pyarrow,
    schema_of,
)
from hookstats.runs.index import Bounds, bounds
from hookstats.runs.part_file import open_part

SAMPLES = "samples"
"""The name of the rows whose text says which samples a step had."""

_ROW_BYTES = 32
"""What a scalar has in memory until it is encoded, about."""

_MOST_TEXT = 4096
"""How many characters of the samples of a step are kept."""


class ScalarSeries(NamedTuple):
    """One scalar over the steps that have it."""

    steps: Int64
    """int64 [n]: the steps, ascending."""
    values: Float64
    """float64 [n]: its values."""
    times: Float64
    """float64 [n]: when each step was closed, in seconds since 1970, UTC."""


class ScalarsByName(Mapping[str, ScalarSeries]):
    """Scalars by name; each call sees the parts that exist at that time."""

    @abstractmethod
    def _read(self) -> dict[str, ScalarSeries]:
        """All scalars that there are now; the same object while there are no others."""

    @abstractmethod
    def table(self) -> Any:
        """All scalars as a pyarrow.Table: step, rank, name, value, time, text."""

    @abstractmethod
    def samples(self) -> dict[int, list[int | str]]:
        """What `Watch.log_batch` got, by step; of several ranks, those of each in turn. Where they
        were too many to be kept, the last one says how many are missing."""

    def __getitem__(self, name: str) -> ScalarSeries:
        """One scalar; a KeyError suggests similar names."""
        found = self._read()
        if name not in found:
            names = ", ".join(found) or "none"
            raise KeyError(
                f"no scalar {name!r}{did_you_mean(str(name), list(found))}; there are: {names}"
            )
        return found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        found = self._read()
        names = ", ".join(f"{name} ({len(series.steps)})" for name, series in found.items())
        return f"Scalars({names})"

    def of(self, step: int, record: StepRecord | None = None) -> Mapping[str, float]:
        """The scalars of one step, read when they are first asked for.

        record: that of the step, if it is known.
        """
        return OfStep(partial(self.at, step))

    def times(self) -> dict[int, float]:
        """When each step that has scalars was closed, in seconds since 1970, UTC; ascending."""
        found: dict[int, float] = {}
        for series in self._read().values():
            found.update(zip(series.steps.tolist(), series.times.tolist(), strict=True))
        return dict(sorted(found.items()))

    @property
    def steps(self) -> list[int]:
        """The steps that have scalars, ascending."""
        return sorted({step for series in self._read().values() for step in series.steps.tolist()})

    def at(self, step: int) -> dict[str, float]:
        """The scalars of one step."""
        found = {}
        for name, series in self._read().items():
            at = int(np.searchsorted(series.steps, step))
            if at < len(series.steps) and series.steps[at] == step:
                found[name] = float(series.values[at])
        return found


class Scalars(ScalarsByName):
    """The scalars of one rank of a run, by name.

    ``run.scalars["loss"].values``; `table` has all of them. What is of steps that became void,
    since training went back to a checkpoint, is left out.
    """

    def __init__(self, run: Path, rank: int, *, skip_damaged: bool) -> None:
        self._run = run
        self._rank = rank
        self._skip_damaged = skip_damaged
        self._damaged: set[PartName] = set()
        self._known: dict[PartName, Any] = {}  # a table by part; parts never change
        self._valid: Bounds = {}
        self._series: dict[str, ScalarSeries] | None = None

    def table(self) -> Any:
        self._look()
        tables = [require_pyarrow().Table.from_batches([], schema_of(SCALARS))]
        for part, table in self._known.items():
            bound = self._valid[part[:2]]
            valid = numbers(table.column("step")) < bound
            tables.append(table if valid.all() else table.filter(valid))
        return require_pyarrow().concat_tables(tables).unify_dictionaries()

    def _look(self) -> bool:
        """Read the parts that are new; whether the parts are others than before."""
        found: dict[PartName, Any] = {}
        names = list_parts(self._run, SCALARS)
        for part in names:
            if part.rank != self._rank or part in self._damaged:
                continue
            try:
                known = self._known.get(part)
                found[part] = _read_part(self._run, part) if known is None else known
            except FileNotFoundError:  # deleted since it was listed, to keep to max_bytes
                continue
            except ValueError as error:
                if not self._skip_damaged:
                    raise
                self._damaged.add(part)
                warnings.warn(f"hookstats: left out: {error}", RuntimeWarning, stacklevel=2)
        valid = bounds(names)
        changed = found.keys() != self._known.keys() or valid != self._valid
        self._known, self._valid = found, valid
        return changed

    def _read(self) -> dict[str, ScalarSeries]:
        if self._look():
            self._series = None  # also where there is no memory for the new ones
        if self._series is None:
            table = self.table().combine_chunks()
            # What filters imports pyarrow.compute.
            if table["text"].null_count < table.num_rows:
                table = table.filter(table["text"].is_null())
            names = np.array(table["name"].to_pylist(), object)
            columns = [numbers(table[name]) for name in ("step", "value", "time")]
            found = {}
            for name in dict.fromkeys(names.tolist()):
                rows = names == name
                found[name] = ScalarSeries(*(column[rows] for column in columns))
            self._series = found
        return self._series

    def samples(self) -> dict[int, list[int | str]]:
        table = self.table().select(["step", "text"])
        if table["text"].null_count == table.num_rows:
            return {}
        table = table.drop_null()
        pairs = zip(*(column.to_pylist() for column in table), strict=True)
        return {step: json.loads(text) for step, text in pairs}


class OfStep(Mapping[str, float]):
    """The scalars of one step, read when they are first asked for."""

    def __init__(self, read: Callable[[], dict[str, float]]) -> None:
        self._read = read

    @cached_property
    def _values(self) -> dict[str, float]:
        return self._read()

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


_MERGES: dict[str, Callable[[Float64], float]] = {RATE: np.min, COST: np.max}


class RankScalars(ScalarsByName):
    """The scalars of several ranks of a run, by name, one value per step.

    "grad_norm" is that of the whole gradients, which each rank may have a part of: it follows from
    the merged records, and is made when it is asked for. "steps_per_second" is that of the slowest
    rank, "watch_seconds" the greatest; of all others, which usually are numbers of the rank's
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
        if known is None or [*map(id, known[0])] != [*map(id, found)]:
            names = dict.fromkeys(name for series in found for name in series)
            merged = {n: _merged_series(n, [each[n] for each in found if n in each]) for n in names}
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

    def samples(self) -> dict[int, list[int | str]]:
        found: dict[int, list[int | str]] = {}
        for scalars in self._ranks():
            for step, ids in scalars.samples().items():
                found.setdefault(step, []).extend(ids)
        return dict(sorted(found.items()))

    def table(self) -> Any:
        """All scalars as a pyarrow.Table: step, rank (null: of several), name, value, time, and
        text, which is null."""
        pa = require_pyarrow()
        rows = [
            (step, name, value, time)
            for name in self
            for step, value, time in zip(*(column.tolist() for column in self[name]), strict=True)
        ]
        rows.sort(key=lambda row: row[0])
        steps, names, values, times = zip(*rows, strict=True) if rows else ((), (), (), ())
        columns = [steps, pa.nulls(len(rows), pa.int32()), names, values, times]
        columns.append(pa.nulls(len(rows), merged_schema(SCALARS).field("text").type))
        return pa.table(columns, schema=merged_schema(SCALARS))


def _with_norm(values: dict[str, float], norm: float) -> dict[str, float]:
    return values | {GRADIENT_NORM: norm} if GRADIENT_NORM in values else values


def _merged_series(name: str, ranks: Sequence[ScalarSeries]) -> ScalarSeries:
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


def _read_part(run: Path, part: PartName) -> Any:
    """The rows of a part, a pyarrow.Table.

    Raises:
        FileNotFoundError: there is no such part.
        ValueError: it is damaged; the message names the file.
    """
    with open_part(run, part, SCALARS) as file:
        file.footer(part)  # which is verified
        return file.read(schema_of(SCALARS).names)


class _StepScalars(NamedTuple):
    step: int
    rank: int
    time: float
    values: Mapping[str, float]
    samples: str | None


def scalar_rows(
    step: int,
    rank: int,
    time: float,
    values: Mapping[str, float],
    samples: Sequence[int | str] = (),
) -> Rows:
    """What the scalars of a step, and the ids of its samples, add to a part."""
    text = _samples_text(samples) if samples else None
    rows = len(values) + (text is not None)
    nbytes = rows * _ROW_BYTES + len(text or "")
    return Rows(step, rows, nbytes, _StepScalars(step, rank, time, values, text))


def _samples_text(samples: Sequence[int | str]) -> str:
    """A JSON list of the first samples, as many as fit, and of how many more there are."""
    room, kept = _MOST_TEXT, 0
    for one in samples:
        room -= len(json.dumps(one)) + 1
        if room < 0:
            break
        kept += 1
    left = len(samples) - kept
    rest = [f"and {left} more"] if left else []
    return json.dumps([*samples[:kept], *rest], separators=(",", ":"))


def encode_scalars(several: Sequence[_StepScalars]) -> Any:
    """The scalars of steps as a record batch."""
    pa = require_pyarrow()
    rows: list[tuple[str, float, str | None]] = []
    counts = []
    for each in several:
        before = len(rows)
        rows += [(name, value, None) for name, value in each.values.items()]
        if each.samples is not None:
            rows.append((SAMPLES, np.nan, each.samples))
        counts.append(len(rows) - before)
    columns = [
        numbers_as(np.repeat(np.array([each.step for each in several]), counts), pa.int64()),
        numbers_as(np.repeat(np.array([each.rank for each in several]), counts), pa.int32()),
        texts_of([name for name, _, _ in rows]),
        numbers_as(np.array([value for _, value, _ in rows]), pa.float64()),
        numbers_as(np.repeat(np.array([each.time for each in several]), counts), pa.float64()),
        texts_of([text for _, _, text in rows]),
    ]
    return pa.record_batch(columns, schema=schema_of(SCALARS))
