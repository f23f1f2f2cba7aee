"""Encoding: records as rows of the tensors and channels tables, and these as a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.layout import Layout, mesh_text, placements_text
from hookstats.records.record import SiteInfo, StepRecord, Table, kept_of_sites
from hookstats.runs.arrays import chosen, lists_as, numbers_as, optional_as, texts_of
from hookstats.runs.format import (
    CHANNELS,
    PART_KEY,
    SUM_KEY,
    TENSORS,
    merged_schema,
    require_pyarrow,
    schema_of,
)
from hookstats.runs.part_file import PLACEHOLDER, seal
from hookstats.stats.state import MOMENTS, TALLIES


class Rows(NamedTuple):
    """What a step adds to a part."""

    step: int
    rows: int
    nbytes: int
    content: Any
    """What the encoder of the part's directory takes."""


def tensor_rows(record: StepRecord) -> Rows:
    """The tensors of a step."""
    return Rows(record.step, len(record), record.tensors.nbytes, record)


def channel_rows(record: StepRecord) -> Rows | None:
    """The channels of a step; None where the record has none."""
    channels = record.channels
    return None if channels is None else Rows(record.step, channels.rows, channels.nbytes, record)


def encode_tensors(records: Sequence[StepRecord]) -> Any:
    """The tensors of records as a record batch; loops over no tensors."""
    pa = require_pyarrow()
    described = [_encode_sites(record.sites) for record in records]
    columns = {
        **_keys(records, [len(record) for record in records]),
        **{name: pa.concat_arrays([each[name] for each in described]) for name in described[0]},
        "observed": np.concatenate([record.observed for record in records]),
        "dead": np.concatenate([record.dead for record in records]).astype(np.int32),
        **_statistics([record.tensors for record in records]),
    }
    return _batch(columns, TENSORS, is_merged=records[0].rank is None)


def encode_channels(records: Sequence[StepRecord]) -> Any:
    """The channels of records, which have them, as a record batch; loops over no channels."""
    pa = require_pyarrow()
    tables = [record.channels for record in records if record.channels is not None]
    owners = [_owners(record.sites) for record in records]
    described = [_encode_sites(record.sites) for record in records]
    columns: dict[str, Any] = _keys(records, [table.rows for table in tables])
    for name in ("site", "kind"):
        pairs = zip(described, owners, strict=True)
        taken = [chosen(each[name], site) for each, (site, _) in pairs]
        columns[name] = pa.concat_arrays(taken)
    columns["channel"] = np.concatenate([channel for _, channel in owners])
    merged = records[0].rank is None
    return _batch({**columns, **_statistics(tables)}, CHANNELS, is_merged=merged)


def _batch(columns: dict[str, Any], folder: str, *, is_merged: bool) -> Any:
    pa = require_pyarrow()
    schema = (merged_schema if is_merged else schema_of)(folder)
    arrays = [
        numbers_as(column, field.type) if isinstance(column, np.ndarray) else column
        for field in schema
        for column in [columns[field.name]]
    ]
    return pa.record_batch(arrays, schema=schema)


def _keys(records: Sequence[StepRecord], rows: Sequence[int]) -> dict[str, Any]:
    pa = require_pyarrow()
    steps = np.repeat(np.array([record.step for record in records], np.int64), rows)
    # The records of a call are all of one rank, or all merged, which have none.
    rank = records[0].rank
    ranks = pa.nulls(len(steps), pa.int32())
    return {"step": steps, "rank": ranks if rank is None else np.full(len(steps), rank, np.int32)}


def _statistics(tables: Sequence[Table]) -> dict[str, Any]:
    """The columns of `format.STATISTICS` and `format.HISTOGRAM`."""
    pa = require_pyarrow()
    moments, tallies, hist = Table.joined(tables)
    # int32 offsets are enough: 2**31 entries would be 24 GiB in a part.
    offsets = numbers_as(hist.offsets, pa.int32())
    schema = schema_of(TENSORS)
    lists: dict[str, NDArray[Any]] = {"hist_slots": hist.slots, "hist_counts": hist.counts}
    types = {name: schema.field(name).type for name in lists}
    return {
        **dict(zip(TALLIES, np.ascontiguousarray(tallies), strict=True)),
        **dict(zip(MOMENTS, np.ascontiguousarray(moments), strict=True)),
        **{
            name: pa.ListArray.from_arrays(
                offsets, numbers_as(values, types[name].value_type), type=types[name]
            )
            for name, values in lists.items()
        },
    }


