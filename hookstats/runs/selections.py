"""Selections: the rows of some sites of a run, of tensors or of channels, column by column."""

from __future__ import annotations

import errno
import fnmatch
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import InOrder, Key, finder, hint
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.runs.decode import list_offsets, list_values, numbers, one_chunk
from hookstats.runs.format import HISTOGRAM, TENSORS, PartName
from hookstats.runs.merged import MergedRecords
from hookstats.runs.parts import Parts
from hookstats.stats.state import TALLIES

Choose = Callable[[Collection[Key]], list[Key]]
"""Returns the chosen ones of all sites."""
_KEYS = ("step", "site", "kind")


class Selection:
    """The rows of the chosen sites in one of the tables, site by site and in order of steps: N.

    Of one rank they are read column by column from its parts, of several ranks all at once: every
    step is read and merged once, and what the chosen sites have is kept.

    Raises:
        KeyError: as of `choose`.
    """

    def __init__(self, parts: Parts, records: MergedRecords, folder: str, choose: Choose) -> None:
        self._parts = parts
        self._folder = folder
        known: dict[Key, int] = {}
        number = SiteNumbers(known)
        is_stored = parts.is_stored()
        found = [
            (name, numbers(table.column("step")), number.of(table))
            for name, table in parts.tables(folder if is_stored else TENSORS, _KEYS)
        ]
        self.keys: list[Key] = choose(list(known))
        """The chosen sites."""
        chosen = np.full(len(known) + 1, -1)
        chosen[[known[key] for key in self.keys]] = np.arange(len(self.keys))
        sites, steps = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        self._rows: dict[PartName, Int64] = {}  # of one rank, among the valid rows of each part
        self._places = parts.places(folder)
        self._merged: list[Any] = []  # of several ranks, a pyarrow.Table of each step
        self._infos: dict[Key, SiteInfo] = {}  # of several ranks, the last of each site
        if is_stored:
            for name, step, site in found:
                rows = self._rows[name] = np.flatnonzero(chosen[site] >= 0)
                sites.append(chosen[site][rows])
                steps.append(step[rows])
        else:
            for record, table in records.tables(folder):
                self._infos |= zip(record, record.sites, strict=True)
                site = chosen[number.of(table)]
                rows = np.flatnonzero(site >= 0)
                self._merged.append(table.take(rows))
                sites.append(site[rows])
                steps.append(numbers(table.column("step"))[rows])
        site = np.concatenate(sites)
        self._order = np.argsort(site, kind="stable")
        self.steps: Int64 = np.concatenate(steps)[self._order]
        """int64 [N]."""
        self.bounds = [0, *np.cumsum(np.bincount(site, minlength=len(self.keys))).tolist()]
        """[sites + 1]: site i owns rows bounds[i]:bounds[i + 1]."""
        self._columns: dict[str, NDArray[Any]] = {}

    def column(self, name: str) -> NDArray[Any]:
        """A column with one number a row, [N]."""
        if name not in self._columns:
            parts = [numbers(table.column(name))[rows] for table, rows in self._tables([name])]
            joined = np.concatenate(parts) if parts else np.zeros(0, dtype_of(name))
            self._columns[name] = joined[self._order]
        return self._columns[name]

    @cached_property
    def _hist(self) -> SparseCounts:
        found = [SparseCounts.empty(0)]
        for table, rows in self._tables(HISTOGRAM):
            slots, counts = (one_chunk(table.column(name)) for name in HISTOGRAM)
            every = SparseCounts(list_offsets(slots), list_values(slots), list_values(counts))
            found.append(every.chosen(rows))
        return SparseCounts.joined(found).chosen(self._order)

    def hist(self, rows: slice) -> SparseCounts:
        """The histograms of some rows."""
        return self._hist[rows]

    def info(self, key: Key) -> SiteInfo:
        """The description of a site in the last record that has the site."""
        if key in self._infos:
            return self._infos[key]
        step = int(self.steps[self.bounds[self.keys.index(key) + 1] - 1])
        where = next(
            where for places in self._places.values() for where in places if where.step == step
        )
        record = self._parts.record(where, channels=False)
        return next(site for site in record.sites if (site.name, site.kind) == key)

    def _tables(self, columns: Sequence[str]) -> Iterator[tuple[Any, Int64]]:
        """Pyarrow tables, and which rows of each are chosen."""
        for table in self._merged:
            yield table, np.arange(table.num_rows)
        for name, rows in self._rows.items():
            if len(rows):
                yield self._table(name, rows, columns)

    def _table(self, name: PartName, rows: Int64, columns: Sequence[str]) -> tuple[Any, Int64]:
        try:
            return self._parts.read(self._folder, name, self._places[name], columns), rows
        except FileNotFoundError as error:
            raise FileNotFoundError(
                errno.ENOENT, "deleted since the series was asked for; ask for it again", str(name)
            ) from error
        except (OSError, ValueError) as error:
            self._parts.skip(self._folder, name, error)
            raise


