"""PartFile: one part of a run directory, opened: its footer and its columns, verified."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from hookstats.runs.checksums import check_column, check_footer, check_length, span
from hookstats.runs.files import naming, require_regular
from hookstats.runs.footer import Footer, parse_footer
from hookstats.runs.format import (
    PART_KEY,
    PARTS,
    SCALARS,
    SUMS_KEY,
    Extras,
    PartName,
    check_schema,
    check_version,
    extras_of,
    require_pyarrow,
    scalars_schema,
)
from hookstats.runs.pages import check_size

SMALL_BYTES = 1 << 20
"""The most bytes of a part that is read as a whole, and of columns that one thread decodes."""


@contextmanager
def open_part(run: Path, part: PartName, folder: str = PARTS) -> Iterator[PartFile]:
    """A part, opened; in this context, a fault in the part is a ValueError that names the file.

    folder: `PARTS`, or `SCALARS` for a part that has scalars.

    Raises:
        FileNotFoundError: there is no such part.
    """
    path = run / folder / str(part)
    with naming(path):
        size = require_regular(path)
        with path.open("rb") as on_disk:
            pa = require_pyarrow()
            raw: BinaryIO = on_disk
            source: Callable[[], Any] = lambda: path  # noqa: E731
            if size <= SMALL_BYTES:
                content = on_disk.read(SMALL_BYTES + 1)
                raw, size = BytesIO(content), len(content)
                source = lambda: pa.BufferReader(content)  # noqa: E731
            check_length(raw, size)
            with pa.parquet.ParquetFile(source()) as file:
                opened = PartFile(path, raw, size, file)
                if opened.has_sums:  # of whole columns, see _chunks
                    yield opened
                    return
            with pa.parquet.ParquetFile(source(), page_checksum_verification=True) as file:
                yield PartFile(path, raw, size, file)


def read_footer(run: Path, part: PartName, folder: str = PARTS) -> Footer:
    """The footer of a part, as `open_part` finds it.

    Raises:
        FileNotFoundError: there is no such part.
        ValueError: it is damaged, or a newer hookstats wrote it.
    """
    with open_part(run, part, folder) as file:
        return file.footer(part, of_scalars=folder == SCALARS)


class PartFile:
    """An open part."""

    def __init__(self, path: Path, raw: BinaryIO, size: int, file: Any) -> None:
        self._path = path
        self._raw = raw
        self._size = size
        self._file = file
        self._metadata = file.metadata
        self._entries: dict[bytes, bytes] = file.metadata.metadata or {}
        self.has_sums = SUMS_KEY in self._entries
        """Whether the part has checksums of its footer and its columns."""
        self.names: list[str] = file.schema_arrow.names
        """The columns of the part, including those that are unknown here."""

    def footer(self, part: PartName, *, of_scalars: bool = False) -> Footer:
        """The footer of the part, which has this name."""
        if PART_KEY not in self._entries:
            raise ValueError(f"its metadata have no entry {PART_KEY.decode()!r}")
        about = json.loads(self._entries[PART_KEY])
        version = check_version(self._path, about)
        # Also where a damaged version says that there are none.
        if version > 2 or self.has_sums:
            check_footer(self._raw, self._metadata, self._entries.get(SUMS_KEY))
        groups = [
            self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)
        ]
        if of_scalars:
            check_schema(self._file.schema_arrow, scalars_schema())
            about, extras = {"bins": None, "channel_bins": None, **about}, Extras()
        else:
            extras = extras_of(self._file.schema_arrow, version)
        footer = parse_footer(about, version, part, groups, extras)
        return footer._replace(is_small=self._size <= SMALL_BYTES)

    def read(self, columns: Sequence[str], group: int | None = None) -> Any:
        """Some columns, of one row group or of all, as a pyarrow.Table."""
        groups = range(self._metadata.num_row_groups) if group is None else [group]
        schema = self._metadata.schema
        leaves = [
            (number, name)
            for number in range(self._metadata.num_columns)
            if (name := schema.column(number).path.split(".")[0]) in columns
        ]
        stored = check_size(chunk for each in groups for chunk in self._chunks(each, leaves))
        # Waking other threads for little costs more than they save.
        is_large = stored > SMALL_BYTES
        return self._file.read_row_groups(list(groups), columns=columns, use_threads=is_large)

    def _chunks(self, group: int, leaves: Iterable[tuple[int, str]]) -> Iterator[tuple[int, bytes]]:
        """The rows of some columns of a row group, and what is stored of these, verified.

        leaves: the columns, each by its number, with its name.
        """
        row_group = self._metadata.row_group(group)
        rows, sums = row_group.num_rows, self._entries.get(SUMS_KEY)
        first_sum = group * self._metadata.num_columns
        for number, name in leaves:
            first, end = span(row_group.column(number))
            if not 0 <= first <= end <= self._size:
                raise ValueError(f"bytes {first} to {end} are not in it")
            self._raw.seek(first)
            chunk = self._raw.read(end - first)
            if sums is not None:  # parts before version 3 have none
                check_column(sums, first_sum + number, name, chunk)
            yield rows, chunk
