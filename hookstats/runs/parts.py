"""Parts: the parts of a run directory, which records they hold, and their rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.scaled import scaled
from hookstats.runs.decode import (
    DESCRIBED,
    Texts,
    decode,
    numbers,
    sites_of,
)
from hookstats.runs.format import (
    CHANNELS,
    HISTOGRAM,
    STATISTICS,
    TENSORS,
    PartName,
    list_parts,
)
from hookstats.runs.index import Bounds, Index, Where, bounds, index_of
from hookstats.runs.part_file import Footer, open_part, read_footer
from hookstats.runs.remote import Copy
from hookstats.stats.bins import Bins

_COLUMNS = {
    TENSORS: ("observed", "dead", *DESCRIBED, *STATISTICS, *HISTOGRAM),
    CHANNELS: (*STATISTICS, *HISTOGRAM),
}
"""What a record has of each table."""
_GROUPS = 4
"""Row groups that are kept, at least."""
_KEPT_BYTES = 256 << 20
"""The bytes of row groups that are kept; the one used last is kept anyway."""


class Cache:
    """What was read of the parts of a run, which never change; shared by the run and those of its
    ranks alone."""

    def __init__(self, copy: Copy | None = None) -> None:
        """copy: keeps the run directory equal to a URL; None for a run that is here."""
        self.copy = copy
        self.footers: dict[tuple[str, PartName], Footer] = {}
        """By directory and name."""
        self._groups: dict[tuple[str, PartName, int], Any] = {}  # tables; the one used last is last

    def group(self, key: tuple[str, PartName, int], read: Callable[[], Any]) -> Any:
        """A row group as a pyarrow.Table: one of those used last, or what `read` returns."""
        found = self._groups.pop(key, None)
        found = read() if found is None else found
        self._groups[key] = found
        # Of a step and the next, of all ranks.
        most = max(_GROUPS, 4 * len({name.rank for _, name in self.footers}))
        while len(self._groups) > 1 and (
            len(self._groups) > most
            or sum([table.nbytes for table in self._groups.values()]) > _KEPT_BYTES
        ):
            del self._groups[next(iter(self._groups))]
        return found


class Parts:
    """The parts of a run directory. Every `look` sees the parts that exist at that time.

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
        scale: Callable[[int, Footer], float] | None = None,
        cache: Cache,
    ) -> None:
        """rank: the only one whose parts are read; None for all. scale: by what the gradients of a
        part, of a rank, are multiplied; None: they are as they were seen. cache: as of `Run`."""
        self._rank = rank
        self._scale = scale
        self.run = run
        self.bins = bins
        self.channel_bins = channel_bins
        self.damaged: dict[str, str] = {}
        """The parts that were left out, and what is wrong with each."""
        self.index: Index = {}
        """Where the tensors of the valid records are."""
        self._channels: Index | None = None  # None until it is asked for
        self._skip_damaged = skip_damaged
        self.cache = cache
        """What was read."""
        self._bounds: Bounds = {}
        self._names: list[PartName] = []
        self._footers: dict[PartName, Footer] = {}  # of tensors, in order of rank and writing
        self._sites: dict[int, tuple[Any, tuple[SiteInfo, ...]]] = {}  # by rank, see _sites_of
        self._texts: Texts = {}

    def look(self) -> OSError | ValueError | None:
        """Take in the parts that exist now; returns the error of the first unreadable part."""
        if self.cache.copy is not None:
            self.cache.copy.refresh()
        names = list_parts(self.run, TENSORS)
        if names == self._names:
            return None
        self._bounds = bounds(names)
        self._footers, first_error = self._read_footers(TENSORS, names)
        self.index = index_of(self._footers, self._bounds)
        self._channels = None
        self._names = names if first_error is None else []
        return first_error

    def refresh(self) -> None:
        """`look`, and raise its error."""
        error = self.look()
        if error is not None:
            raise error

    def _read_footers(
        self, folder: str, names: Sequence[PartName]
    ) -> tuple[dict[PartName, Footer], OSError | ValueError | None]:
        found: dict[PartName, Footer] = {}
        first_error: OSError | ValueError | None = None
        for name in names:
            if self._rank not in (None, name.rank) or f"{folder}/{name}" in self.damaged:
                continue
            try:
                key = folder, name
                if key not in self.cache.footers:
                    self.cache.footers[key] = read_footer(self.run, name, folder)
                found[name] = self.cache.footers[key]
            except FileNotFoundError:  # deleted since it was listed, to keep to max_bytes
                continue
            except (OSError, ValueError) as error:
                if not self.skip(folder, name, error):
                    first_error = first_error or error
        return found, first_error

    @property
    def channels(self) -> Index:
        """Where the channels of the valid records are that have any."""
        if self._channels is None:
            names = list_parts(self.run, CHANNELS)
            footers, error = self._read_footers(CHANNELS, names)
            if error is not None:
                raise error
            index = index_of(footers, self._bounds)
            self._channels = {
                rank: {step: index[rank][step] for step in records if step in index.get(rank, {})}
                for rank, records in self.index.items()
            }
        return self._channels

    def is_of_one_rank(self) -> bool:
        """Whether there is nothing to merge."""
        return len(self.index) < 2

    def is_stored(self) -> bool:
        """Whether the rows of the parts are those of the run, as nothing is merged or scaled."""
        return self.is_of_one_rank() and self._scale is None

    def thinned(self, rank: int) -> int:
        """The number of records of the rank that are in no part any more."""
        footers = [footer for name, footer in self._footers.items() if name.rank == rank]
        there = [len(footer.records) for footer in footers]
        return footers[-1].written + there[-1] - sum(there)

    def gaps(self, rank: int) -> dict[int, str]:
        """The steps that the rank was to record and lost."""
        found: dict[int, str] = {}
        for name, footer in self._footers.items():
            if name.rank == rank:
                valid = self._bounds[name[:2]]
                found |= {step: why for step, why in footer.gaps.items() if step < valid}
        return {step: why for step, why in found.items() if step not in self.index[rank]}

    def record(self, where: Where, *, channels: bool = True) -> StepRecord:
        """The record whose tensors are at this place.

        channels: whether to read its channels, too, where they were kept.

        Raises:
            FileNotFoundError: the part was deleted since.
            ValueError: it is damaged; the message names it.
        """
        rank, step = where.part.rank, where.step
        rows = self._rows(TENSORS, where)
        record = StepRecord(
            step=step,
            rank=rank,
            sites=self._sites_of(rank, rows),
            observed=numbers(rows.column("observed")),
            tensors=decode(rows),
            channels=None,
            bins=self.bins,
            channel_bins=self.channel_bins,
            known_dead=numbers(rows.column("dead")).astype(np.int64),
        )
        there = self.channels.get(rank, {}).get(step) if channels else None
        if there is not None:
            record = self._with_channels(record, there)
        if self._scale is not None:
            return scaled(record, self._scale(rank, self._footers[where.part]))
        return record

    def _with_channels(self, record: StepRecord, where: Where) -> StepRecord:
        """The record with its channels; as it is if these are deleted or left out since."""
        try:
            table = decode(self._rows(CHANNELS, where))
        except FileNotFoundError:
            return record
        except (OSError, ValueError) as error:
            if not self.skip(CHANNELS, where.part, error):
                raise
            return record
        return replace(record, channels=table, known_dead=None)

    def _rows(self, folder: str, where: Where) -> Any:
        """The rows of a record."""
        name = where.part
        key = folder, name
        footer = self.cache.footers[key]

        def read() -> Any:
            with open_part(self.run, name, folder) as file:
                group = [where.group] if where.group < len(footer.groups) else []
                return file.read(_COLUMNS[folder], group)

        table = self.cache.group((*key, where.group), read)
        return table.slice(where.first - sum(footer.groups[: where.group]), where.rows)

    def is_gone(self, where: Where, error: Exception) -> bool:
        """Whether to look for a record again, after this error: its part was deleted since, to keep
        to max_bytes, or is damaged and left out."""
        if isinstance(error, FileNotFoundError):
            self.look()
            return self.index.get(where.part.rank, {}).get(where.step) != where
        return self.skip(TENSORS, where.part, error)

    def tables(self, folder: str, columns: Sequence[str]) -> Iterator[tuple[PartName, Any]]:
        """The valid rows of every part of `TENSORS` or `CHANNELS`, each as one pyarrow.Table of
        some columns; parts that are deleted or left out meanwhile are left out."""
        for name, places in self.places(folder).items():
            table = self._read_if_there(folder, name, places, columns)
            if table is not None:
                yield name, table

    def _read_if_there(
        self, folder: str, name: PartName, places: Sequence[Where], columns: Sequence[str]
    ) -> Any:
        """What `read` returns; None where the part is deleted or left out."""
        try:
            return self.read(folder, name, places, columns)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if not self.skip(folder, name, error):
                raise
            return None

    def read(
        self, folder: str, name: PartName, places: Sequence[Where], columns: Sequence[str]
    ) -> Any:
        """Some columns of the rows of some records of a part."""
        with open_part(self.run, name, folder) as file:
            table = file.read(columns)
        valid = np.zeros(table.num_rows, np.bool_)
        for where in places:
            valid[where.first : where.first + where.rows] = True
        return table if valid.all() else table.filter(valid)

    def places(self, folder: str) -> dict[PartName, list[Where]]:
        """The valid records of a directory, by part and in order of writing."""
        found: dict[PartName, list[Where]] = {}
        for records in (self.index if folder == TENSORS else self.channels).values():
            for where in records.values():
                found.setdefault(where.part, []).append(where)
        return found

    def skip(self, folder: str, name: PartName, error: Exception) -> bool:
        """Leave out a part that turned out to be damaged, if that is wanted; returns whether."""
        if not self._skip_damaged:
            return False
        self.damaged[f"{folder}/{name}"] = str(error)
        if folder == TENSORS:
            self._footers.pop(name, None)
            self.index = index_of(self._footers, self._bounds)
        self._channels = None
        warnings.warn(f"hookstats: left out: {error}", RuntimeWarning, stacklevel=2)
        return True

    def _sites_of(self, rank: int, rows: Any) -> tuple[SiteInfo, ...]:
        """The sites of a record; mostly those of the rank's last record, or of another rank's."""
        described = rows.select(DESCRIBED)
        for known in (self._sites.get(rank), self._sites.get(-1)):
            if known and known[0].equals(described):
                self._sites[rank] = self._sites[-1] = known
                return known[1]
        sites = sites_of(described, self._texts)
        self._sites[rank] = self._sites[-1] = described, sites
        return sites
