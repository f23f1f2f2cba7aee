"""open_run and Run: reading a run directory, also while a training writes it."""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.bins import Bins, bins_from_dict
from hookstats.records import Int64, SiteInfo, SparseCounts, StepRecord
from hookstats.state import COUNT, IDENTITY, M2, MEAN, MOMENTS, TALLIES
from hookstats.store import FORMAT_VERSION, PART_KEY, PARTS, RUN_JSON, part_schema, require_pyarrow

_PART_NAME = re.compile(r"(\d{5,})-(\d{6,})-\d{12,}\.parquet")
_CACHE_BYTES = 512 << 20
_STORED = {"m2": "var"}  # moments whose column holds something else: m2 = var * count


def open_run(path: str | os.PathLike[str]) -> Run:
    """The run that `hookstats.watch(..., out=path)` wrote or is writing.

    Raises:
        FileNotFoundError: nothing is at `path`.
        ValueError: `path` is no run directory, run.json is damaged, or a newer hookstats wrote it.
        ImportError: pyarrow is not installed.
    """
    return Run(path)


class Run:
    """A run directory. Every call sees the parts that are finished by then.

    ``run[step]`` is the StepRecord of rank 0, ``run.record(step, rank)`` that of another rank.
    A step recorded twice (training went back to a checkpoint) is the one written last.
    A part that is damaged, or vanishes while it is read, is a ValueError or FileNotFoundError that
    names the file; steps in other parts can still be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        require_pyarrow()
        self.path = Path(path)
        if not self.path.exists():
            raise FileNotFoundError(f"path = {str(path)!r}: does not exist, expected a run")
        if not (self.path / RUN_JSON).is_file():
            raise ValueError(f"path = {str(path)!r}: expected a run directory, with {RUN_JSON}")
        self.header: dict[str, Any] = self._run_json()["header"]
        """What the run was: the settings and the model, as its writer gave them."""
        self.bins = self._bins("bins")
        """The bins of every tensor's histogram; None where there were none."""
        self.channel_bins = self._bins("channel_bins")
        """The bins of every channel's histogram; None where there were none."""
        self._parts: dict[str, list[_Where]] = {}  # in order of rank and writing
        self._index: dict[tuple[int, int], _Where] = {}  # by rank and step
        self._tables: OrderedDict[str, Any] = OrderedDict()  # least recently used first

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def coverage(self) -> dict[str, Any] | None:
        """The coverage report that ended the run; None while it runs, or where it was killed."""
        coverage: dict[str, Any] | None = self._run_json()["coverage"]
        return coverage

    @property
    def steps(self) -> list[int]:
        """The steps that rank 0 recorded, ascending."""
        return self.steps_of(0)

    def steps_of(self, rank: int) -> list[int]:
        """The steps that `rank` recorded, ascending."""
        self._refresh()
        return sorted(step for other, step in self._index if other == rank)

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded anything, ascending."""
        self._refresh()
        return sorted({rank for rank, _ in self._index})

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def __contains__(self, step: object) -> bool:
        return step in self.steps

    def __getitem__(self, step: int) -> StepRecord:
        """What rank 0 recorded in `step`; a KeyError names the steps there are."""
        return self.record(step)

    def record(self, step: int, rank: int = 0) -> StepRecord:
        """What `rank` recorded in `step`; a KeyError names the steps or ranks there are."""
        if (rank, step) not in self._index:
            error = self._look()
            if (rank, step) not in self._index:
                raise error or KeyError(self._unknown(step, rank))
        where = self._index[rank, step]
        table = self._table(where.part).slice(where.first, where.rows)
        return _decode(table, step, rank, self.bins, self.channel_bins)

    def table(self) -> Any:
        """Everything as a pyarrow.Table: one row a step, rank, site and kind, as written.

        Columns: step, rank, site, kind, channel_dim (null: the tensor is one channel), shape,
        dtype, observed (calls merged); a list over channels each: count (finite values), nan,
        posinf, neginf, zero, mean, var (population), min, max, l1; hist_slots and hist_counts, the
        nonzero slots of the tensor's histogram (0: underflow, then the bins, then overflow);
        channel_hist_slots (channel * slots + slot) and channel_hist_counts.
        """
        self._refresh()
        pa = require_pyarrow()
        tables = [self._table(name) for name in self._parts]
        return pa.concat_tables([part_schema().empty_table(), *tables]).unify_dictionaries()

    def to_pandas(self) -> Any:
        """`table` as a pandas.DataFrame, lists as NumPy arrays; needs pandas."""
        table = self.table()
        try:
            return table.to_pandas()
        except ImportError as error:
            raise ImportError(f"to_pandas needs pandas ({error}): pip install pandas") from error

    def _run_json(self) -> dict[str, Any]:
        path = self.path / RUN_JSON
        with _naming(path):
            content: dict[str, Any] = json.loads(path.read_bytes())
            _check_version(path, content["format_version"])
            missing = {"header", "coverage"} - content.keys()
            if missing:
                raise ValueError(f"no {min(missing)!r}")
            return content

    def _bins(self, name: str) -> Bins | None:
        description = self.header.get(name)
        return None if description is None else bins_from_dict(description)

    def _refresh(self) -> None:
        """Take in new parts; raise what `_look` found."""
        error = self._look()
        if error is not None:
            raise error

    def _look(self) -> OSError | ValueError | None:
        """Take in the parts there are now; the error of the first that cannot be read, if any."""
        found = [m for p in (self.path / PARTS).iterdir() if (m := _PART_NAME.fullmatch(p.name))]
        names = [m[0] for m in sorted(found, key=lambda m: (int(m[1]), int(m[2])))]
        parts: dict[str, list[_Where]] = {}
        first_error: OSError | ValueError | None = None
        for name in names:
            try:
                parts[name] = self._parts[name] if name in self._parts else self._contents(name)
            except (OSError, ValueError) as error:  # noqa: PERF203
                first_error = first_error or error
        if parts.keys() != self._parts.keys():
            self._parts = parts
            self._index = {(w.rank, w.step): w for part in parts.values() for w in part}
        return first_error

    def _contents(self, name: str) -> list[_Where]:
        """Which records a part holds, by its footer."""
        path = self.path / PARTS / name
        with _opened(path) as file:
            about = json.loads(file.metadata.metadata[PART_KEY])
            _check_version(path, about["format_version"])
            if not file.schema_arrow.equals(part_schema()):
                raise ValueError("it has other columns")
            ends = np.cumsum([rows for _, rows in about["records"]]).tolist()
            if file.metadata.num_rows != ends[-1]:
                raise ValueError("it has other rows")
            return [
                _Where(name, about["rank"], step, end - rows, rows)
                for (step, rows), end in zip(about["records"], ends, strict=True)
            ]

    def _table(self, name: str) -> Any:
        """The rows of one part; parts never change, so those used last are kept."""
        table = self._tables.pop(name, None)
        if table is None:
            with _opened(self.path / PARTS / name) as file:
                table = file.read()
        self._tables[name] = table
        while len(self._tables) > 1 and sum(t.nbytes for t in self._tables.values()) > _CACHE_BYTES:
            self._tables.popitem(last=False)
        return table

    def _unknown(self, step: int, rank: int) -> str:
        """What to say of a step that is not there."""
        ranks = sorted({other for other, _ in self._index})
        if not ranks:
            return f"step {step}: {self.path} has no steps yet"
        steps = sorted(known for other, known in self._index if other == rank)
        if not steps:
            return f"rank {rank}: {self.path} has the ranks {', '.join(map(str, ranks))}"
        return (
            f"step {step}: {self.path} has {len(steps)} steps of rank {rank} "
            f"in {steps[0]}..{steps[-1]}"
        )


class _Where(NamedTuple):
    """The rows of one record."""

    part: str
    rank: int
    step: int
    first: int
    rows: int


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Whatever is wrong with the content of the file is a ValueError that names it."""
    try:
        yield
    except _NewerError:
        raise
    except (require_pyarrow().ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        if getattr(error, "errno", None) is not None:  # not the content: missing, not permitted
            raise
        raise ValueError(f"{path}: damaged, or not written by hookstats ({error!r})") from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The Parquet file of a part."""
    with (
        _naming(path),
        require_pyarrow().parquet.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        yield file


class _NewerError(ValueError):
    """A newer hookstats wrote the file: it is not damaged."""


def _check_version(path: Path, version: int) -> None:
    if version > FORMAT_VERSION:
        raise _NewerError(
            f"{path}: format_version {version} is newer than this hookstats, "
            f"which reads up to {FORMAT_VERSION}: pip install -U hookstats"
        )


def _decode(
    table: Any,
    step: int,
    rank: int,
    bins: Bins | None,
    channel_bins: Bins | None,
) -> StepRecord:
    """The record of one step from its rows of `part_schema`; loops over sites, not channels."""
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}

    def offsets(name: str) -> Int64:
        lengths = columns[name].value_lengths().to_numpy(zero_copy_only=False)
        return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

    def values(name: str) -> NDArray[Any]:
        array: NDArray[Any] = columns[name].flatten().to_numpy(zero_copy_only=False)
        return array

    owners = offsets("count")
    sites = tuple(
        SiteInfo(name, kind, channels, dim, tuple(shape), dtype)
        for name, kind, channels, dim, shape, dtype in zip(
            *(columns[c].to_pylist() for c in ("site", "kind")),
            np.diff(owners).tolist(),
            *(columns[c].to_pylist() for c in ("channel_dim", "shape", "dtype")),
            strict=True,
        )
    )
    tallies = np.stack([values(name) for name in TALLIES]).T
    moments = np.stack([values(_STORED.get(name, name)) for name in MOMENTS]).T
    count = tallies[:, COUNT]
    with np.errstate(over="ignore"):
        moments[:, M2] *= count
    moments[count == 0, MEAN] = IDENTITY[MEAN]
    moments[count == 0, M2] = IDENTITY[M2]
    channel_hist = SparseCounts.empty(len(count))
    if channel_bins is not None:
        starts, codes = offsets("channel_hist_slots"), values("channel_hist_slots")
        rows = np.repeat(owners[:-1], np.diff(starts)) + codes // channel_bins.slots
        channel_hist = SparseCounts(
            np.searchsorted(rows, np.arange(len(count) + 1)).astype(np.int64),
            codes % np.int32(channel_bins.slots),
            values("channel_hist_counts"),
        )
    return StepRecord(
        step=step,
        rank=rank,
        sites=sites,
        observed=columns["observed"].to_numpy(),
        offsets=owners,
        moments=moments,
        tallies=tallies,
        bins=bins,
        hist=SparseCounts(offsets("hist_slots"), values("hist_slots"), values("hist_counts")),
        channel_bins=channel_bins,
        channel_hist=channel_hist,
    )
