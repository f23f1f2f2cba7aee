"""The checksums of a part: CRC-32 of its footer and of every column chunk, as hexadecimal digits.

The digits stand in the footer itself, under the key `SUMS_KEY`: eight of the footer's checksum,
which is taken with these eight digits as zeros; then eight of each column chunk (all bytes of a
column in a row group, pages with their headers), row group by row group, in the order of columns.
A reader of one column verifies that column alone.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO
from zlib import crc32

from hookstats.runs.format import SUMS_KEY

_DIGITS = 8
FOOTER_BYTES = 256 << 20
"""The most bytes of a footer that is read."""
_TAIL = 8  # bytes after the footer: its length, and "PAR1"


def placeholder(chunks: int) -> bytes:
    """The placeholder for the checksums of a part with so many column chunks, until `seal`.

    No digit is like the one before, so that the place of the digits can be found.
    """
    return b"01234567" * (1 + chunks)


def seal(content: memoryview, metadata: Any) -> None:
    """Write the checksums of a whole part into its `content`, in place of the placeholder.

    metadata: the pyarrow.parquet.FileMetaData of the part.
    """
    digits = placeholder(metadata.num_row_groups * metadata.num_columns)
    start = len(content) - _TAIL - int.from_bytes(content[-_TAIL:-4], "little")
    at = start + _position(bytes(content[start:-_TAIL]), digits)
    chunks = (
        crc32(content[first:end])
        for group in range(metadata.num_row_groups)
        for first, end in map(span, columns_of(metadata, group))
    )
    sums = "".join(f"{each:08x}" for each in chunks)
    content[at : at + len(digits)] = b"0" * _DIGITS + sums.encode()
    content[at : at + _DIGITS] = f"{crc32(content[start:-_TAIL]):08x}".encode()


def check_length(file: BinaryIO, size: int) -> None:
    """Raise a ValueError if the footer of an open part of `size` bytes is too large to be read."""
    file.seek(max(0, size - _TAIL))
    length = int.from_bytes(file.read(4), "little")
    if length > min(size, FOOTER_BYTES):
        raise ValueError(f"its footer has {length} bytes, expected at most {FOOTER_BYTES}")


def check_footer(file: BinaryIO, metadata: Any, sums: bytes | None) -> None:
    """Raise a ValueError if the footer of an open part is not as it was written.

    sums: the entry `SUMS_KEY` of the metadata.
    """
    chunks = metadata.num_row_groups * metadata.num_columns
    if sums is None or len(sums) != _DIGITS * (1 + chunks):
        raise ValueError("it has no checksums of its columns")
    file.seek(-_TAIL, os.SEEK_END)
    length = int.from_bytes(file.read(4), "little")
    file.seek(-_TAIL - length, os.SEEK_END)
    footer = file.read(length)
    at = _position(footer, sums)
    written = footer[:at] + b"0" * _DIGITS + footer[at + _DIGITS :]
    _compare(crc32(written), sums[:_DIGITS], "its footer")


def check_column(sums: bytes, number: int, name: str, chunk: bytes) -> None:
    """Raise a ValueError if the chunk of a column is not as it was written.

    sums: the entry `SUMS_KEY` of the metadata; number: that of the chunk, of all row groups.
    """
    at = _DIGITS * (1 + number)
    _compare(crc32(chunk), sums[at : at + _DIGITS], f"column {name!r}")


def _compare(found: int, expected: bytes, what: str) -> None:
    if f"{found:08x}".encode() != expected:
        raise ValueError(f"{what} has a different checksum than when it was written")


def _position(footer: bytes, sums: bytes) -> int:
    """Where the checksums stand in the footer."""
    return footer.index(sums, footer.index(SUMS_KEY))


def columns_of(metadata: Any, group: int) -> list[Any]:
    """The column chunks of a row group."""
    row_group = metadata.row_group(group)
    return [row_group.column(i) for i in range(row_group.num_columns)]


def span(column: Any) -> tuple[int, int]:
    """Where the bytes of a column chunk begin and end."""
    first = column.data_page_offset
    if column.has_dictionary_page:
        first = min(first, column.dictionary_page_offset)
    return first, first + column.total_compressed_size
