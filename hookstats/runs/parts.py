"""Parts: the parts of a run directory, which records they hold, and their columns."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.ranks import Observed, observed_in
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.scaled import scaled
from hookstats.records.sparse import Int64
from hookstats.runs.cache import Cache, Place
from hookstats.runs.columns import COLUMNS
from hookstats.runs.decode import (
    Group,
    RunBins,
    Texts,
    check_rows,
    check_values,
    empty_group,
    read_described,
    read_group,
    sites_of,
    with_tensors,
)
from hookstats.runs.files import naming
from hookstats.runs.footer import Footer
from hookstats.runs.format import (
    ALL_EXTRAS,
    PARTS,
    Extras,
    PartName,
    list_parts,
    part_schema,
    require_pyarrow,
)
from hookstats.runs.index import Where, index_of
from hookstats.runs.part_file import open_part, read_footer
from hookstats.stats.bins import Bins
from hookstats.stats.merge import offsets_of

_Known = tuple[Any, Int64, tuple[SiteInfo, ...]]
"""What describes the sites of a record, their numbers of channels, and the sites."""


class Parts:
    """The finished parts of a run directory. Every `look` sees the parts that exist at that time.

    The records of a rank are one line of steps: if a step does not come after the step before, the
    training went back to a checkpoint, and the earlier records of that step and of later ones are
    void.

    With `skip_damaged`, damaged parts are left out, with one warning each; otherwise whoever needs
    a damaged part gets a ValueError that names the part.
    """

    def __init__(
        self,
        run: Path,
        bins: Bins | None,
        channel_bins: Bins | None,
        *,
        skip_damaged: bool,
        rank: int | None = None,
        scale: Callable[[PartName, Footer], float] | None = None,
        cache: Cache | None = None,
    ) -> None:
        """rank: the only one whose parts are looked at; None for all. scale: by what the gradients
        of a part are multiplied; None: they are as they were seen. cache: as of `Run`."""
        self._rank = rank
        self._scale = scale
        self.run = run
        self.bins = bins
        self.channel_bins = channel_bins
        self._bins = RunBins(bins, channel_bins)
        self.damaged: dict[str, str] = {}
        """The parts that were left out, and what is wrong with each."""
        self.index: dict[int, dict[int, Where]] = {}
        """Where the valid records are, by rank and step, in order of writing."""
        self._skip_damaged = skip_damaged
        self.cache = Cache() if cache is None else cache
        """What was read."""
        self._footers: dict[PartName, Footer] = {}  # in order of rank and writing
        self._known: dict[int, _Known] = {}  # by rank, see _sites
        self._last_known: _Known | None = None
        self._texts: Texts = {}

    def look(self) -> OSError | ValueError | None:
        """Take in the parts that exist now; returns the error of the first unreadable part."""
        footers: dict[PartName, Footer] = {}
        first_error: OSError | ValueError | None = None
        for name in self._listed():
            if str(name) in self.damaged:
                continue
            try:
                footer = self._footers.get(name) or self._footer(name)
            except FileNotFoundError:  # deleted since it was listed, to keep to max_bytes
                continue
            except (OSError, ValueError) as error:
                if not self.skip(name, error):
                    first_error = first_error or error
            else:
                footers[name] = footer
        if footers.keys() != self._footers.keys():
            before, self._footers = self._footers, footers
            try:
                self._make_index()
            except BaseException:  # such as an interrupt: the index belongs to the footers
                self._footers = before
                raise
        return first_error

    def _listed(self) -> list[PartName]:
        """The parts that exist; of ranks that are not looked at, the newest alone, which says when
        the rank was there."""
        names = list_parts(self.run)
        if self._rank is None:
            return names
        newest = {name.rank: name for name in names}.values()
        return [name for name in names if name.rank == self._rank or name in newest]

    def _make_index(self) -> None:
        index = index_of(self._footers)
        self.index = {k: v for k, v in index.items() if self._rank in (None, k)}

    def _mine(self) -> list[Footer]:
        return [f for name, f in self._footers.items() if self._rank in (None, name.rank)]

    def ranks(self) -> set[int]:
        """The ranks that have parts, readable or not."""
        found = {name.rank for name in list_parts(self.run)}
        return found if self._rank is None else found & {self._rank}

    def is_whole(self) -> bool:
        """Whether the records of one rank are those of the whole model, or of it alone."""
        if self._rank is not None:
            return True
        layout = any(footer.extras.layout for footer in self._footers.values())
        return len(self.index) < 2 and not layout

    def is_stored(self) -> bool:
        """Whether the columns of the parts are what is to be read, as they are."""
        return self._scale is None and self.is_whole()

    def refresh(self) -> None:
        """`look`, and raise the error that it returned."""
        error = self.look()
        if error is not None:
            raise error

    def lost(self, rank: int) -> int:
        """The number of records that a rank wrote and that no readable part has any more."""
        written = present = 0
        for name, footer in self._footers.items():
            if name.rank == rank:
                present += len(footer.records)
                before = written if footer.written is None else footer.written
                written = before + len(footer.records)
        return written - present

    def gaps(self, rank: int) -> dict[int, str]:
        """The steps that a rank lost, ascending, and why; without those that are void."""
        footers = [footer for name, footer in self._footers.items() if name.rank == rank]
        rewinds = footers[-1].rewinds if footers else []
        found = {
            gap.step: gap.reason
            for footer in footers
            for gap in footer.gaps
            if not any(gap.number <= number and step <= gap.step for number, step in rewinds)
        }
        recorded = self.index.get(rank, {})
        return {step: found[step] for step in sorted(found) if step not in recorded}

    def record(self, where: Where) -> StepRecord:
        """The record at this place; FileNotFoundError if its part was deleted since."""
        record = self._record(where)
        if self._scale is None:
            return record
        return scaled(record, self._scale(where.part, self._known_footer(where.part)))

    def _record(self, where: Where) -> StepRecord:
        with self.naming(where.part):
            group = self._group_of(where)
            rows = slice(where.first, where.first + where.rows)
            offsets = group.offsets[rows.start : rows.stop + 1]
            channels = slice(int(offsets[0]), int(offsets[-1]))
            moments, tallies = group.state(channels)
            return StepRecord(
                step=where.step,
                rank=where.part.rank,
                sites=self._sites(where, group.described, group.offsets),
                observed=group.observed[rows],
                offsets=offsets - offsets[0],
                moments=moments,
                tallies=tallies,
                bins=self.bins,
                hist=group.hist[rows],
                channel_bins=self.channel_bins,
                channel_hist=group.channel_hist[channels],
            )

    def sites(self, where: Where) -> tuple[SiteInfo, ...]:
        """The sites of the record at this place; the same object as of a record before, or of
        another rank's, if they are equal. Errors are those of `record`."""
        with self.naming(where.part):
            if self._is_alone(where) and self.cache.group(self._place(where)) is None:
                footer = self._known_footer(where.part)
                with open_part(self.run, where.part) as file:
                    found = read_described(file, where.group, footer, where.part.rank)
            else:
                group = self._group_of(where)
                found = group.described, group.offsets
            return self._sites(where, *found)

    def observed(self, where: Where) -> Observed:
        """What the record at this place says; its columns are read, and none is kept but of small
        records. Errors are those of `record`."""
        if self._scale is not None:
            return observed_in(self.record(where))
        with self.naming(where.part):
            group = self._group_of(where, keeps=not self._is_alone(where))
            rows = slice(where.first, where.first + where.rows)
            offsets = group.offsets[rows.start : rows.stop + 1]
            channels = slice(int(offsets[0]), int(offsets[-1]))
            return Observed(
                lambda name: group.state_column(name, channels),
                group.observed[rows],
                offsets - offsets[0],
                group.hist[rows],
                group.channel_hist[channels],
            )

    def is_gone(self, where: Where, error: Exception) -> bool:
        """Whether to look for a record again, after this error: its part was deleted since, to keep
        to max_bytes, or is damaged and left out."""
        if isinstance(error, FileNotFoundError):
            self.look()
            return self.index.get(where.part.rank, {}).get(where.step) != where
        return self.skip(where.part, error)

    def _is_alone(self, where: Where) -> bool:
        """Whether the record has a row group of its own, and is large."""
        footer = self._known_footer(where.part)
        return not footer.is_small and bool(where.rows) and where.rows == footer.groups[where.group]

    def valid(self, rank: int | None = None) -> dict[PartName, list[Where]]:
        """The valid records of one rank, or of all, by part and in order of writing."""
        found: dict[PartName, list[Where]] = {}
        for other, records in self.index.items():
            if rank is None or other == rank:
                for where in records.values():
                    found.setdefault(where.part, []).append(where)
        return found

    def schema(self) -> Any:
        """The pyarrow.Schema of `tables`; optional columns are null in parts that have none."""
        found = [footer.extras for footer in self._mine()]
        return part_schema(extras=Extras(*map(any, zip(*found, strict=True))))

    def has_phases(self, name: PartName) -> bool:
        """Whether a part has the column of phases."""
        return self._known_footer(name).extras.phases

    def all_detailed(self, names: Iterable[PartName]) -> bool:
        """Whether all parts of these names say how many channels sites have."""
        return all(self._known_footer(name).extras.channels for name in names)

    def tables(self, schema: Any) -> Iterator[Any]:
        """The valid rows of every part, each as one pyarrow.Table with the `schema`."""
        for name, records in self.valid().items():
            try:
                table = self.read(name, schema.names).cast(schema)
                rows = self.rows(name, records)  # as many as were read
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                if not self.skip(name, error):
                    raise
                continue
            yield table if rows.all() else table.filter(rows)

    def rows(self, name: PartName, records: Iterable[Where]) -> NDArray[np.bool_]:
        """bool [rows]: which rows of a part belong to the records."""
        starts = offsets_of(self._known_footer(name).groups).tolist()
        mask = np.zeros(starts[-1], np.bool_)
        for where in records:
            mask[starts[where.group] + where.first :][: where.rows] = True
        return mask

    def read(self, name: PartName, columns: Sequence[str]) -> Any:
        """Some columns of a part as a pyarrow.Table, with one chunk per column."""
        with open_part(self.run, name) as file:
            footer = self._known_footer(name)
            there = [column for column in columns if column in file.names]
            if footer.version == 1:
                there += [column for column in COLUMNS if column not in there]
            table = file.read(there)
            if footer.version == 1:
                table = with_tensors(table)
            for column in set(columns) - set(table.column_names):  # moments that it does not have
                field = part_schema(extras=ALL_EXTRAS).field(column)
                nulls = require_pyarrow().nulls(table.num_rows, field.type)
                table = table.append_column(field, nulls)
            table = table.select(columns).unify_dictionaries().combine_chunks()
            check_rows(table, footer, name.rank)
            check_values(table, self._bins)
            return table

    def _known_footer(self, name: PartName) -> Footer:
        """The footer of a part that existed at the last `look`."""
        if name not in self._footers:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(name))
        return self._footers[name]

    def _footer(self, name: PartName) -> Footer:
        """The footer of a part, which must be of this run."""
        footer = self.cache.footers.get(name)
        if footer is None:
            footer = self.cache.footers[name] = read_footer(self.run, name)
        with self.naming(name):
            self._bins.check(footer)
        return footer

    def naming(self, name: PartName) -> AbstractContextManager[None]:
        """In this context, a fault in the content of a part is a ValueError that names the part."""
        return naming(self.run / PARTS / str(name))

    def skip(self, name: PartName, error: Exception) -> bool:
        """Leave out a part that turned out to be damaged, if that is wanted; returns whether."""
        if not self._skip_damaged:
            return False
        self.damaged[str(name)] = str(error)
        self._footers.pop(name, None)
        self._make_index()
        warnings.warn(f"hookstats: left out: {error}", RuntimeWarning, stacklevel=2)
        return True

    def _group_of(self, where: Where, *, keeps: bool = True) -> Group:
        """The row group of a record; parts never change, so the groups used last are kept.

        keeps: whether this one is, too; if not, it has no descriptions."""
        footer = self._known_footer(where.part)
        if not where.rows:
            return empty_group(footer.extras)
        place = self._place(where)
        found = self.cache.group(place)
        if found is None:
            with open_part(self.run, where.part) as file:
                about = where.group, footer, where.part.rank, self._bins
                found = read_group(file, *about, described=keeps)
            if keeps:
                self.cache.keep(place, found)
        return found

    def _place(self, where: Where) -> Place:
        return where.part, where.group, self._bins

    def _sites(self, where: Where, described: Any, offsets: Int64) -> tuple[SiteInfo, ...]:
        """The sites of a record of the row group; mostly those of the rank's last record, or of
        another rank's."""
        described = described.slice(where.first, where.rows)
        channels = np.diff(offsets[where.first : where.first + where.rows + 1])
        for known in (self._known.get(where.part.rank), self._last_known):
            if known and known[0].equals(described) and np.array_equal(known[1], channels):
                self._known[where.part.rank] = self._last_known = known
                return known[2]
        sites = sites_of(described, channels, self._texts)
        self._known[where.part.rank] = self._last_known = described, channels, sites
        return sites
