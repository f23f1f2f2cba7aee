"""The format of a run directory: the names of its files and the columns of its parts.

docs/format.md specifies the format; this file holds what readers and writers share of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hookstats.stats.printable import printable
from hookstats.stats.state import MOMENTS, TALLIES

FORMAT = 1
"""The format, raised whenever a reader of the one before could misread a run."""

RUN_JSON = "run.json"
TENSORS = "tensors"
"""The directory of the parts with a row for each tensor."""
CHANNELS = "channels"
"""The directory of the parts with a row for each channel, of the steps that keep their channels."""
SCALARS = "scalars"
"""The directory of the parts with a row for each scalar."""
FOLDERS = (TENSORS, CHANNELS, SCALARS)
PART_KEY = b"hookstats"
"""Key in the metadata of a part: JSON, see `part_file.Footer`."""
SUM_KEY = b"hookstats.crc32"
"""Key in the metadata of a part: the checksum of the footer, see `part_file`."""

STATISTICS = (*TALLIES, *MOMENTS)
"""The columns of both tables that have the state of a tensor or channel."""
HISTOGRAM = ("hist_slots", "hist_counts")
"""The columns of both tables that have a histogram: the slots that are not zero, their counts."""
LAYOUT = ("global_shape", "shards", "mesh", "placements")
"""The columns that say which part of a tensor sharded over ranks a row is about."""


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
def schema_of(folder: str) -> Any:
    """The Arrow schema of the parts in a directory: `TENSORS`, `CHANNELS` or `SCALARS`."""
    pa = require_pyarrow()
    text = pa.dictionary(pa.int32(), pa.string())

    def list_of(type: Any) -> Any:
        return pa.list_(pa.field("element", type, nullable=False))

    key = {"step": pa.int64(), "rank": pa.int32()}
    site = {**key, "site": text, "kind": text}
    statistics = {
        **dict.fromkeys(TALLIES, pa.int64()),
        **dict.fromkeys(MOMENTS, pa.float64()),
        "hist_slots": list_of(pa.int32()),
        "hist_counts": list_of(pa.int64()),
    }
    described = {
        "channel_dim": pa.int32(),
        "channels": pa.int32(),
        "shape": list_of(pa.int64()),
        "dtype": text,
        "observed": pa.int64(),
        "dead": pa.int32(),
    }
    layout = {
        "global_shape": list_of(pa.int64()),
        "shards": list_of(pa.int64()),
        "mesh": text,
        "placements": text,
    }
    columns = {
        TENSORS: {**site, **described, **statistics, **layout},
        CHANNELS: {**site, "channel": pa.int32(), **statistics},
        SCALARS: {
            **key,
            "name": text,
            "value": pa.float64(),
            "time": pa.float64(),
            "text": text,
        },
    }[folder]
    nullable = {"channel_dim", "text", *LAYOUT}
    return pa.schema([pa.field(n, type, nullable=n in nullable) for n, type in columns.items()])


@cache
def merged_schema(folder: str) -> Any:
    """`schema_of` for the merged rows of all ranks: `rank` is null, and no row has a layout."""
    pa = require_pyarrow()
    rank = pa.field("rank", pa.int32())
    fields = [field for field in schema_of(folder) if field.name not in LAYOUT]
    return pa.schema([rank if field.name == "rank" else field for field in fields])


class PartName(NamedTuple):
    """The fields in the name of a part; see `index.bounds` for what they tell."""

    rank: int
    number: int
    """The parts of a rank are numbered from 0 in order of writing."""
    session: int
    """The place in run.json's `sessions` of the process group that wrote the part."""
    step: int
    """The step from which on the part replaces what the rank recorded before."""
    thinned: int = 0
    """The part has been reduced to the steps that 2 ** thinned divides, and those of incidents."""

    def __str__(self) -> str:
        name = f"{self.rank:05d}-{self.number:06d}-{self.session:03d}-{self.step:012d}"
        return f"{name}-{self.thinned:02d}.parquet" if self.thinned else f"{name}.parquet"


_PART_NAME = re.compile(r"(\d{5,})-(\d{6,})-(\d{3,})-(\d{12,})(?:-(\d{2}))?\.parquet")


def list_parts(run: Path, folder: str, *, every: bool = False) -> list[PartName]:
    """The parts in a directory of a run by their names, in order of rank and of writing.

    every: also the one that a part was before it was thinned, where a kill has left that.
    """
    try:
        names = [path.name for path in (run / folder).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = filter(None, map(_PART_NAME.fullmatch, names))
    parts = [(m[0], PartName(*[int(group or 0) for group in m.groups()])) for m in matches]
    found = sorted(part for name, part in parts if str(part) == name)
    return found if every else list({part[:2]: part for part in found}.values())


def rank_json(rank: int) -> str:
    """The name of a rank's own file: its header, and its coverage once it is closed."""
    return f"run-{rank:05d}.json"


def alerts_jsonl(rank: int) -> str:
    """The name of the file with a rank's alerts."""
    return f"alerts-{rank:05d}.jsonl"


def batch_pt(rank: int, step: int) -> str:
    """The name of the file with what a rank's calls of models got in the step of an incident."""
    return f"batch-{rank:05d}-{step:012d}.pt"


def lock_name(rank: int) -> str:
    """The name of the file that a rank's writer holds locked."""
    return f".lock-{rank:05d}"


def listed_ranks(names: Collection[str]) -> list[int]:
    """The ranks that have a header among the files of a run directory, ascending."""
    ranks = [rank for rank in map(owner, names) if rank is not None]
    return sorted({rank for rank in ranks if rank_json(rank) in names})


def owner(file: str) -> int | None:
    """The rank that writes a file, by its path in a run directory such as "tensors/00000-...";
    None for what is no file of the format."""
    match = _FILE.fullmatch(file)
    return None if match is None else int(match[1] or match[2] or 0)


_FILE = re.compile(
    r"run\.json|(?:run|alerts|batch)-(\d{5,})(?:-\d{12,})?\.(?:jsonl?|pt)|"
    r"(?:tensors|channels|scalars)/(\d{5,})-[-\d]+\.parquet"
)


def is_of_a_run(name: str) -> bool:
    """Whether a file or directory of this name, in a run directory, belongs to the format."""
    return name in (RUN_JSON, RUN_LOCK, *FOLDERS) or bool(_OF_A_RANK.fullmatch(name))


RUN_LOCK = ".lock"
"""The name of the file that is locked while run.json changes."""
_OF_A_RANK = re.compile(
    r"run-\d{5,}\.json|alerts-\d{5,}\.jsonl|batch-\d{5,}-\d{12,}\.pt|\.lock-\d{5,}"
)


class FormatError(ValueError):
    """A hookstats of another format wrote the file, which is not damaged."""


def check_format(path: Path, content: Any) -> None:
    """Check the format in the content of a file.

    Raises:
        FormatError: a newer hookstats wrote the file, or one from before the release.
        LookupError, TypeError: it is no object, or has no format.
    """
    where = printable(str(path))
    if "format" not in content and "format_version" in content:
        raise FormatError(
            f"{where}: written by a hookstats from before the release, in a format that is no "
            "longer read: record the run again, or read it with the hookstats that wrote it"
        )
    found = content["format"]
    if found > FORMAT:
        raise FormatError(
            f"{where}: format {found} is newer than this hookstats, which reads format {FORMAT}: "
            "pip install -U hookstats"
        )
