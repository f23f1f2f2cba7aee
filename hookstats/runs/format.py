"""The format of a run directory: the names of its files, the columns of its parts, its versions.

docs/format.md specifies the format; this file holds what readers and writers share of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hookstats.runs.columns import COLUMNS
from hookstats.stats.printable import printable
from hookstats.stats.state import TALLIES

FORMAT_VERSION = 3
"""The version, raised whenever a reader of the version before could misread a run.

1: without the columns `TENSOR_COLUMNS`; a part is one row group.
2: a part has row groups of whole records; its metadata have `written` and `rewinds`.
3: one header per rank, checksums, optional column groups, `requires`.
"""

PHASES = "phases"
SAMPLED = "sampled"
FEATURES: frozenset[str] = frozenset([PHASES, SAMPLED])
"""The features that this reader knows among those that a run may require of its readers."""

RUN_JSON = "run.json"
THINNING_JSON = "thinning.json"
"""How many steps are thinned together, on all ranks; see `thinning`."""
INCIDENTS = "incidents"
"""The directory whose names say which steps are around incidents, of any rank; see `thinning`."""
PARTS = "parts"
"""The directory of the parts that have records."""
SCALARS = "scalars"
"""The directory of the parts that have scalars."""
PART_KEY = b"hookstats"
"""Key in the metadata of a part: JSON, see `footer.Footer`."""
SUMS_KEY = b"hookstats.crc32"
"""Key in the metadata of a part: its checksums, see `checksums`."""

TENSOR_COLUMNS = tuple(f"tensor_{name}" for name in COLUMNS)
"""`COLUMNS` of the whole tensor, one number per row."""

SPARSE_COLUMNS = ("hist_slots", "hist_counts", "channel_hist_slots", "channel_hist_counts")
"""The columns of histograms: the slots that are not zero, and their counts."""


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


LAYOUT_COLUMNS = ("global_shape", "shards", "mesh", "placements")
"""The columns that say which part of a distributed tensor a row is about."""


CHANNELS_COLUMN = "channels"
"""The column that says how many channels a site has, where rows may be of whole tensors instead."""

PHASE_COLUMN = "phase"
"""The column that says in which phase a module was called; null: in training."""


class Extras(NamedTuple):
    """Which optional groups of columns a part has."""

    layout: bool = False
    """`LAYOUT_COLUMNS`."""
    phases: bool = False
    """`PHASE_COLUMN`."""
    channels: bool = False
    """`CHANNELS_COLUMN`."""


ALL_EXTRAS = Extras(*[True] * len(Extras._fields))


_NO_EXTRAS = Extras()


@cache
def part_schema(version: int = FORMAT_VERSION, extras: Extras = _NO_EXTRAS) -> Any:
    """The Arrow schema of a part, with some optional groups of columns.

    List columns hold one entry per channel, or one per histogram slot that is not zero.
    """
    pa = require_pyarrow()

    def field(name: str, type: Any) -> Any:
        optional = name.removeprefix("tensor_") in _NULLABLE
        return pa.field(name, type, nullable=optional)

    def list_of(type: Any) -> Any:
        return pa.list_(pa.field("element", type, nullable=False))

    def number(name: str) -> Any:
        return pa.int64() if name in TALLIES else pa.float64()

    text = pa.dictionary(pa.int32(), pa.string())
    phase = (field(PHASE_COLUMN, text),)
    channels = (field(CHANNELS_COLUMN, pa.int32()),)
    layout = (
        field("global_shape", list_of(pa.int64())),
        field("shards", list_of(pa.int64())),
        field("mesh", text),
        field("placements", text),
    )
    return pa.schema(
        [
            field("step", pa.int64()),
            field("rank", pa.int32()),
            field("site", text),
            field("kind", text),
            *(phase if extras.phases else ()),
            field("channel_dim", pa.int32()),
            *(channels if extras.channels else ()),
            field("shape", list_of(pa.int64())),
            field("dtype", text),
            field("observed", pa.int64()),
            *(field(f"tensor_{name}", number(name)) for name in COLUMNS if version > 1),
            *(field(name, list_of(number(name))) for name in COLUMNS),
            field("hist_slots", list_of(pa.int32())),
            field("hist_counts", list_of(pa.int64())),
            field("channel_hist_slots", list_of(pa.int32())),
            field("channel_hist_counts", list_of(pa.int64())),
            *(layout if extras.layout else ()),
        ]
    )


_NULLABLE = (*LAYOUT_COLUMNS, PHASE_COLUMN, "channel_dim")


@cache
def scalars_schema() -> Any:
    """The Arrow schema of a part that has scalars: one row per step and name."""
    pa = require_pyarrow()
    types = {
        "step": pa.int64(),
        "rank": pa.int32(),
        "name": pa.dictionary(pa.int32(), pa.string()),
        "value": pa.float64(),
        "time": pa.float64(),
    }
    return pa.schema([pa.field(name, type, nullable=False) for name, type in types.items()])


def extras_of(stored: Any, version: int) -> Extras:
    """The optional groups that a part with the Arrow schema `stored` has.

    Columns that are in no schema of the version are ignored.

    Raises:
        ValueError: a column of the version is missing or of another type, or some but not all
            columns of a group are there.
    """
    names, extras = set(stored.names), Extras()
    if version > 2:
        groups = (LAYOUT_COLUMNS, (PHASE_COLUMN,), (CHANNELS_COLUMN,))
        extras = Extras(*(not names.isdisjoint(each) for each in groups))
    check_schema(stored, part_schema(version, extras))
    return extras


def check_schema(stored: Any, expected: Any) -> None:
    """Raise a ValueError unless the Arrow schema `stored` has all fields that are expected."""
    if stored.equals(expected):
        return
    names = set(stored.names)
    for field in expected:
        if field.name not in names:
            raise ValueError(f"it has no column {field.name!r}")
        found = stored.field(field.name)
        if not found.equals(field):
            raise ValueError(f"its column {field.name!r} is {found}, expected {field}")


class PartName(NamedTuple):
    """The fields in the name of a part."""

    rank: int
    number: int
    """The parts of a rank are numbered from 0 in order of writing."""
    step: int
    """The step of its first record."""

    def __str__(self) -> str:
        return f"{self.rank:05d}-{self.number:06d}-{self.step:012d}.parquet"


_PART_NAME = re.compile(r"(\d{5,})-(\d{6,})-(\d{12,})\.parquet")
_RANK_NAME = re.compile(r"run-(\d{5,})\.json")


def list_parts(run: Path, folder: str = PARTS) -> list[PartName]:
    """The parts of a run directory by their names, in order of rank and of writing.

    folder: `PARTS` or `SCALARS`; a run without scalars has no directory of them.

    Raises:
        ValueError: the run has no directory of parts.
    """
    try:
        names = [path.name for path in (run / folder).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        if folder == SCALARS:
            return []
        raise ValueError(
            f"{printable(str(run / PARTS))}: no such directory: the run is damaged, or not written "
            "by hookstats"
        ) from None
    matches = filter(None, map(_PART_NAME.fullmatch, names))
    parts = ((match[0], PartName(*map(int, match.groups()))) for match in matches)
    return sorted(part for name, part in parts if str(part) == name)


def rank_json(rank: int) -> str:
    """The name of a rank's own file: its header, and its coverage once it is closed."""
    return f"run-{rank:05d}.json"


