"""PartFile: one part of a run directory, opened: its footer and its columns, verified."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hookstats.runs.checksums import check_columns, check_footer
from hookstats.runs.files import naming, require_regular
from hookstats.runs.footer import Footer, parse_footer
from hookstats.runs.format import (
    PART_KEY,
    PARTS,
    SCALARS,
    SUMS_KEY,
    PartName,
    check_schema,
    check_version,
    has_higher,
    require_pyarrow,
    scalars_schema,
)


@contextmanager
def open_part(run: Path, part: PartName, folder: str = PARTS) -> Iterator[PartFile]:
    """A part, opened; in this context, a fault in the part is a ValueError that names the file.

    folder: `PARTS`, or `SCALARS` for a part that has scalars.

    Raises:
        FileNotFoundError: there is no such part.
    """
    path = run / folder / str(part)
    with naming(path):
        require_regular(path)
        with (
            path.open("rb") as raw,
            require_pyarrow().parquet.ParquetFile(path, page_checksum_verification=True) as file,
        ):
            yield PartFile(path, raw, file)


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

    def __init__(self, path: Path, raw: BinaryIO, file: Any) -> None:
        self._path = path
        self._raw = raw
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
            about, higher = {"bins": None, "channel_bins": None, **about}, False
        else:
            higher = has_higher(self._file.schema_arrow, version)
        return parse_footer(about, version, part, groups, higher=higher)

    def read(self, columns: Sequence[str], group: int | None = None) -> Any:
        """Some columns, of one row group or of all, as a pyarrow.Table."""
        groups = range(self._metadata.num_row_groups) if group is None else [group]
        if SUMS_KEY in self._metadata.metadata:
            for each in groups:
                check_columns(self._raw, self._metadata, each, columns)
        return self._file.read_row_groups(list(groups), columns=columns)
