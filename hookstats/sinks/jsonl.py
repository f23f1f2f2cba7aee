"""JSONL: one line of JSON per tensor and step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from hookstats.records.record import StepRecord
from hookstats.sinks.by_rank import ByRank, Ranks
from hookstats.stats.derived import STATISTICS


class JSONL:
    """A sink that appends one line per tensor to a text file, which has a step's lines at once.

    A line is an object with step, rank, site, kind, shape, dtype, observed (calls merged) and the
    tensor's statistics; a statistic that is not finite is null. Only run directories have channels
    and histograms. The numbers that training logs are a separate line per step, also where the
    step is not recorded: an object with step, rank and scalars. What the disk does not take is left
    out, whole.

    Args:
        path: the file.
        ranks: which of several ranks write. "all": each into a separate file, rank 1 into
            `stats.rank1.jsonl` where rank 0 has `stats.jsonl`.
            A rank, such as 0: this one alone. "merged": rank 0 writes, and only records of the
            whole model, as `hookstats.Reduce` has them.
    Raises:
        OSError: the file cannot be opened.
        ValueError: ranks is something else.
    """

    def __init__(self, path: str | os.PathLike[str], ranks: Ranks = "all") -> None:
        self._ranks = ByRank(ranks)
        self._path = self._ranks.of_file(Path(path))
        # Without a buffer, which would keep what failed, and write it later.
        self._file: FileIO | None = None
        if self._ranks.writes:
            self._file = self._path.open("ab", buffering=0)

    def __repr__(self) -> str:
        return f"JSONL({str(self._path)!r})"

    def __call__(self, record: StepRecord) -> None:
        """Write a step."""
        if not self._ranks.takes(record):
            return
        whole = record.whole
        columns = {name: getattr(whole, name).tolist() for name in STATISTICS}
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
        self._write("".join(lines))

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step."""
        scalars = {name: _number(value) for name, value in values.items()}
        line = {"step": step, "rank": rank, "scalars": scalars}
        self._write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        content = memoryview(text.encode())
        done = 0
        try:
            while done < len(content):
                done += self._file.write(content[done:])
        except OSError:
            with suppress(OSError):  # a pipe
                self._file.truncate(os.fstat(self._file.fileno()).st_size - done)
            raise

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        if self._file is not None:
            self._file.close()


def _number(value: Any) -> Any:
    return value if math.isfinite(value) else None
