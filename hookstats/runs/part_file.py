"""PartFile: one part of a run directory, opened: its footer and its columns, verified."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hookstats.runs.checksums import check_column, check_footer, check_length, columns_of, span
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
        with path.open("rb") as raw:
            check_length(raw, size)
            parquet = require_pyarrow().parquet
            with parquet.ParquetFile(path) as file:
                if SUMS_KEY in (file.metadata.metadata or {}):  # of whole columns, see _chunks
                    yield PartFile(path, raw, size, file)
                    return
            with parquet.ParquetFile(path, page_checksum_verification=True) as file:
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
        self.names: list[str] = file.schema_arrow.names
        """The columns of the part, including those that are unknown here."""

    def footer(self, part: PartName, *, of_scalars: bool = False) -> Footer:
        """The footer of the part, which has this name."""
        entries = self._metadata.metadata or {}
        if PART_KEY not in entries:
            raise ValueError(f"its metadata have no entry {PART_KEY.decode()!r}")
        about = json.loads(entries[PART_KEY])
        version = check_version(self._path, about)
        # Also where a damaged version says that there are none.
        if version > 2 or SUMS_KEY in entries:
            check_footer(self._raw, self._metadata)
        groups = [
            self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)
        ]
        if of_scalars:
            check_schema(self._file.schema_arrow, scalars_schema())
            about, extras = {"bins": None, "channel_bins": None, **about}, Extras()
        else:
            extras = extras_of(self._file.schema_arrow, version)
        return parse_footer(about, version, part, groups, extras)

    def read(self, columns: Sequence[str], group: int | None = None) -> Any:
        """Some columns, of one row group or of all, as a pyarrow.Table."""
        groups = range(self._metadata.num_row_groups) if group is None else [group]
        check_size(chunk for each in groups for chunk in self._chunks(each, columns))
        return self._file.read_row_groups(list(groups), columns=columns)

    def _chunks(self, group: int, names: Collection[str]) -> Iterator[tuple[int, bytes]]:
        """The rows of some columns of a row group, and what is stored of these, verified."""
        rows = self._metadata.row_group(group).num_rows
        for number, column in enumerate(columns_of(self._metadata, group)):
            if column.path_in_schema.split(".")[0] in names:
                first, end = span(column)
                if not 0 <= first <= end <= self._size:
                    raise ValueError(f"bytes {first} to {end} are not in it")
                self._raw.seek(first)
                chunk = self._raw.read(end - first)
                check_column(self._metadata, group, number, chunk)
                yield rows, chunk
