"""Selections: the rows of some sites of a run, of one rank or of all ranks, merged."""

from __future__ import annotations

import errno
import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import Key, finder, hint
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64
from hookstats.runs.arrays import numbers
from hookstats.runs.encode import encode_table, join_tables
from hookstats.runs.format import CHANNELS_COLUMN, PHASE_COLUMN, TENSOR_COLUMNS, PartName
from hookstats.runs.index import Where
from hookstats.runs.parts import Parts
from hookstats.runs.row_sites import row_sites
from hookstats.runs.whole import Whole
from hookstats.stats.merge import offsets_of


class Selection(ABC):
    """The rows of the chosen sites, site by site and in order of steps: N in all."""

    parts: Parts
    keys: list[Key]
    """The chosen sites."""
    steps: Int64
    """int64 [N]."""
    bounds: list[int]
    """[sites + 1]: site i owns rows bounds[i]:bounds[i + 1]."""
    numbers: Mapping[str, NDArray[Any]]
    """[N] each: the columns with one number a row, by name."""
    infos: Mapping[Key, SiteInfo]
    """The description of each site in the last record that has the site."""

    @abstractmethod
    def record(self, step: int) -> StepRecord:
        """The record of a step that observed any of the sites."""

    @abstractmethod
    def lists(self, *names: str) -> list[tuple[NDArray[Any], Int64]]:
        """Columns of lists: the values of each, and int64 [N + 1], where each row's begin."""


class OfRank(Selection):
    """What one rank recorded, read column by column from its parts."""

    def __init__(self, parts: Parts, names: str, kinds: str) -> None:
        self.parts = parts
        keys: dict[Key, int] = {}
        found = [rows for part in parts.valid().items() if (rows := _find(parts, *part, keys))]
        if not keys:
            raise KeyError(_empty(parts))
        self.keys = choose(list(keys), names, kinds)
        number = np.full(len(keys), -1)  # of a site among the chosen
        number[[keys[key] for key in self.keys]] = np.arange(len(self.keys))
        sites = number[np.concatenate([part.sites for part in found])]
        steps = np.concatenate([part.steps for part in found])[sites >= 0]
        sites = sites[sites >= 0]
        self._order = np.argsort(sites, kind="stable")
        self._masks = {}  # by part, which of its rows were chosen
        for part in found:
            mask = part.mask.copy()
            mask[mask] = number[part.sites] >= 0
            self._masks[part.name] = mask
        self.steps = steps[self._order]
        self.bounds = offsets_of(np.bincount(sites, minlength=len(self.keys))).tolist()
        (records,) = parts.index.values()
        self._records = records.copy()
        self._lists: dict[str, tuple[NDArray[Any], Int64]] = {}

    @cached_property
    def numbers(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        channels = (CHANNELS_COLUMN,) if self.parts.all_detailed(self._masks) else ()
        names = ("observed", *channels, *TENSOR_COLUMNS)
        tables = [*self._read(names)]
        return {
            name: np.concatenate([numbers(t.column(name))[mask] for mask, t in tables])[self._order]
            for name in names
        }

    def record(self, step: int) -> StepRecord:
        return self.parts.record(self._records[step])

    @cached_property
    def infos(self) -> dict[Key, SiteInfo]:  # type: ignore[override]
        last: dict[int, set[Key]] = {}
        for key, end in zip(self.keys, self.bounds[1:], strict=True):
            last.setdefault(int(self.steps[end - 1]), set()).add(key)
        return {
            (site.name, site.kind): site
            for step, keys in last.items()
            for site in self.record(step).sites
            if (site.name, site.kind) in keys
        }

    def lists(self, *names: str) -> list[tuple[NDArray[Any], Int64]]:
        missing = [name for name in dict.fromkeys(names) if name not in self._lists]
        found: dict[str, list[tuple[NDArray[Any], Int64]]] = {name: [] for name in missing}
        if missing:
            for mask, table in self._read(missing):
                for name in missing:
                    found[name].append(_lists(table.column(name), mask))
        for name, lists in found.items():
            values, lengths = (np.concatenate(part) for part in zip(*lists, strict=True))
            self._lists[name] = _in_order(values, lengths, self._order)
        return [self._lists[name] for name in names]

    def _read(self, columns: Sequence[str]) -> Iterator[tuple[NDArray[np.bool_], Any]]:
        """For each part, which rows were chosen, bool, and a pyarrow.Table of all its rows."""
        for name, mask in self._masks.items():
            yield mask, self._table(name, columns)

    def _table(self, name: PartName, columns: Sequence[str]) -> Any:
        try:
            return self.parts.read(name, columns)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                errno.ENOENT, "deleted since the series was asked for; ask for it again", str(name)
            ) from error
        except (OSError, ValueError) as error:
            self.parts.skip(name, error)
            raise