@kept_of_sites
def _owners(sites: tuple[SiteInfo, ...]) -> tuple[Any, Any]:
    """The site of each channel, and the number of the channel there."""
    lengths = np.array([site.channels for site in sites], np.int64)
    site = np.repeat(np.arange(len(sites)), lengths)
    channel = np.arange(len(site)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return site, channel.astype(np.int32)


@kept_of_sites
def _encode_sites(sites: tuple[SiteInfo, ...]) -> dict[str, Any]:
    """The columns that describe sites."""
    schema = schema_of(TENSORS)
    layouts = [site.layout for site in sites]
    texts: dict[str, list[str | None]] = {
        "site": [site.name for site in sites],
        "kind": [site.kind for site in sites],
        "dtype": [site.dtype for site in sites],
        "mesh": [one and mesh_text(one.meshes) for one in layouts],
        "placements": [one and placements_text(one.placements) for one in layouts],
    }
    lists: dict[str, list[Sequence[int] | None]] = {
        "shape": [site.shape for site in sites],
        "global_shape": [one and one.global_shape for one in layouts],
        "shards": [_shards(one) for one in layouts],
    }
    numbers: dict[str, list[int | None]] = {
        "channel_dim": [site.channel_dim for site in sites],
        "channels": [site.channels for site in sites],
    }
    return {
        **{name: texts_of(values) for name, values in texts.items()},
        **{name: lists_as(values, schema.field(name).type) for name, values in lists.items()},
        **{name: optional_as(values, schema.field(name).type) for name, values in numbers.items()},
    }


def _shards(layout: Layout | None) -> list[int] | None:
    """Five numbers per cut."""
    if layout is None or layout.cuts is None:
        return None
    return [number for cut in layout.cuts for number in cut]


class PartBuilder:
    """A Parquet file in memory, which is written to the disk as a whole."""

    def __init__(self, schema: Any) -> None:
        pa = require_pyarrow()
        self._schema = schema
        # Arrow's own pool gives memory back between steps, to have it cleared again.
        pool = pa.system_memory_pool()
        self._buffer = pa.BufferOutputStream(pool)
        self._writer = pa.parquet.ParquetWriter(
            self._buffer,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[field.name for field in schema if _is_repeated(field)],
            column_encoding=dict(_encoding(field) for field in schema if not _is_repeated(field)),
            write_batch_size=1 << 16,
            data_page_version="2.0",
            write_statistics=["step", "rank"],
            write_page_checksum=True,
            memory_pool=pool,
        )

    def add(self, batches: Sequence[Any]) -> None:
        """Write record batches, or tables, as a row group."""
        pa = require_pyarrow()
        tables = [b if isinstance(b, pa.Table) else pa.Table.from_batches([b]) for b in batches]
        table = pa.concat_tables(tables).unify_dictionaries()
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)

    def finish(self, about: str) -> Any:
        """The content of the file, a pyarrow.Buffer.

        about: what the metadata say of the part, JSON.
        """
        self._writer.add_key_value_metadata({PART_KEY: about, SUM_KEY: PLACEHOLDER})
        self._writer.close()
        content = self._buffer.getvalue()
        seal(memoryview(content).cast("B"))
        return content


_REPEATED = ("step", "rank", "channel_dim", "channels", "observed", "dead", "time")


def _is_repeated(field: Any) -> bool:
    """Whether a column has the same few values again and again."""
    is_text = require_pyarrow().types.is_dictionary(field.type)
    return is_text or field.name in _REPEATED


_PLAIN = ("nan", "posinf", "neginf", "hist_slots")
"""What takes no less on the disk by differences: mostly zeros, and numbers that ascend again and
again."""


def _encoding(field: Any) -> tuple[str, str]:
    """A column of numbers and its encoding: the bytes of floats apart, and integers by their
    differences, which takes half the time and less on the disk than dictionaries of them."""
    pa = require_pyarrow()
    name = f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
    if field.name in _PLAIN:
        return name, "PLAIN"
    return name, "BYTE_STREAM_SPLIT" if field.type == pa.float64() else "DELTA_BINARY_PACKED"


def encode_part(
    schema: Any,
    encode: Any,
    rows: Sequence[Rows],
    about: str,
    bytes_per_group: int,
) -> Any:
    """A part of these rows, a pyarrow.Buffer.

    Args:
        encode: makes a record batch of the contents of rows.
        about: what the metadata say of the part, JSON.
        bytes_per_group: the size in memory at which a row group ends; bounds what is read beside
            one step.
    """
    builder = PartBuilder(schema)
    group: list[Any] = []
    size = 0
    for each in rows:
        group.append(each.content)
        size += each.nbytes
        if size >= bytes_per_group:
            builder.add([encode(group)])
            group, size = [], 0
    if group:
        builder.add([encode(group)])
    return builder.finish(about)