def alerts_jsonl(rank: int) -> str:
    """The name of the file with a rank's alerts."""
    return f"alerts-{rank:05d}.jsonl"


def listed_ranks(names: Collection[str]) -> list[int]:
    """The ranks that have a file of their own among the files of a run directory, ascending."""
    found = ((name, _RANK_NAME.fullmatch(name)) for name in names)
    ranks = [(name, int(match[1])) for name, match in found if match]
    return sorted(rank for name, rank in ranks if rank_json(rank) == name)


def is_of_a_run(name: str) -> bool:
    """Whether a file or directory of this name, in a run directory, belongs to the format."""
    shared = (RUN_JSON, THINNING_JSON, INCIDENTS, PARTS, SCALARS)
    return name in shared or bool(_OF_A_RANK.fullmatch(name))


_OF_A_RANK = re.compile(r"run-\d{5,}\.json|alerts-\d{5,}\.jsonl|lock-\d{5,}\.json")


class NewerError(ValueError):
    """A newer hookstats wrote the file, which is not damaged."""


def check_version(path: Path, content: Any) -> int:
    """The format_version in the content of a file, if this hookstats can read that version.

    Raises:
        NewerError: a newer hookstats wrote the file, or it requires a feature unknown here.
        ValueError: it is no object, or has no version.
    """
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    version = content.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"format_version = {version!r}: expected an integer, 1 or more")
    if version > FORMAT_VERSION:
        raise NewerError(
            f"{printable(str(path))}: format_version {version} is newer than this hookstats, "
            f"which reads up to {FORMAT_VERSION}: pip install -U hookstats"
        )
    requires = content.get("requires", [])
    if not (isinstance(requires, list) and all(isinstance(name, str) for name in requires)):
        raise ValueError(f"requires = {requires!r}: expected a list of names")
    unknown = [name for name in requires if name not in FEATURES]
    if unknown:
        raise NewerError(
            f"{printable(str(path))}: requires {', '.join(map(repr, unknown))}, which this "
            "hookstats does not know: pip install -U hookstats"
        )
    return version