class Merged(Selection):
    """What several ranks recorded, merged: every step is read once, and what the chosen sites have
    is kept."""

    def __init__(self, parts: Parts, names: str, kinds: str, whole: Whole) -> None:
        self.parts = parts
        self._whole = whole
        keys: dict[Key, int] = {}
        for part in parts.valid().items():
            _find(parts, *part, keys)
        if not keys:
            raise KeyError(_empty(parts))
        self.keys = choose(list(keys), names, kinds)
        number = {key: i for i, key in enumerate(self.keys)}
        self.infos: dict[Key, SiteInfo] = {}
        sites, steps, tables = [], [], []
        detail = CHANNELS_COLUMN in parts.schema().names
        for record in whole.records():
            chosen = [i for i, site in enumerate(record.sites) if (site.name, site.kind) in number]
            found = [record.sites[i] for i in chosen]
            self.infos |= {(site.name, site.kind): site for site in found}
            sites += [number[site.name, site.kind] for site in found]
            steps += [record.step] * len(found)
            tables.append(encode_table(record, detail=detail).take(chosen))
        self._table = join_tables(tables)
        self._order = np.argsort(np.array(sites, np.int64), kind="stable")
        self.steps = np.array(steps, np.int64)[self._order]
        self.bounds = offsets_of(np.bincount(sites, minlength=len(self.keys))).tolist()
        channels = (CHANNELS_COLUMN,) if detail else ()
        columns = ("observed", *channels, *TENSOR_COLUMNS)
        self.numbers = {name: numbers(self._table.column(name))[self._order] for name in columns}

    def record(self, step: int) -> StepRecord:
        return self._whole.record(step)

    def lists(self, *names: str) -> list[tuple[NDArray[Any], Int64]]:
        return [_in_order(*_lists(self._table.column(name)), self._order) for name in names]


class _Rows(NamedTuple):
    """The valid rows of a part, R in all."""

    name: PartName
    mask: NDArray[np.bool_]
    """Which of all its rows they are."""
    steps: Int64
    """int64 [R]."""
    sites: Int64
    """int64 [R]: the numbers of their sites."""


def _empty(parts: Parts) -> str:
    """Why there is nothing to choose from."""
    return f"{parts.run} has no {'tensors in its steps' if parts.index else 'steps'} yet"


def _find(parts: Parts, name: PartName, records: list[Where], keys: dict[Key, int]) -> _Rows | None:
    """The valid rows of a part, new sites being numbered in `keys`; None if it is no more."""
    try:
        with parts.naming(name):
            return _rows(parts, name, records, keys)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if not parts.skip(name, error):
            raise
        return None


def _rows(parts: Parts, name: PartName, records: list[Where], keys: dict[Key, int]) -> _Rows:
    phased = (PHASE_COLUMN,) if parts.has_phases(name) else ()
    table = parts.read(name, ("step", "site", "kind", *phased))  # the steps are compared
    mask = parts.rows(name, records)
    sites = row_sites(table, keys, mask)
    steps = np.repeat([where.step for where in records], [where.rows for where in records])
    return _Rows(name, mask, steps.astype(np.int64), sites)


def _lists(column: Any, mask: NDArray[np.bool_] | None = None) -> tuple[NDArray[Any], Int64]:
    """The values of the lists in a column, or in the rows of a mask alone, and their lengths."""
    lists = column.combine_chunks()
    values, lengths = numbers(lists.flatten()), numbers(lists.value_lengths()).astype(np.int64)
    if mask is None or mask.all():
        return values, lengths
    return values[np.repeat(mask, lengths)], lengths[mask]


def _in_order(
    values: NDArray[Any], lengths: Int64, order: NDArray[np.intp]
) -> tuple[NDArray[Any], Int64]:
    """Lists one after the other, put into another order, and their offsets."""
    starts = np.cumsum(lengths) - lengths
    lengths = lengths[order]
    offsets = offsets_of(lengths)
    if len(order) > 1 and (np.diff(order) != 1).any():
        values = values[np.arange(offsets[-1]) + np.repeat(starts[order] - offsets[:-1], lengths)]
    return values, offsets


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
