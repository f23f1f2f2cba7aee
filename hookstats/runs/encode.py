"""Encoding: records as rows of a part, and a part in memory until it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hookstats.records.keys import split_phase
from hookstats.records.layout import Layout, mesh_text, placements_text
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.records.wholes import wholes
from hookstats.runs.checksums import placeholder, seal
from hookstats.runs.columns import to_columns
from hookstats.runs.format import (
    ALL_EXTRAS,
    CHANNELS_COLUMN,
    LAYOUT_COLUMNS,
    PART_KEY,
    PHASE_COLUMN,
    SUMS_KEY,
    Extras,
    part_schema,
    require_pyarrow,
)
from hookstats.stats.merge import joined_rows, offsets_of

_TOGETHER = 64
"""How many records of a small model are encoded at once: one by one costs twenty times as much."""
_BYTES_TOGETHER = 4 << 20


class Rows(NamedTuple):
    """What a step adds to a part; encoded together with what is alike of other steps."""

    step: int
    rows: int
    nbytes: int
    alike: object
    """Equal for what can be encoded together."""
    content: Any


class PartBuilder:
    """A part to come: a Parquet file in memory, which is written to the disk as a whole."""

    def __init__(
        self, schema: Any, encode: Callable[[Sequence[Any]], Any], bytes_per_group: int
    ) -> None:
        """Begin a part without rows.

        Args:
            schema: of its rows, a pyarrow.Schema.
            encode: makes a record batch of the contents of Rows.
            bytes_per_group: the size at which a row group ends; bounds buffered memory, and what
                is read beside one step.
        """
        pa = require_pyarrow()
        self.schema = schema
        self._encoder = encode
        self._bytes_per_group = bytes_per_group
        self.records: list[tuple[int, int]] = []
        """The step of each record, or of its scalars, and its number of rows."""
        self.broken = False
        """Whether an error came while Arrow wrote: what the part has cannot be finished."""
        self._plain: list[list[Rows]] = []  # not encoded yet; those of a list are alike
        self._plain_bytes = 0
        self._batches: list[Any] = []  # of the row group to come
        self._waiting = 0  # bytes in _batches
        self._groups = 0  # that are in the file
        self._written = 0  # bytes of these
        # Arrow's own pool gives memory back between steps, to have it cleared again.
        pool = pa.system_memory_pool()
        self._buffer = pa.BufferOutputStream(pool)
        lists = [field for field in schema if pa.types.is_list(field.type)]
        self._writer = pa.parquet.ParquetWriter(
            self._buffer,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[f.name for f in schema if pa.types.is_dictionary(f.type)],
            column_encoding={f"{field.name}.list.element": _encoding(field) for field in lists},
            write_batch_size=1 << 16,
            data_page_version="2.0",
            write_statistics=["step", "rank"],
            write_page_checksum=True,
            memory_pool=pool,
        )

    @property
    def nbytes(self) -> int:
        """The bytes that the part holds in memory."""
        return self._written + self._waiting + self._plain_bytes

    def add(self, rows: Rows) -> None:
        """Take the rows of a step; also where there is no memory to encode them, which is an error:
        the next step tries again."""
        self.records.append((rows.step, rows.rows))
        if self._plain and self._plain[-1][0].alike == rows.alike:
            self._plain[-1].append(rows)
        else:
            self._plain.append([rows])
        self._plain_bytes += rows.nbytes
        full = len(self._plain[-1]) >= _TOGETHER or self._plain_bytes >= _BYTES_TOGETHER
        self._encode(but=0 if full else 1)
        if self._waiting >= self._bytes_per_group:
            self._end_group()

    def _encode(self, but: int = 0) -> None:
        """Encode what is plain, `but` the last lists of it."""
        while len(self._plain) > but:
            alike = self._plain[0]
            batch = self._encoder([rows.content for rows in alike])
            self._batches.append(batch)
            self._waiting += batch.nbytes
            self._plain_bytes -= sum(rows.nbytes for rows in alike)
            del self._plain[0]

    def finish(self, about: str) -> Any:
        """The content of the file, a pyarrow.Buffer; what fails may be tried again, unless it is
        `broken`.

        about: what the metadata say of the part, JSON.
        """
        self._end_group()
        self.broken = True  # until all is written
        chunks = self._groups * len(self.schema)
        self._writer.add_key_value_metadata({PART_KEY: about, SUMS_KEY: placeholder(chunks)})
        self._writer.close()
        content = self._buffer.getvalue()
        pa = require_pyarrow()
        seal(memoryview(content).cast("B"), pa.parquet.read_metadata(pa.BufferReader(content)))
        self.broken = False
        return content

    def _end_group(self) -> None:
        if self.broken:
            raise RuntimeError("an error came while the part was written")
        self._encode()
        table = require_pyarrow().Table.from_batches(self._batches, schema=self.schema)
        if table.num_rows:
            unified = table.unify_dictionaries()
            self.broken = True  # until the group is written
            self._writer.write_table(unified, row_group_size=table.num_rows)
            self.broken = False
            self._groups += 1
            self._written = int(self._buffer.tell())
        self._batches, self._waiting = [], 0


def _encoding(field: Any) -> str:
    """The encoding of a column of lists. No dictionaries for numbers, and the bytes of floats
    apart: half the time, less on the disk."""
    if field.name in ("nan", "posinf", "neginf"):  # as a rule zeros, which take no less by delta
        return "PLAIN"
    floats = field.type.value_type == require_pyarrow().float64()
    return "BYTE_STREAM_SPLIT" if floats else "DELTA_BINARY_PACKED"


class _Facts(NamedTuple):
    """What follows from the sites of a record alone."""

    widest: int
    """The most channels of a site."""
    layout: bool
    """Whether any site is a part of a tensor that is spread over ranks."""
    phases: bool
    """Whether any site is of a phase."""


@lru_cache(maxsize=2)
def _facts_of(sites: tuple[SiteInfo, ...]) -> _Facts:
    """The facts of sites that can be encoded; kept, since most steps have equal sites."""
    encode_sites(sites)
    return _Facts(
        max((site.channels for site in sites), default=0),
        any(site.layout for site in sites),
        any(split_phase(site.kind)[0] is not None for site in sites),
    )


def rows_of(record: StepRecord) -> Rows:
    """What a record adds to a part.

    Raises:
        ValueError: the record cannot be encoded.
    """
    channels = _facts_of(record.sites).widest
    slots = 0 if record.channel_bins is None else record.channel_bins.slots
    if channels * slots > np.iinfo(np.int32).max:
        raise ValueError(
            f"channel_bins: {channels} channels of {slots} slots, expected a product below 2**31"
        )
    return Rows(record.step, len(record), _nbytes(record), record.sites, record)


def schema_of(record: StepRecord, *, detail: bool = False) -> Any:
    """The schema of the rows of a record; the same object for records that are alike.

    detail: whether rows say how many channels their sites have.
    """
    _, layout, phases = _facts_of(record.sites)
    schema = part_schema(extras=Extras(layout, phases, detail))
    return merged_schema(schema) if record.rank is None else schema


@lru_cache(maxsize=8)
def merged_schema(schema: Any) -> Any:
    """The schema of the merged rows of all ranks: `rank` is null, and no row has a layout."""
    pa = require_pyarrow()
    kept = [field for field in schema if field.name not in LAYOUT_COLUMNS]
    rank = pa.field("rank", pa.int32())
    return pa.schema([rank if field.name == "rank" else field for field in kept])


def encode_table(record: StepRecord, schema: Any = None, *, detail: bool = False) -> Any:
    """The rows of a record as a table, of this schema if there is one; columns that the record
    lacks are null.

    detail: as in `schema_of`; a schema says so itself.
    """
    pa = require_pyarrow()
    detail = detail if schema is None else CHANNELS_COLUMN in schema.names
    table = pa.Table.from_batches([encode([record], schema_of(record, detail=detail))])
    for field in schema or ():
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(record), field.type))
    return table if schema is None else table.select(schema.names).cast(schema)


def join_tables(tables: Sequence[Any]) -> Any:
    """Tables of `encode_table`, one after the other; of columns that not all have, none."""
    names = [n for n in tables[0].column_names if all(n in t.column_names for t in tables)]
    return require_pyarrow().concat_tables([table.select(names) for table in tables])


def encode(records: Sequence[StepRecord], schema: Any = None) -> Any:
    """The rows of records as a record batch of `part_schema`; loops over no channels.

    The records have the same sites, bins and columns of moments.

    schema: that of the first record, if it is known.
    """
    pa = require_pyarrow()
    first = records[0]
    schema = schema_of(first) if schema is None else schema
    rows = len(first)
    columns = {
        name: pa.concat_arrays([values] * len(records))
        for name, values in encode_sites(first.sites).items()
    }
    columns["step"] = pa.array(np.repeat(np.array([r.step for r in records], np.int64), rows))
    columns["rank"] = pa.array([r.rank for r in records for _ in range(rows)], pa.int32())
    columns["observed"] = pa.array(np.concatenate([r.observed for r in records]))

    def lists(offsets: Int64, **values: Any) -> None:
        # int32 offsets are enough: 2**31 entries would be 16 GiB in a step.
        starts = pa.array(offsets.astype(np.int32))
        for name, array in values.items():
            type = schema.field(name).type
            columns[name] = pa.ListArray.from_arrays(starts, pa.array(array), type=type)

    offsets = offsets_of(np.concatenate([np.diff(r.offsets) for r in records]))
    states = joined_rows([r.moments for r in records]), joined_rows([r.tallies for r in records])
    lists(offsets, **to_columns(*states))
    tensors = to_columns(*wholes(records))
    columns.update((f"tensor_{name}", pa.array(values)) for name, values in tensors.items())
    hist = SparseCounts.joined([r.hist for r in records])
    lists(hist.offsets, hist_slots=hist.slots, hist_counts=hist.counts)
    if first.channel_bins is not None:
        channel_hist = SparseCounts.joined([r.channel_hist for r in records])
        lists(
            channel_hist.offsets[offsets],
            channel_hist_slots=_site_slots(channel_hist, offsets, first.channel_bins.slots),
            channel_hist_counts=channel_hist.counts,
        )
    else:
        lists(
            np.zeros(len(records) * rows + 1, np.int64),
            channel_hist_slots=np.zeros(0, np.int32),
            channel_hist_counts=np.zeros(0, np.int64),
        )
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _nbytes(record: StepRecord) -> int:
    """The bytes of a record's arrays."""
    hists = record.hist, record.channel_hist
    arrays = [array for h in hists for array in (h.offsets, h.slots, h.counts)]
    return sum(a.nbytes for a in (record.moments, record.tallies, record.observed, *arrays))


