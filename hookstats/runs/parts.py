"""Parts: the parts of a run directory, which records they hold, and their columns."""

from __future__ import annotations

import errno
import os
import warnings
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.groups import per_site
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.runs.columns import COLUMNS, to_columns, to_state
from hookstats.runs.format import (
    PARTS,
    Footer,
    PartName,
    list_parts,
    naming,
    open_part,
    part_schema,
    read_footer,
)
from hookstats.stats.bins import Bins

_CACHE_BYTES = 256 << 20
_DESCRIBED = ["site", "kind", "channel_dim", "shape", "dtype"]
_SPARSE = ["hist_slots", "hist_counts", "channel_hist_slots", "channel_hist_counts"]


class Where(NamedTuple):
    """The rows of one record."""

    part: PartName
    step: int
    group: int
    """The row group; nothing is there to be read where there are no rows."""
    first: int
    """In the row group."""
    rows: int


class Parts:
    """The finished parts of a run directory. Every `look` sees those that are there by then.

    The records of a rank are one line of steps: where a step is not after the one before, training
    went back to a checkpoint, and what was recorded from that step on before is void.

    With `skip_damaged`, parts that are damaged are left out and warned of, once each; else whoever
    needs one gets a ValueError that names it.
    """

    def __init__(
        self, run: Path, bins: Bins | None, channel_bins: Bins | None, *, skip_damaged: bool
    ) -> None:
        self.run = run
        self.bins = bins
        self.channel_bins = channel_bins
        self.damaged: dict[str, str] = {}
        """The parts that were left out, and what is wrong with each."""
        self.index: dict[int, dict[int, Where]] = {}
        """By rank and step, in order of writing, where the valid records are."""
        self._skip_damaged = skip_damaged
        self._footers: dict[PartName, Footer] = {}  # in order of rank and writing
        self._groups: OrderedDict[tuple[PartName, int], _Group] = OrderedDict()  # last used last
        self._cached = 0  # bytes in _groups
        self._known: tuple[Any, Int64, tuple[SiteInfo, ...]] | None = None  # see _sites

    def look(self) -> OSError | ValueError | None:
        """Take in the parts there are now; the error of the first that cannot be read, if any."""
        footers: dict[PartName, Footer] = {}
        first_error: OSError | ValueError | None = None
        for name in list_parts(self.run):
            if str(name) in self.damaged:
                continue
            try:
                footer = self._footers.get(name) or read_footer(self.run, name)
            except FileNotFoundError:  # deleted since it was listed, to keep to max_bytes
                continue
            except (OSError, ValueError) as error:
                if not self.skip(name, error):
                    first_error = first_error or error
            else:
                footers[name] = footer
        if footers.keys() != self._footers.keys():
            self._footers = footers
            self.index = _index(footers)
        return first_error

    def refresh(self) -> None:
        """`look`, and raise what it found."""
        error = self.look()
        if error is not None:
            raise error

    def lost(self, rank: int) -> int:
        """How many records a rank wrote that are in no part (that can be read) any more."""
        written = present = 0
        for name, footer in self._footers.items():
            if name.rank == rank:
                present += len(footer.records)
                before = written if footer.written is None else footer.written
                written = before + len(footer.records)
        return written - present

    def record(self, where: Where) -> StepRecord:
        """The record that is there; FileNotFoundError if its part was deleted since."""
        with self.naming(where.part):
            group = self._group(where.part, where.group) if where.rows else _Group.empty()
            rows = slice(where.first, where.first + where.rows)
            offsets = group.offsets[rows.start : rows.stop + 1]
            channels = slice(int(offsets[0]), int(offsets[-1]))
            return StepRecord(
                step=where.step,
                rank=where.part.rank,
                sites=self._sites(group.described.slice(where.first, where.rows), np.diff(offsets)),
                observed=group.observed[rows],
                offsets=offsets - offsets[0],
                moments=group.moments[channels],
                tallies=group.tallies[channels],
                bins=self.bins,
                hist=group.hist[rows],
                channel_bins=self.channel_bins,
                channel_hist=group.channel_hist[channels],
            )

    def valid(self, rank: int | None = None) -> dict[PartName, list[Where]]:
        """The valid records of one rank, or of all, by part and in order of writing."""
        found: dict[PartName, list[Where]] = {}
        for other, records in self.index.items():
            if rank is None or other == rank:
                for where in records.values():
                    found.setdefault(where.part, []).append(where)
        return found

    def tables(self) -> Iterator[Any]:
        """The valid rows of every part, one pyarrow.Table each."""
        for name, records in self.valid().items():
            try:
                rows = self.rows(name, records)
                table = self.read(name, part_schema().names)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                if not self.skip(name, error):
                    raise
                continue
            yield table if rows.all() else table.filter(rows)

    def rows(self, name: PartName, records: Iterable[Where]) -> NDArray[np.bool_]:
        """Which rows of a part the records have, bool [rows]."""
        if name not in self._footers:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(name))
        starts = np.cumsum([0, *self._footers[name].groups]).tolist()
        mask = np.zeros(starts[-1], np.bool_)
        for where in records:
            mask[starts[where.group] + where.first :][: where.rows] = True
        return mask

    def read(self, name: PartName, columns: Sequence[str]) -> Any:
        """Some columns of a part as a pyarrow.Table, of one chunk a column."""
        with open_part(self.run, name) as file:
            stored = file.schema_arrow.names
            if set(columns) <= set(stored):
                table = file.read(columns)
            else:
                missing = [c for c in COLUMNS if c not in columns]
                table = _with_tensors(file.read([c for c in columns if c in stored] + missing))
            return table.select(columns).unify_dictionaries().combine_chunks()

    def naming(self, name: PartName) -> AbstractContextManager[None]:
        """Within this, whatever is wrong with the content of a part is a ValueError naming it."""
        return naming(self.run / PARTS / str(name))

    def skip(self, name: PartName, error: Exception) -> bool:
        """Leave out a part that turned out to be damaged, where that is wanted; whether it is."""
        if not self._skip_damaged:
            return False
        self.damaged[str(name)] = str(error)
        self._footers.pop(name, None)
        self.index = _index(self._footers)
        warnings.warn(f"hookstats: left out: {error}", RuntimeWarning, stacklevel=2)
        return True

    def _group(self, name: PartName, group: int) -> _Group:
        """One row group of a part; parts never change, so those used last are kept."""
        found = self._groups.pop((name, group), None)
        if found is None:
            with open_part(self.run, name) as file:
                found = _Group.read(file, group, self.channel_bins)
            self._cached += found.nbytes
        self._groups[name, group] = found
        while len(self._groups) > 1 and self._cached > _CACHE_BYTES:
            _, oldest = self._groups.popitem(last=False)
            self._cached -= oldest.nbytes
        return found

    def _sites(self, described: Any, channels: Int64) -> tuple[SiteInfo, ...]:
        """What `described`, the rows of a record, says of its sites; mostly as in the last one."""
        known = self._known
        if known and known[0].equals(described) and np.array_equal(known[1], channels):
            return known[2]
        columns = (described.column(name).to_pylist() for name in _DESCRIBED)
        sites = tuple(
            SiteInfo(name, kind, count, dim, tuple(shape), dtype)
            for name, kind, dim, shape, dtype, count in zip(
                *columns, channels.tolist(), strict=True
            )
        )
        self._known = (described, channels, sites)
        return sites


