"""The format of a run directory: what its files are called, what is in them, and in which version.

run.json                                    format version, header, coverage once closed
parts/RANK-PART-FIRSTSTEP.parquet           one row a (step, site, kind), in order of writing
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from hookstats.runs.columns import COLUMNS
from hookstats.stats.state import TALLIES

FORMAT_VERSION = 2
"""Raised whenever a reader of the version before could misread a run.

1: without the columns `TENSOR_COLUMNS`; a part is one row group.
2: a part has row groups of whole records; its metadata have `written` and `rewinds`.
"""

RUN_JSON = "run.json"
PARTS = "parts"
PART_KEY = b"hookstats"
"""Key in a part's metadata: JSON, format_version, rank, records, a list of [step, rows]; written,
the number of records that the rank wrote into the parts before; and rewinds, see `Footer`."""

TENSOR_COLUMNS = tuple(f"tensor_{name}" for name in COLUMNS)
"""`COLUMNS` of the whole tensor, one number each."""


def require_pyarrow() -> Any:
    """The pyarrow module with pyarrow.parquet loaded, or an ImportError that says what to do."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"run directories need pyarrow ({error}): pip install 'hookstats[store]'"
        ) from error
    return pyarrow


@cache
def part_schema(version: int = FORMAT_VERSION) -> Any:
    """The Arrow schema of a part; list columns hold one entry a channel, or a nonzero slot."""
    pa = require_pyarrow()

    def field(name: str, type: Any) -> Any:
        return pa.field(name, type, nullable=name == "channel_dim")

    def list_of(type: Any) -> Any:
        return pa.list_(pa.field("element", type, nullable=False))

    def number(name: str) -> Any:
        return pa.int64() if name.removeprefix("tensor_") in TALLIES else pa.float64()

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            field("step", pa.int64()),
            field("rank", pa.int32()),
            field("site", text),
            field("kind", text),
            field("channel_dim", pa.int32()),
            field("shape", list_of(pa.int64())),
            field("dtype", text),
            field("observed", pa.int64()),
            *(field(name, number(name)) for name in TENSOR_COLUMNS if version > 1),
            *(field(name, list_of(number(name))) for name in COLUMNS),
            field("hist_slots", list_of(pa.int32())),
            field("hist_counts", list_of(pa.int64())),
            field("channel_hist_slots", list_of(pa.int32())),
            field("channel_hist_counts", list_of(pa.int64())),
        ]
    )


class PartName(NamedTuple):
    """What the name of a part says."""

    rank: int
    number: int
    """Parts of a rank are numbered from 0 in order of writing."""
    step: int
    """Of its first record."""

    def __str__(self) -> str:
        return f"{self.rank:05d}-{self.number:06d}-{self.step:012d}.parquet"


_PART_NAME = re.compile(r"(\d{5,})-(\d{6,})-(\d{12,})\.parquet")


def list_parts(run: Path) -> list[PartName]:
    """The parts of a run directory by their names, in order of rank and writing."""
    found = (_PART_NAME.fullmatch(path.name) for path in (run / PARTS).iterdir())
    return sorted(PartName(*map(int, match.groups())) for match in found if match)


class Footer(NamedTuple):
    """Which records a part holds, in order."""

    records: list[tuple[int, int]]
    """Step and number of rows of each."""
    written: int | None
    """How many records were written before, into other parts; None in version 1."""
    groups: list[int]
    """The number of rows of each row group; none of them has a part of a record."""
    rewinds: list[tuple[int, int]]
    """(number, step) of the records so far, counted from 0, that make void what was recorded before
    of their step and later ones; also where their part was deleted since. Empty in version 1."""


def read_footer(run: Path, part: PartName) -> Footer:
    """What the footer of a part says.

    Raises:
        FileNotFoundError: there is no such part.
        ValueError: it is damaged, or a newer hookstats wrote it.
    """
    path = run / PARTS / str(part)
    with open_part(run, part) as file:
        metadata = file.metadata
        about = json.loads(metadata.metadata[PART_KEY])
        check_version(path, about["format_version"])
        if not file.schema_arrow.equals(part_schema(about["format_version"])):
            raise ValueError("it has other columns")
        if about["rank"] != part.rank:
            raise ValueError(f"it is of rank {about['rank']}")
        records = [(int(step), int(rows)) for step, rows in about["records"]]
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if not records:
            raise ValueError("it has no records")
        starts = set(accumulate((rows for _, rows in records), initial=0))
        if sum(groups) != max(starts) or not starts.issuperset(accumulate(groups)):
            raise ValueError("it has other rows")
        rewinds = [(int(number), int(step)) for number, step in about.get("rewinds", [])]
        return Footer(records, about.get("written"), groups, rewinds)


@contextmanager
def open_part(run: Path, part: PartName) -> Iterator[Any]:
    """The ParquetFile of a part; whatever is wrong with it is a ValueError that names the file."""
    path = run / PARTS / str(part)
    with (
        naming(path),
        require_pyarrow().parquet.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        yield file


def read_run_json(run: Path) -> dict[str, Any]:
    """The content of run.json.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or a newer hookstats wrote it.
    """
    path = run / RUN_JSON
    with naming(path):
        content: dict[str, Any] = json.loads(path.read_bytes())
        check_version(path, content["format_version"])
        missing = {"header", "coverage"} - content.keys()
        if missing:
            raise ValueError(f"no {min(missing)!r}")
        if not isinstance(content["header"], dict):
            raise TypeError("its header is no object")
        return content


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Whatever is wrong with the content of the file is a ValueError that names it."""
    try:
        yield
    except _NewerError:
        raise
    except (require_pyarrow().ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        if getattr(error, "errno", None) is not None:  # not the content: missing, not permitted
            raise
        raise ValueError(f"{path}: damaged, or not written by hookstats ({error!r})") from error


class _NewerError(ValueError):
    """A newer hookstats wrote the file: it is not damaged."""


def check_version(path: Path, version: int) -> None:
    """Raise a ValueError that `naming` lets pass if a newer hookstats wrote the file."""
    if version > FORMAT_VERSION:
        raise _NewerError(
            f"{path}: format_version {version} is newer than this hookstats, "
            f"which reads up to {FORMAT_VERSION}: pip install -U hookstats"
        )
