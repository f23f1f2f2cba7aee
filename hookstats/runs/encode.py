"""Encoding: a record as rows of a part, and a part in memory until it is written."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64
from hookstats.runs.checksums import placeholder, seal
from hookstats.runs.columns import to_columns
from hookstats.runs.format import PART_KEY, SUMS_KEY, part_schema, require_pyarrow
from hookstats.stats.state import is_higher

GROUP_BYTES = 4 << 20
"""The size of a row group: bounds buffered memory, and what is read beside one step."""


class PartBuilder:
    """A part to come: a Parquet file in memory, which is written to the disk as a whole."""

    def __init__(self, schema: Any) -> None:
        """schema: of its rows, a pyarrow.Schema."""
        pa = require_pyarrow()
        self.schema = schema
        self.records: list[tuple[int, int]] = []
        """The step of each record, or of its scalars, and its number of rows."""
        self._batches: list[Any] = []  # of the row group to come
        self._waiting = 0  # bytes in _batches
        self._groups = 0  # that are in the file
        self._buffer = pa.BufferOutputStream()
        lists = [field for field in schema if pa.types.is_list(field.type)]
        self._writer = pa.parquet.ParquetWriter(
            self._buffer,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[f.name for f in schema if pa.types.is_dictionary(f.type)],
            # No dictionaries for numbers, and the bytes of floats apart: half the time, less on
            # the disk.
            column_encoding={
                f"{field.name}.list.element": "BYTE_STREAM_SPLIT"
                if field.type.value_type == pa.float64()
                else "DELTA_BINARY_PACKED"
                for field in lists
            },
            write_batch_size=1 << 16,
            data_page_version="2.0",
            write_statistics=["step", "rank"],
            write_page_checksum=True,
        )

    @property
    def nbytes(self) -> int:
        """The bytes that the part holds in memory."""
        return int(self._buffer.tell()) + self._waiting

    def add(self, step: int, batch: Any) -> None:
        """Take the rows of a record."""
        self.records.append((step, batch.num_rows))
        self._batches.append(batch)
        self._waiting += batch.nbytes
        if self._waiting >= GROUP_BYTES:
            self._end_group()

    def finish(self, about: str) -> Any:
        """The content of the file, a pyarrow.Buffer.

        about: what the metadata say of the part, JSON.
        """
        self._end_group()
        chunks = self._groups * len(self.schema)
        self._writer.add_key_value_metadata({PART_KEY: about, SUMS_KEY: placeholder(chunks)})
        self._writer.close()
        content = self._buffer.getvalue()
        pa = require_pyarrow()
        seal(memoryview(content).cast("B"), pa.parquet.read_metadata(pa.BufferReader(content)))
        return content

    def _end_group(self) -> None:
        table = require_pyarrow().Table.from_batches(self._batches, schema=self.schema)
        if table.num_rows:
            self._writer.write_table(table.unify_dictionaries(), row_group_size=table.num_rows)
            self._groups += 1
        self._batches, self._waiting = [], 0


def encode(record: StepRecord) -> Any:
    """The record's rows as a record batch of `part_schema`; loops over no channels."""
    pa = require_pyarrow()
    schema = part_schema(higher=is_higher(record.moments))
    rows = len(record)
    columns = _encode_sites(record.sites).copy()
    columns["step"] = pa.array(np.full(rows, record.step, np.int64))
    columns["rank"] = pa.array(np.full(rows, record.rank, np.int32))
    columns["observed"] = pa.array(record.observed)

    def lists(offsets: Int64, **values: Any) -> None:
        # int32 offsets are enough: 2**31 entries would be 16 GiB in a step.
        starts = pa.array(offsets.astype(np.int32))
        for name, array in values.items():
            type = schema.field(name).type
            columns[name] = pa.ListArray.from_arrays(starts, pa.array(array), type=type)

    lists(record.offsets, **to_columns(record.moments, record.tallies))
    tensors = to_columns(record.whole.moments.numpy(), record.whole.tallies.numpy())
    columns.update((f"tensor_{name}", pa.array(values)) for name, values in tensors.items())
    hist, channel_hist = record.hist, record.channel_hist
    lists(hist.offsets, hist_slots=hist.slots, hist_counts=hist.counts)
    if record.channel_bins is not None:
        lists(
            channel_hist.offsets[record.offsets],
            channel_hist_slots=_site_slots(record, record.channel_bins.slots),
            channel_hist_counts=channel_hist.counts,
        )
    else:
        lists(
            np.zeros(rows + 1, np.int64),
            channel_hist_slots=np.zeros(0, np.int32),
            channel_hist_counts=np.zeros(0, np.int64),
        )
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


@lru_cache(maxsize=2)
def _encode_sites(sites: tuple[SiteInfo, ...]) -> dict[str, Any]:
    """The columns that describe sites; kept, since most steps have equal sites."""
    schema = part_schema()
    values = {
        "site": [site.name for site in sites],
        "kind": [site.kind for site in sites],
        "channel_dim": [site.channel_dim for site in sites],
        "shape": [list(site.shape) for site in sites],
        "dtype": [site.dtype for site in sites],
    }
    return {
        name: require_pyarrow().array(value, type=schema.field(name).type)
        for name, value in values.items()
    }


def _site_slots(record: StepRecord, slots: int) -> Any:
    """channel * slots + slot of every entry of the channel histograms, int32 [nnz]."""
    channel = np.arange(len(record.tallies)) - np.repeat(
        record.offsets[:-1], np.diff(record.offsets)
    )
    hist = record.channel_hist
    if channel.max(initial=0) * slots + slots > np.iinfo(np.int32).max:
        raise ValueError(
            f"channel_bins: {channel.max() + 1} channels of {slots} slots, "
            "expected a product below 2**31"
        )
    return (np.repeat(channel, np.diff(hist.offsets)) * slots + hist.slots).astype(np.int32)
