"""PartFile: one part of a run directory, opened: its footer and its columns, verified.

Pages have Parquet's own checksums. The footer has one here: CRC-32 of the bytes from the end of the
data to the footer's length, as eight hexadecimal digits under the key `SUM_KEY`, which count as
zeros themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from hookstats.runs.files import naming
from hookstats.runs.format import (
    FORMAT,
    PART_KEY,
    SUM_KEY,
    PartName,
    check_format,
    require_pyarrow,
)

PLACEHOLDER = b"01234567"
"""The digits of the checksum until `seal`."""
_TAIL = 8  # bytes after the footer: its length, and "PAR1"
_LARGE = 1 << 17  # rows * columns from which on several threads decode


class Footer(NamedTuple):
    """What the metadata of a part say."""

    records: list[tuple[int, int]]
    """The steps of the part, ascending, and how many rows each has. Channels that were kept because
    of an incident may come before those of earlier parts."""
    written: int
    """How many records the rank wrote into earlier parts, deleted ones included."""
    groups: list[int]
    """The number of rows of each row group; every row group has whole records."""
    gaps: dict[int, str]
    """The steps that were due since the part before and are lost, and why."""
    grad_scale: float | None
    """The factor for gradients of outputs that the header had when the part was written."""


def part_about(
    rank: int,
    records: Sequence[tuple[int, int]],
    written: int = 0,
    gaps: Mapping[int, str] | None = None,
    grad_scale: float | None = None,
) -> str:
    """The metadata of a part, as `PartFile.footer` reads them."""
    about: dict[str, Any] = {"format": FORMAT, "rank": rank, "records": records, "written": written}
    if gaps:
        about["gaps"] = list(gaps.items())
    if grad_scale is not None:
        about["grad_scale"] = grad_scale
    return json.dumps(about)


def check_grad_scale(value: Any) -> float | None:
    """`value` as a factor for gradients; None stays None.

    Raises:
        ValueError: it is no number greater than 0, or not finite.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"grad_scale = {value!r}: expected a number greater than 0")
    return float(value)


def seal(content: memoryview) -> None:
    """Write the checksum of the footer of a whole part into its `content`, in place."""
    start, at = _places(content)
    content[at : at + len(PLACEHOLDER)] = b"0" * len(PLACEHOLDER)
    content[at : at + len(PLACEHOLDER)] = _sum_of(content[start:-_TAIL])


def _places(content: memoryview) -> tuple[int, int]:
    """Where the footer of a part begins, and where its checksum stands."""
    start = len(content) - _TAIL - int.from_bytes(content[-_TAIL:-4], "little")
    footer = bytes(content[start:-_TAIL])
    # The value follows its key and a tag of Thrift's, of a few bytes, in which no digit can be.
    at = footer.index(SUM_KEY) + len(SUM_KEY)
    return start, start + at + 2


def _sum_of(footer: memoryview) -> bytes:
    return f"{crc32(footer):08x}".encode()


@contextmanager
def open_part(run: Path, part: PartName, folder: str) -> Iterator[PartFile]:
    """A part, opened; in this context, a fault in the part is a ValueError that names the file.

    Raises:
        FileNotFoundError: there is no such part.
    """
    path = run / folder / str(part)
    with naming(path):
        pa = require_pyarrow()
        source = pa.OSFile(str(path))
        with source, pa.parquet.ParquetFile(source, page_checksum_verification=True) as file:
            yield PartFile(path, source, file)


def read_footer(run: Path, part: PartName, folder: str) -> Footer:
    """The footer of a part.

    Raises:
        FileNotFoundError: there is no such part.
        ValueError: it is damaged, or a newer hookstats wrote it.
    """
    with open_part(run, part, folder) as file:
        return file.footer(part)


class PartFile:
    """An open part."""

    def __init__(self, path: Path, source: Any, file: Any) -> None:
        self._path = path
        self._source = source
        self._file = file

    def footer(self, part: PartName) -> Footer:
        """The footer of the part, which has this name."""
        metadata = self._file.metadata
        entries: dict[bytes, bytes] = metadata.metadata or {}
        if PART_KEY not in entries:
            raise ValueError(f"its metadata have no entry {PART_KEY.decode()!r}")
        about = json.loads(entries[PART_KEY])
        check_format(self._path, about)
        self._check_sum(entries.get(SUM_KEY))
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if about["rank"] != part.rank:
            raise ValueError(f"it belongs to rank {about['rank']}")
        gaps = {step: str(reason) for step, reason in about.get("gaps", ())}
        scale = check_grad_scale(about.get("grad_scale"))
        return Footer([*map(tuple, about["records"])], about["written"], groups, gaps, scale)

    def _check_sum(self, expected: bytes | None) -> None:
        size = self._source.size()
        self._source.seek(size - _TAIL)
        length = int.from_bytes(self._source.read(4), "little")
        self._source.seek(size - _TAIL - length)
        content = bytearray(self._source.read(length + _TAIL))
        _, at = _places(memoryview(content))
        content[at : at + len(PLACEHOLDER)] = b"0" * len(PLACEHOLDER)
        if expected is None or _sum_of(memoryview(content)[:-_TAIL]) != expected:
            raise ValueError("its footer has a different checksum than when it was written")

    def read(self, columns: Sequence[str], groups: Sequence[int] | None = None) -> Any:
        """Some columns, of some row groups or all, as a pyarrow.Table with one chunk a column."""
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups) if groups is None else groups
        rows = sum([metadata.row_group(i).num_rows for i in groups])
        # Waking other threads for little costs more than they save.
        threads = rows * len(columns) > _LARGE
        table = self._file.read_row_groups(list(groups), columns=list(columns), use_threads=threads)
        return table.select(list(columns)).unify_dictionaries().combine_chunks()