@lru_cache(maxsize=2)
def encode_sites(sites: tuple[SiteInfo, ...]) -> dict[str, Any]:
    """The columns that describe sites; kept, since most steps have equal sites."""
    schema = part_schema(extras=ALL_EXTRAS)
    layouts = [site.layout for site in sites]
    kinds = [split_phase(site.kind) for site in sites]
    values: dict[str, list[Any]] = {
        "site": [site.name for site in sites],
        "kind": [kind for _, kind in kinds],
        PHASE_COLUMN: [phase for phase, _ in kinds],
        "channel_dim": [site.channel_dim for site in sites],
        CHANNELS_COLUMN: [site.merged or site.channels for site in sites],
        "shape": [list(site.shape) for site in sites],
        "dtype": [site.dtype for site in sites],
        "global_shape": [one and one.global_shape for one in layouts],
        "shards": [_shards(one) for one in layouts],
        "mesh": [one and mesh_text(one.meshes) for one in layouts],
        "placements": [one and placements_text(one.placements) for one in layouts],
    }
    return {
        name: require_pyarrow().array(value, type=schema.field(name).type)
        for name, value in values.items()
    }


def _shards(layout: Layout | None) -> list[int] | None:
    """Five numbers per cut."""
    if layout is None or layout.cuts is None:
        return None
    return [number for cut in layout.cuts for number in cut]


def _site_slots(hist: SparseCounts, offsets: Int64, slots: int) -> Any:
    """channel * slots + slot of every entry of the channel histograms, int32 [nnz].

    offsets: int64 [S + 1]: the first channel of each site.
    """
    channel = np.arange(hist.rows) - np.repeat(offsets[:-1], np.diff(offsets))
    return (np.repeat(channel, np.diff(hist.offsets)) * slots + hist.slots).astype(np.int32)
