"""Parts of a run written again: other rows, other metadata, and a checksum that is right."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from hookstats.runs.format import PART_KEY, SUM_KEY
from hookstats.runs.part_file import PLACEHOLDER, seal


def rewritten(table: pa.Table, about: str) -> bytes:
    """A part of these rows, whose metadata say `about`, JSON."""
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, table.schema.remove_metadata()) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({PART_KEY: about, SUM_KEY: PLACEHOLDER})
    content = bytearray(buffer.getvalue())
    seal(memoryview(content))
    return bytes(content)