def dtype_of(name: str) -> type[np.int64] | type[np.float64]:
    """The dtype of a column of statistics."""
    return np.int64 if name in TALLIES else np.float64


class SiteNumbers:
    """Numbers sites, new ones in the order in which they come.

    keys: the numbers of the sites so far.
    order: gets the numbers as they stand in their steps.
    called: what a site's name is in `keys`; other names give other names.
    """

    def __init__(
        self,
        keys: dict[Key, int],
        order: InOrder[int] | None = None,
        called: Callable[[str], str] = str,
    ) -> None:
        self._keys = keys
        self._order = order
        self._called = called
        self._texts: tuple[Any, Any] | None = None  # the dictionaries of the last table
        self._numbers = np.zeros(0, np.int64)  # by pairs of codes in these; -1 where unknown

    def of(self, table: Any) -> Int64:
        """int64 [rows]: the numbers of the sites of rows.

        table: a pyarrow.Table with the columns "site" and "kind", and with `order` "step".
        """
        site, kind = (one_chunk(table.column(name)) for name in ("site", "kind"))
        texts = site.dictionary, kind.dictionary
        if self._texts is None or not all(map(_are_equal, texts, self._texts)):
            self._texts = texts
            self._numbers = np.full(max(1, len(texts[0]) * len(texts[1])), -1)
        kinds = max(1, len(texts[1]))
        codes = numbers(site.indices).astype(np.int64) * kinds + numbers(kind.indices)
        found: Int64 = self._numbers[codes]
        if (found < 0).any():
            known = len(self._keys)
            self._add(codes[found < 0], *(each.to_pylist() for each in texts))
            found = self._numbers[codes]
            if self._order is not None and len(self._keys) > known:
                step = numbers(table.column("step"))
                for of_step in np.unique(step[found >= known]):
                    self._order.add(found[step == of_step].tolist())
        return found

    def _add(self, codes: Int64, names: list[str], kinds: list[str]) -> None:
        new, first = np.unique(codes, return_index=True)
        for code in new[np.argsort(first)].tolist():
            name, kind = divmod(code, len(kinds))
            key = self._called(names[name]), kinds[kind]
            self._numbers[code] = self._keys.setdefault(key, len(self._keys))


def _are_equal(a: Any, b: Any) -> bool:
    equal: bool = a.equals(b)
    return equal


def choose(keys: Collection[Key], names: str = "*", kinds: str = "*") -> list[Key]:
    """The keys, (name, kind) each, that match; in the order of `keys`.

    Args:
        names: a name, or a glob.
        kinds: a kind, which means its only or first tensor, or a glob with "*" or "?".
    Raises:
        KeyError: nothing matches; the message suggests similar names.
    """
    known = {name for name, _ in keys}
    chosen = {names} & known or {name for name in known if fnmatch.fnmatchcase(name, names)}
    if "*" in kinds or "?" in kinds:
        glob = kinds.replace("[", "[[]")  # the leaves of "output[*]"
        found = [key for key in keys if key[0] in chosen and fnmatch.fnmatchcase(key[1], glob)]
    else:
        find = finder(keys)
        meant = {find(name, kinds) for name in chosen}
        found = [key for key in keys if key in meant]
    if not found:
        raise KeyError(f"no site {(names, kinds)!r}: {hint(keys, names, kinds, chosen)}")
    return found
