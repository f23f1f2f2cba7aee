"""Decoding: rows of a part as the arrays of records; every value that is read is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import check_phase, in_phase
from hookstats.records.layout import Cut, Layout, parse_meshes, parse_placements
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.runs.arrays import numbers
from hookstats.runs.columns import (
    COLUMNS,
    state_column,
    to_columns,
    to_state,
)
from hookstats.runs.footer import Footer
from hookstats.runs.format import (
    CHANNELS_COLUMN,
    LAYOUT_COLUMNS,
    PHASE_COLUMN,
    SPARSE_COLUMNS,
    Extras,
    part_schema,
)
from hookstats.runs.part_file import PartFile
from hookstats.stats.bins import Bins, is_described
from hookstats.stats.merge import merge, offsets_of
from hookstats.stats.state import TALLIES

DESCRIBED = (
    *("site", "kind", PHASE_COLUMN, "channel_dim", CHANNELS_COLUMN, "shape", "dtype"),
    *LAYOUT_COLUMNS,
)
"""The columns that say what a site is; some only where a part has them."""

_COUNTS = {
    *("observed", "hist_counts", "channel_hist_counts", *TALLIES),
    *(f"tensor_{name}" for name in TALLIES),
}
_HISTOGRAMS = {
    "bins": ("hist_slots", "hist_counts"),
    "channel_bins": ("channel_hist_slots", "channel_hist_counts"),
}


@dataclass(frozen=True)
class RunBins:
    """The bins of a run, which its histograms are counted in."""

    bins: Bins | None
    channel_bins: Bins | None

    def check(self, footer: Footer) -> None:
        """Raise a ValueError if a part has its histograms on other bins, or if these are sampled
        and those of the run are not."""
        for name, theirs in footer.bins.items():
            mine = getattr(self, name)
            if not is_described(mine, theirs):
                raise ValueError(f"it has {name} = {theirs}, but the header of the run says {mine}")


@dataclass(frozen=True)
class Group:
    """A row group of a part, decoded: the arrays of several StepRecords, one after the other."""

    described: Any
    """A pyarrow.Table of the columns `DESCRIBED` that were read."""
    observed: Int64
    offsets: Int64
    columns: dict[str, NDArray[Any]]
    """[R] each: `COLUMNS`."""
    hist: SparseCounts
    channel_hist: SparseCounts
    nbytes: int

    def state(self, rows: slice) -> tuple[Float64, Int64]:
        """The moments and tallies of some rows."""
        return to_state({name: values[rows] for name, values in self.columns.items()})

    def state_column(self, name: str, rows: slice) -> NDArray[Any]:
        """A column of these, by the name in `stats.state.COLUMNS`."""
        return state_column(name, lambda stored: self.columns[stored][rows])


def read_group(
    file: PartFile,
    group: int,
    footer: Footer,
    rank: int,
    bins: RunBins,
    *,
    described: bool = True,
) -> Group:
    """Decode a row group of a part; loops over columns alone.

    described: whether to read the columns that `read_described` reads, too.
    """
    names = ["observed", *COLUMNS, *SPARSE_COLUMNS]
    if described:
        table = _read(file, group, footer, rank, names)
    else:
        table = file.read(names, group).combine_chunks()
    check_values(table, bins)
    return decode(table, bins.channel_bins)


def read_described(file: PartFile, group: int, footer: Footer, rank: int) -> tuple[Any, Int64]:
    """`Group.described` and `Group.offsets` of a row group of a part, and nothing else."""
    table = _read(file, group, footer, rank, ["count"])
    described = table.drop_columns(["step", "rank", "count"])
    return described, _offsets(table.column("count").chunk(0))


def _read(file: PartFile, group: int, footer: Footer, rank: int, names: Sequence[str]) -> Any:
    """Columns of a row group, and those that say what its rows are."""
    there = part_schema(footer.version, footer.extras).names
    described = [name for name in DESCRIBED if name in there]
    table = file.read(["step", "rank", *described, *names], group).combine_chunks()
    check_rows(table, footer, rank, sum(footer.groups[:group]))
    return table


def empty_group(extras: Extras) -> Group:
    """No rows, of a part with these optional columns."""
    nothing = part_schema(extras=extras).empty_table().combine_chunks()
    return decode(nothing, None)


def decode(table: Any, channel_bins: Bins | None) -> Group:
    """The rows of a table in one chunk, whose columns are those of a part, or more."""
    columns = {name: table.column(name).chunk(0) for name in table.column_names}
    owners = _offsets(columns["count"])
    names = [name for name in COLUMNS if name in columns]
    rows = int(owners[-1])
    channel_hist = SparseCounts.empty(rows)
    if channel_bins is not None:
        starts = _offsets(columns["channel_hist_slots"])
        codes = _values(columns["channel_hist_slots"])
        of_codes = np.repeat(owners[:-1], np.diff(starts)) + codes // channel_bins.slots
        channel_hist = SparseCounts(
            np.searchsorted(of_codes, np.arange(rows + 1)).astype(np.int64),
            codes % np.int32(channel_bins.slots),
            _values(columns["channel_hist_counts"]),
        )
    return Group(
        described=table.select([name for name in DESCRIBED if name in columns]),
        observed=numbers(columns["observed"], nulls=False),
        offsets=owners,
        columns={name: _values(columns[name]) for name in names},
        hist=SparseCounts(
            _offsets(columns["hist_slots"]),
            _values(columns["hist_slots"]),
            _values(columns["hist_counts"]),
        ),
        channel_hist=channel_hist,
        nbytes=table.nbytes,
    )


def check_rows(table: Any, footer: Footer, rank: int, first: int = 0) -> None:
    """Raise a ValueError if rows of a part are not those that its footer lists, or of no phase.

    table: consecutive rows, the first of which is row `first` of the part. Its columns `step`,
    `rank` and `phase` are checked, if they were read.
    """
    if "step" in table.column_names:
        steps, rows = (np.array(each, np.int64) for each in zip(*footer.records, strict=True))
        expected = np.repeat(steps, rows)[first : first + table.num_rows]
        if not np.array_equal(numbers(table.column("step")), expected):
            raise ValueError("its column 'step' contradicts the steps that its footer lists")
    if "rank" in table.column_names and (numbers(table.column("rank")) != rank).any():
        raise ValueError(f"its column 'rank' is not {rank} throughout, as its name says")
    if PHASE_COLUMN in table.column_names:
        for phase in _one_chunk(table.column(PHASE_COLUMN)).dictionary.to_pylist():
            check_phase(phase)


def check_values(table: Any, bins: RunBins) -> None:
    """Raise a ValueError if the columns of a table cannot be what was recorded.

    Counts are not negative, lists over channels are of one length, slots ascend and exist.
    """
    columns = {name: _one_chunk(table.column(name)) for name in table.column_names}
    for name in _COUNTS & columns.keys():
        values = columns[name]
        is_list = name in (*TALLIES, *SPARSE_COLUMNS)
        found = _values(values) if is_list else numbers(values, nulls=False)
        if (found < 0).any():
            raise ValueError(f"its column {name!r} has {found.min()}, expected 0 or more")
    lists = [name for name in COLUMNS if name in columns]
    owners = [_offsets(columns[name]) for name in lists]
    channels = owners[0] if owners else None
    for name, other in zip(lists, owners, strict=True):
        if not np.array_equal(other, owners[0]):
            raise ValueError(
                f"its columns {lists[0]!r} and {name!r} have lists of different lengths"
            )
    for attribute, (slots, counts) in _HISTOGRAMS.items():
        if slots in columns and counts in columns:
            _check_slots(columns[slots], columns[counts], slots, getattr(bins, attribute), channels)


def _check_slots(
    slots: Any, counts: Any, name: str, bins: Bins | None, channels: Int64 | None
) -> None:
    offsets, values = _offsets(slots), _values(slots)
    if not np.array_equal(offsets, _offsets(counts)):
        raise ValueError(f"its column {name!r} has lists of other lengths than its counts")
    if len(values) == 0:
        return
    if bins is None:
        raise ValueError(f"its column {name!r} has slots, but the run has no such histograms")
    limit: Any = bins.slots
    if name == "channel_hist_slots":
        if channels is None:
            return
        limit = np.repeat(np.diff(channels) * bins.slots, np.diff(offsets))
    if values.min() < 0 or (values >= limit).any():
        raise ValueError(
            f"its column {name!r} has slots in {values.min()}..{values.max()}, "
            f"expected 0..{np.max(limit) - 1}"
        )
    ascending = np.diff(values) > 0
    ascending[(offsets[1:-1] - 1)[(offsets[1:-1] > 0) & (offsets[1:-1] < len(values))]] = True
    if not ascending.all():
        raise ValueError(f"its column {name!r} has slots that do not ascend")


Texts = dict[str, tuple[Any, list[Any]]]
"""Columns that describe sites, by name, and their values as Python has them."""


def sites_of(described: Any, channels: Int64, known: Texts | None = None) -> tuple[SiteInfo, ...]:
    """The sites in rows of `Group.described`, with these numbers of channels.

    known: the columns that were read last, most of which are equal from rank to rank; they become
    these.
    """
    columns = {}
    for name in described.column_names:
        column = described.column(name)
        before = None if known is None else known.get(name)
        values = before[1] if before and before[0].equals(column) else column.to_pylist()
        columns[name] = values
        if known is not None:
            known[name] = column, values
    nothing = [None] * described.num_rows
    layouts = zip(*(columns.get(name, nothing) for name in LAYOUT_COLUMNS), strict=True)
    found = (_layout(*(tuple(x) if isinstance(x, list) else x for x in each)) for each in layouts)
    phases = columns.get(PHASE_COLUMN, nothing)
    kinds = [in_phase(phase, kind) for phase, kind in zip(phases, columns["kind"], strict=True)]
    names = ("channel_dim", "shape", "dtype")
    counts = channels.tolist()
    return tuple(
        SiteInfo(name, kind, count, dim, tuple(shape), dtype, layout, _merged(*merged))
        for name, kind, dim, shape, dtype, count, layout, *merged in zip(
            columns["site"],
            kinds,
            *(columns[name] for name in names),
            counts,
            found,
            columns.get(CHANNELS_COLUMN, counts),
            counts,
            strict=True,
        )
    )


def _merged(channels: int, rows: int) -> int:
    """How many channels of a site are merged in a row of the whole tensor; 0 for none."""
    if channels == rows:
        return 0
    if rows != 1 or channels < 1:
        raise ValueError(f"channels = {channels}: expected {rows}, as many as the lists have")
    return channels


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
    meshes, parts = parse_meshes(mesh or ""), parse_placements(placements)
    if len(parts) != sum(len(one.axes) for one in meshes):
        raise ValueError(f"placements = {placements!r}: expected one per dimension of {mesh!r}")
    if shards is not None and len(shards) % len(Cut._fields):
        raise ValueError(f"shards = {list(shards)}: expected five numbers per cut")
    cuts = None
    if shards is not None:
        cuts = tuple(Cut(*shards[i : i + 5]) for i in range(0, len(shards), 5))
    return Layout(meshes, parts, shape, cuts)


def with_tensors(table: Any) -> Any:
    """The table with the columns `TENSOR_COLUMNS`, which version 1 of the format lacks."""
    columns = {name: table.column(name).combine_chunks() for name in COLUMNS}
    state = to_state({name: _values(column) for name, column in columns.items()})
    sites = np.repeat(np.arange(len(table)), numbers(columns["count"].value_lengths()))
    for name, values in to_columns(*merge(*state, sites, len(table))).items():
        table = table.append_column(part_schema().field(f"tensor_{name}"), [values])
    return table


def _one_chunk(column: Any) -> Any:
    """A column as one array; a copy only if it needs one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _offsets(lists: Any) -> Int64:
    """int64 [rows + 1]: list i of a column has the entries between offsets i and i + 1."""
    lengths = numbers(lists.value_lengths())
    return offsets_of(lengths)


def _values(lists: Any) -> NDArray[Any]:
    """The entries of all lists of a column."""
    return numbers(lists.flatten())
