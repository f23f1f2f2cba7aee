"""JSONL: one line of JSON per tensor and step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from hookstats.records.record import StepRecord
from hookstats.stats.derived import statistic_names


class JSONL:
    """A sink that appends one line per tensor to a text file, and flushes the file after each step.

    A line is an object with step, rank, site, kind, shape, dtype, observed (calls merged) and the
    tensor's statistics; a statistic that is not finite is null. Only run directories have channels
    and histograms. The numbers that training logs are a line of their own per step, also where the
    step is not recorded: an object with step, rank and scalars. Each of several processes needs a
    file of its own.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115, PTH123

    def __repr__(self) -> str:
        return f"JSONL({self._file.name!r})"

    def __call__(self, record: StepRecord) -> None:
        """Write a step."""
        whole = record.whole
        names = statistic_names(higher=whole.higher)
        columns = {name: getattr(whole, name).tolist() for name in names}
        lines = []
        for row, (site, observed) in enumerate(
            zip(record.sites, record.observed.tolist(), strict=True)
        ):
            line = {
                "step": record.step,
                "rank": record.rank,
                "site": site.name,
                "kind": site.kind,
                "shape": site.shape,
                "dtype": site.dtype,
                "observed": observed,
                **{name: _number(column[row]) for name, column in columns.items()},
            }
            lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.write("".join(lines))
        self._file.flush()

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step."""
        scalars = {name: _number(value) for name, value in values.items()}
        line = {"step": step, "rank": rank, "scalars": scalars}
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self._file.close()


def _number(value: Any) -> Any:
    return value if math.isfinite(value) else None