@dataclass(frozen=True)
class _Group:
    """A row group of a part, decoded: what a StepRecord has, of several of them."""

    described: Any
    """A pyarrow.Table of the columns `_DESCRIBED`."""
    observed: Int64
    offsets: Int64
    moments: Float64
    tallies: Int64
    hist: SparseCounts
    channel_hist: SparseCounts
    nbytes: int

    @classmethod
    def read(cls, file: Any, group: int, channel_bins: Bins | None) -> _Group:
        """Decode a row group of a ParquetFile; loops over columns alone."""
        names = [*_DESCRIBED, "observed", *COLUMNS, *_SPARSE]
        return cls.decode(file.read_row_group(group, columns=names), channel_bins)

    @classmethod
    def decode(cls, table: Any, channel_bins: Bins | None) -> _Group:
        """Decode rows of `part_schema`."""
        table = table.combine_chunks()
        columns = {name: table.column(name).chunk(0) for name in table.column_names}

        def offsets(name: str) -> Int64:
            lengths = columns[name].value_lengths().to_numpy(zero_copy_only=False)
            return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

        def values(name: str) -> NDArray[Any]:
            array: NDArray[Any] = columns[name].flatten().to_numpy(zero_copy_only=False)
            return array

        owners = offsets("count")
        moments, tallies = to_state({name: values(name) for name in COLUMNS})
        channel_hist = SparseCounts.empty(len(tallies))
        if channel_bins is not None:
            starts, codes = offsets("channel_hist_slots"), values("channel_hist_slots")
            rows = np.repeat(owners[:-1], np.diff(starts)) + codes // channel_bins.slots
            channel_hist = SparseCounts(
                np.searchsorted(rows, np.arange(len(tallies) + 1)).astype(np.int64),
                codes % np.int32(channel_bins.slots),
                values("channel_hist_counts"),
            )
        return cls(
            described=table.select(_DESCRIBED),
            observed=columns["observed"].to_numpy(),
            offsets=owners,
            moments=moments,
            tallies=tallies,
            hist=SparseCounts(offsets("hist_slots"), values("hist_slots"), values("hist_counts")),
            channel_hist=channel_hist,
            nbytes=table.nbytes,
        )

    @classmethod
    def empty(cls) -> _Group:
        """No rows."""
        return cls.decode(part_schema().empty_table(), None)


def _index(footers: Mapping[PartName, Footer]) -> dict[int, dict[int, Where]]:
    """By rank and step, in order of writing, where the valid records are."""
    index: dict[int, dict[int, Where]] = {}
    newest = {name.rank: footer for name, footer in footers.items()}
    rewinds = {rank: deque(footer.rewinds) for rank, footer in newest.items()}
    number = 0  # of a record of the rank
    for name, footer in footers.items():
        records = index.setdefault(name.rank, {})
        number = footer.written or (number if records else 0)
        ends = list(accumulate(footer.groups))
        start = 0
        for step, rows in footer.records:
            back = step
            while rewinds[name.rank] and rewinds[name.rank][0][0] <= number:
                back = min(back, rewinds[name.rank].popleft()[1])
            while records and next(reversed(records)) >= back:
                records.popitem()
            group = bisect_right(ends, start) if rows else 0
            first = start - (ends[group - 1] if group else 0) if rows else 0
            records[step] = Where(name, step, group, first, rows)
            start += rows
            number += 1
    return index


def _with_tensors(table: Any) -> Any:
    """The table with the columns `TENSOR_COLUMNS`, which format 1 does not have."""
    columns = {name: table.column(name).combine_chunks() for name in COLUMNS}
    lengths = columns["count"].value_lengths().to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    state = to_state({name: c.flatten().to_numpy() for name, c in columns.items()})
    for name, values in to_columns(*per_site(*state, offsets)).items():
        table = table.append_column(part_schema().field(f"tensor_{name}"), [values])
    return table
