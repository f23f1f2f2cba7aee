"""Parts of a run written again, by who knows the format: other rows, other metadata, other bytes,
and checksums that are right."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from hookstats.runs.checksums import columns_of, placeholder, seal, span
from hookstats.runs.format import PART_KEY, SUMS_KEY

_TAIL = 8  # the length of the footer, and "PAR1"


def rewritten(table: pa.Table, about: str) -> bytes:
    """A part of these rows, whose metadata say `about`, JSON."""
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, table.schema.remove_metadata()) as writer:
        writer.write_table(table)
        sums = placeholder(leaves(table.schema))
        writer.add_key_value_metadata({PART_KEY: about, SUMS_KEY: sums})
    content = buffer.getvalue()
    seal(memoryview(content).cast("B"), pq.read_metadata(pa.BufferReader(content)))
    return bytes(content)


def leaves(schema: pa.Schema) -> int:
    """How many column chunks a row group has."""
    count = 0
    for field in schema:
        type = field.type
        while pa.types.is_list(type):
            type = type.value_type
        count += type.num_fields if pa.types.is_struct(type) else 1
    return count


def reseal(before: bytes, content: bytes) -> bytes:
    """`content`, which is as long as the part `before`, with checksums for its own bytes.

    The places are those of `before`. The content itself where it has no such checksums.
    """
    sums, chunks = _sums(before)
    if sums is None:
        return content
    sealed = bytearray(content)
    start = len(before) - _TAIL - int.from_bytes(before[-_TAIL:-4], "little")
    at = before.index(sums, start)
    for number, (first, end) in enumerate(chunks, 1):
        digits = f"{crc32(content[first:end]):08x}".encode()
        sealed[at + 8 * number : at + 8 * number + 8] = digits
    sealed[at : at + 8] = b"0" * 8
    with suppress(IndexError):
        sealed[at : at + 8] = f"{crc32(sealed[start:-_TAIL]):08x}".encode()
    return bytes(sealed)


@lru_cache(maxsize=64)
def _sums(part: bytes) -> tuple[bytes | None, list[tuple[int, int]]]:
    """The checksums of a part, None where there are none, and where each column chunk is."""
    metadata = pq.read_metadata(pa.BufferReader(part))
    groups = range(metadata.num_row_groups)
    spans = [span(column) for group in groups for column in columns_of(metadata, group)]
    return (metadata.metadata or {}).get(SUMS_KEY), spans
