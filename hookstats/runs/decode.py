"""Decoding: rows of a part as the tables of records."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.layout import Cut, Layout, parse_meshes, parse_placements
from hookstats.records.record import SiteInfo, Table
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.runs.format import HISTOGRAM, LAYOUT, STATISTICS, require_pyarrow
from hookstats.stats.state import MOMENTS, TALLIES

DESCRIBED = ("site", "kind", "channel_dim", "channels", "shape", "dtype", *LAYOUT)
"""The columns of `TENSORS` that say what a site is."""


def numbers(column: Any) -> NDArray[Any]:
    """The integers or floats of a pyarrow.Array or ChunkedArray; read-only, and a copy only where
    there are nulls, which become NaN, or several chunks. `to_numpy` would import pandas.
    """
    if hasattr(column, "chunks"):
        if not column.num_chunks:  # combined, these import pandas
            column = require_pyarrow().nulls(0, column.type)
        else:
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.null_count:
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array
    return np.from_dlpack(column)


def decode(table: Any) -> Table:
    """The statistics in rows of either table, which have `STATISTICS`; their histograms are empty
    where the rows have no `HISTOGRAM`."""
    columns = {name: numbers(table.column(name)) for name in STATISTICS}
    hist = SparseCounts.empty(table.num_rows)
    if HISTOGRAM[0] in table.column_names:
        slots, counts = (one_chunk(table.column(name)) for name in HISTOGRAM)
        hist = SparseCounts(list_offsets(slots), list_values(slots), list_values(counts))
    return Table(
        np.stack([columns[name] for name in MOMENTS]),
        np.stack([columns[name] for name in TALLIES]),
        hist,
    )


Texts = dict[str, tuple[Any, list[Any]]]
"""Columns that describe sites, by name, and their values as Python has them."""


def sites_of(described: Any, known: Texts) -> tuple[SiteInfo, ...]:
    """The sites in rows of a table with the columns `DESCRIBED`.

    known: the columns that were read last, most of which are equal from rank to rank; they become
    these.
    """
    columns: dict[str, list[Any]] = {}
    for name in DESCRIBED:
        column = described.column(name)
        before = known.get(name)
        values = before[1] if before and before[0].equals(column) else _values(column)
        columns[name] = values
        known[name] = column, values
    sites = zip(*(columns[name] for name in DESCRIBED), strict=True)
    return tuple(
        [
            SiteInfo(name, kind, channels, dim, shape, dtype, _layout(*layout))
            for name, kind, dim, channels, shape, dtype, *layout in sites
        ]
    )


def _values(column: Any) -> list[Any]:
    """The values of a column: lists as tuples, each text of a dictionary once."""
    one = one_chunk(column)
    if not hasattr(one, "dictionary"):
        return [tuple(x) if isinstance(x, list) else x for x in one.to_pylist()]
    texts = one.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in one.indices.to_pylist()]


@lru_cache(maxsize=4096)
def _layout(
    shape: tuple[int, ...] | None,
    shards: tuple[int, ...] | None,
    mesh: str | None,
    placements: str | None,
) -> Layout | None:
    """Mostly one of few, each of which is one object."""
    if placements is None:
        return None
    cuts = None
    if shards is not None:
        cuts = tuple(Cut(*shards[i : i + 5]) for i in range(0, len(shards), 5))
    return Layout(parse_meshes(mesh or ""), parse_placements(placements), shape, cuts)


def one_chunk(column: Any) -> Any:
    """A column as one array; a copy only if it needs one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def list_offsets(lists: Any) -> Int64:
    """int64 [rows + 1]: list i of a column, none of which is missing, has the entries between
    offsets i and i + 1. `value_lengths` would import pyarrow.compute."""
    offsets: Int64 = numbers(lists.offsets).astype(np.int64)
    offsets -= offsets[0]
    return offsets


def list_values(lists: Any) -> NDArray[Any]:
    """The entries of all lists of a column."""
    first, last = numbers(lists.offsets)[[0, -1]].tolist()
    return numbers(lists.values)[first:last]
