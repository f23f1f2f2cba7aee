"""compare(): where two runs first differ, and which of their sites differ most."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hookstats.records import difference
from hookstats.records.difference import STATISTICS, Comparison, Difference, Side
from hookstats.records.display import view_of
from hookstats.records.keys import InOrder, Key, hint, label
from hookstats.records.replicas import CHECKSUM
from hookstats.records.sparse import Float64, Int64
from hookstats.runs import selections
from hookstats.runs.decode import decode, numbers, one_chunk
from hookstats.runs.format import CHANNELS, HISTOGRAM, TENSORS, require_pyarrow, schema_of
from hookstats.runs.format import STATISTICS as COLUMNS
from hookstats.runs.run import Run, open_run
from hookstats.runs.selections import SiteNumbers
from hookstats.runs.series import span

_SHOWN = 10
"""The number of sites that the text of a comparison lists."""
_AT_ONCE = 1 << 13
"""About how many tensors of each run are compared at once."""
_SITE = STATISTICS.index("site")
_UNLIKE = tuple(map(STATISTICS.index, ("site", "channels", "nan", "posinf", "neginf")))

Chooser = Callable[[Collection[Key]], Collection[Key]]


@dataclass
class SiteDifferences:
    """How one site differs, over all steps that both runs have."""

    name: str
    kind: str
    first: int
    """The first step in which the site differs."""
    steps: int
    """The number of steps in which it differs."""
    distance: float
    """The mean over the compared steps of ``abs(log(rms of B / rms of A))`` + `moved`; inf where a
    step cannot be compared: only one run has the site or has non-finite values in it, or the
    numbers of channels differ."""
    step: int
    """The step in which the site differs most."""
    rms: tuple[float, float]
    """The rms of the whole tensor in that step, in A and in B; NaN where there is none."""
    moved: float
    """The share of the values, 0 to 1, that lie in other bins of the histogram in that step: half
    the L1 distance of the two. NaN where the runs have other bins, or none."""

    @property
    def ratio(self) -> float:
        """The rms of B over that of A, in `step`; NaN where either has none."""
        a, b = self.rms
        return b / a if a else math.nan if b == 0 or math.isnan(b) else math.inf


class _Found(NamedTuple):
    """What differs in some steps, one row for each site and step: [N] each."""

    site: Int64
    step: Int64
    distance: Float64
    relative: Float64
    """The greatest of all statistics."""
    rms: Float64
    """[N, 2]."""
    moved: Float64


class RunComparison:
    """How run B differs from run A, step by step and site by site; true if they differ."""

    def __init__(self, a: str, b: str) -> None:
        self.a = a
        """The path of run A."""
        self.b = b
        """The path of run B."""
        self.steps: list[int] = []
        """The steps that were compared, ascending."""
        self.differing: list[int] = []
        """Those of them that differ."""
        self.compared: set[Key] = set()
        """The sites that were compared."""
        self.first: tuple[int, list[Difference]] | None = None
        """The first step that differs, and all differences of the first site there."""
        self.only: list[tuple[str, list[int]]] = []
        """(run, steps): the steps that only this run has."""
        self._seen: dict[Key, int] = {}
        self._keys: list[Key] = []  # of the comparison that was added last
        self._numbers = np.zeros(0, np.int64)  # of these, as in _seen
        self._wanted = np.zeros(0, bool)
        self._found: list[_Found] = []

    def __bool__(self) -> bool:
        return bool(self.differing or self.only)

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    @property
    def seen(self) -> Collection[Key]:
        """The sites of both runs, chosen or not."""
        return self._seen

    @cached_property
    def sites(self) -> list[SiteDifferences]:
        """The sites that differ, those with the greatest `SiteDifferences.distance` first; among
        equals, differing sites first."""
        if not self._found:
            return []
        found = _Found(*map(np.concatenate, zip(*self._found, strict=True)))
        order = np.argsort(found.site, kind="stable")
        starts = np.flatnonzero(np.diff(found.site[order], prepend=-1))
        ends = np.append(starts[1:], len(order))
        first = found.step[order[starts]]
        distance = np.add.reduceat(found.distance[order], starts) / len(self.steps)
        relative = np.maximum.reduceat(found.relative[order], starts)
        # Of equal distances, that of the first step.
        worst = np.lexsort((-found.step, found.distance, found.site))[ends - 1]
        site = found.site[worst]
        keys = list(self._seen)
        return [
            SiteDifferences(
                name=keys[site[i]][0],
                kind=keys[site[i]][1],
                first=int(first[i]),
                steps=int(ends[i] - starts[i]),
                distance=float(distance[i]),
                step=int(found.step[worst[i]]),
                rms=(float(found.rms[worst[i], 0]), float(found.rms[worst[i], 1])),
                moved=float(found.moved[worst[i]]),
            )
            for i in np.lexsort((site, -relative, first, -distance)).tolist()
        ]

    @property
    def bits(self) -> str:
        """Until when the parameters of both runs are equal to the bit, as the end of a sentence
        about them; "" where no checksums were compared."""
        if all(kind != CHECKSUM for _, kind in self.compared):
            return ""
        first = min([site.first for site in self.sites if site.kind == CHECKSUM], default=None)
        until = "in all steps" if first is None else f"until step {first}"
        return f"the parameters are equal to the bit {until}"

    def add(self, comparison: Comparison, chosen: Chooser, common: bool) -> None:
        """Add some steps; steps come in ascending order.

        common: leave out sites that only one run has.
        """
        keys, relative = comparison.keys, comparison.relative
        if keys is not self._keys:
            self._keys, wanted = keys, set(chosen(keys))
            seen = [self._seen.setdefault(key, len(self._seen)) for key in keys]
            self._numbers = np.array(seen, np.int64)
            self._wanted = np.array([key in wanted for key in keys], bool)
        taken = np.tile(self._wanted, len(comparison.steps)) & comparison.there
        if common:
            taken &= ~np.isinf(relative[:, _SITE])
        some = taken.reshape(len(comparison.steps), -1).any(0)
        self.compared.update(keys[site] for site in np.flatnonzero(some))
        self.steps += comparison.steps
        places = np.flatnonzero(taken & relative.any(1))
        if not len(places):
            return
        steps = np.array(comparison.steps, np.int64)[places // len(keys)]
        if self.first is None:
            self.first = int(steps[0]), comparison.of(int(places[0]))
        self.differing += np.unique(steps).tolist()
        has_size = np.array([kind != CHECKSUM for _, kind in keys], bool)
        self._found.append(
            _Found(
                self._numbers[places % len(keys)],
                steps,
                np.where(has_size[places % len(keys)], _distances(comparison)[places], 0.0),
                relative[places].max(1),
                comparison.rms[places],
                comparison.moved[places],
            )
        )

    def __repr__(self) -> str:
        return f"RunComparison({self.a!r}, {self.b!r}: {self._verdict()})"

    def __str__(self) -> str:
        lines = [f"{self.a} and {self.b}: {self._verdict()}"]
        found = self.sites
        for site in found[:_SHOWN]:
            ratio = f"rms {format_ratio(site.ratio) or 'not comparable'}"
            moved = "" if math.isnan(site.moved) else f", {site.moved:.1%} of the values moved"
            lines.append(f"  {label(site.name)} {site.kind}: {ratio}{moved} in step {site.step}")
        if len(found) > _SHOWN:
            lines.append(f"  ... and {len(found) - _SHOWN} more sites")
        return "\n".join(lines)

    def _verdict(self) -> str:
        only = "".join(f"; only {path} has {span(steps)}" for path, steps in self.only)
        if self.first is None:
            return f"equal in {len(self.steps)} steps of {len(self.compared)} sites{only}"
        bits = self.bits and f"; {self.bits}"
        step, differences = self.first
        name, kind, *_ = differences[0]
        return (
            f"first differ in step {step}, at {label(name)} {kind}; {len(self.sites)} of "
            f"{len(self.compared)} sites differ, in {len(self.differing)} of {len(self.steps)} "
            f"steps{bits}{only}"
        )


def compare(
    a: Run | str | os.PathLike[str],
    b: Run | str | os.PathLike[str],
    names: str | Mapping[str, str] = "*",
    kinds: str = "*",
    *,
    rtol: float = 0.0,
    common: bool = False,
) -> RunComparison:
    """Compare two runs, step by step: ``print(hs.compare("runs/a", "runs/b"))``.

    Integers (counts, histograms) are compared exactly, moments to the last bit or within `rtol`.
    For two runs with one seed, `RunComparison.first` is where they first differ;
    `RunComparison.sites` shows where any two runs differ most.

    Args:
        a, b: runs, or their paths.
        names, kinds: the sites, chosen as by ``run[names, kinds]``. A mapping, ``{"0": "up"}``, for
            two implementations of one model, says what modules of A are called in B, and compares
            these alone, with all that is in them. The result has the names of A.
        rtol: the relative difference of moments that counts as equal.
        common: ignore steps and sites that only one run has.
    Raises:
        KeyError: nothing matches, or a run lacks a name of the mapping; the message suggests
            similar names.
        ValueError: rtol is not 0 or more, a part is damaged, or `names` has a name of B twice.
        FileNotFoundError: there is no such run.
    """
    pattern, called = (names, str) if isinstance(names, str) else ("*", _names_of_a(names))

    def chosen(keys: Collection[Key]) -> Collection[Key]:
        if not isinstance(names, str):
            keys = [key for key in keys if any(_is_in(key[0], name) for name in names)]
        with suppress(KeyError):  # a step may lack the sites
            return selections.choose(keys, pattern, kinds)
        return []

    runs = [run if isinstance(run, Run) else open_run(run) for run in (a, b)]
    if not isinstance(names, str):
        _check_names(runs[0], names)
        _check_names(runs[1], names.values())
    found = compare_runs(runs[0], runs[1], chosen, rtol=rtol, common=common, called=called)
    if found.seen and not found.compared:
        for name in [pattern] if isinstance(names, str) else names:
            selections.choose(found.seen, name, kinds)
    return found


def _check_names(run: Run, modules: Iterable[str]) -> None:
    """Raise a KeyError for a module that a run has nothing of."""
    there = run.table(["site"]).column("site").unique().to_pylist()
    for module in modules:
        if not any(_is_in(name, module) for name in there):
            known = hint([(name, "") for name in there], module, "", ())
            raise KeyError(f"names has {module!r}, which {run.path} lacks: {known}")


def _is_in(name: str, module: str) -> bool:
    """Whether a site is a module's, or one of what is in the module."""
    return name == module or name.startswith(f"{module}.")


def _names_of_a(names: Mapping[str, str]) -> Callable[[str], str]:
    """What the sites of run B are called in run A: `names` has what A's modules are called in B."""
    of_b = {theirs: mine for mine, theirs in names.items()}
    if len(of_b) < len(names):
        raise ValueError(f"names = {dict(names)!r}: expected another name of B for each name of A")

    def called(name: str) -> str:
        module = max((theirs for theirs in of_b if _is_in(name, theirs)), key=len, default=None)
        return f"(B) {name}" if module is None else of_b[module] + name[len(module) :]

    return called


def compare_runs(
    a: Run,
    b: Run,
    chosen: Chooser,
    *,
    rtol: float = 0.0,
    common: bool = False,
    shown: Callable[[list[int]], Iterable[int]] = iter,
    called: Callable[[str], str] = str,
) -> RunComparison:
    """What `compare` does, of the sites that `chosen` picks; `shown` goes through the steps, and
    may show how far it is; `called` says what a site of B is called in A."""
    found = RunComparison(str(a.path), str(b.path))
    of_a, of_b = set(a.steps), set(b.steps)
    if not common:
        only = ((found.a, of_a - of_b), (found.b, of_b - of_a))
        found.only += [(path, sorted(steps)) for path, steps in only if steps]
    for comparison in comparisons(a, b, shown(sorted(of_a & of_b)), rtol, called):
        found.add(comparison, chosen, common)
    return found


def comparisons(
    a: Run,
    b: Run,
    steps: Iterable[int],
    rtol: float = 0.0,
    called: Callable[[str], str] = str,
) -> Iterator[Comparison]:
    """The comparisons of steps that both runs have, ascending; of many at once where channels were
    not kept by both. called: what a site of B is called in A.

    Raises:
        ValueError: rtol is not 0 or more, or a part is damaged.
    """
    keys: dict[Key, int] = {}
    order = InOrder[int]()  # of their numbers
    with_channels = set(a.steps_with_channels).intersection(b.steps_with_channels)
    numbered = [SiteNumbers(keys, order), SiteNumbers(keys, order, called)]
    named: list[Key] = []
    place = np.zeros(0, np.int64)
    of_tensors, of_channels = ([_Reader(run, folder) for run in (a, b)] for folder in _NAMES)

    def compared(several: list[int], channels: Sequence[Any] = (None, None)) -> Comparison:
        nonlocal named, place
        tables = [reader.rows(several) for reader in of_tensors]
        sites = [each.of(table) for each, table in zip(numbered, tables, strict=True)]
        if len(named) < len(keys):
            in_order, ordered = list(keys), list(order)
            named, place = [in_order[i] for i in ordered], np.argsort(ordered)
        places = (
            np.searchsorted(several, numbers(table.column("step"))) * len(keys) + place[site]
            for table, site in zip(tables, sites, strict=True)
        )
        of_a, of_b = map(_side, (a, b), tables, channels, places)
        return difference.differences(several, named, of_a, of_b, rtol)

    pending: list[int] = []
    for step in steps:
        channels = [reader.rows([step]) for reader in of_channels] if step in with_channels else []
        apart = channels and not channels[0].equals(channels[1])
        is_full = len(pending) * max(len(keys), 1) >= _AT_ONCE
        if pending and (is_full or apart or not keys):
            yield compared(pending)
            pending = []
        if apart:
            yield compared([step], channels)
        else:
            pending = [*pending, step]
    if pending:
        yield compared(pending)


_STATE = (*COLUMNS, *HISTOGRAM)
_NAMES = {
    TENSORS: ("step", "site", "kind", "channels", "dtype", "observed", *_STATE),
    CHANNELS: ("step", *_STATE),
}
"""The columns that are compared."""


class _Reader:
    """Reads one of the tables of a run from its first step to its last, once."""

    def __init__(self, run: Run, folder: str) -> None:
        names = _NAMES[folder]
        self._empty = require_pyarrow().Table.from_batches([], schema_of(folder)).select(names)
        self._tables = run.batches(names, channels=folder == CHANNELS)
        self._left = self._empty

    def rows(self, steps: list[int]) -> Any:
        """The rows of ascending steps, which come after those of the call before."""
        found: list[Any] = []
        while self._left is not None:
            step = numbers(self._left.column("step"))
            firsts, ends = (np.searchsorted(step, steps, side) for side in ("left", "right"))
            apart = np.flatnonzero(firsts[1:] != ends[:-1])  # steps that are left out lie between
            first, end = firsts[[0, *apart + 1]].tolist(), ends[[*apart, -1]].tolist()
            found += [self._left.slice(i, j - i) for i, j in zip(first, end, strict=True) if j > i]
            if ends[-1] < len(step):
                self._left = self._left.slice(ends[-1])
                break
            self._left = next(self._tables, None)
        if len(found) == 1:
            return found[0]
        table = require_pyarrow().concat_tables(found or [self._empty])
        return table.unify_dictionaries().combine_chunks()


def _side(run: Run, tensors: Any, channels: Any, places: Int64) -> Side:
    """The rows of a run as a side of a comparison."""
    dtype = one_chunk(tensors.column("dtype"))
    dtypes = np.array(dtype.dictionary.to_pylist(), object)
    return Side(
        places,
        numbers(tensors.column("channels")).astype(np.int64),
        dtypes[numbers(dtype.indices)],
        numbers(tensors.column("observed")),
        decode(tensors),
        None if channels is None else decode(channels),
        run.bins,
        run.channel_bins,
    )


def format_ratio(ratio: float) -> str:
    """A ratio as people read it: "x35", "+12%", "-2e-07"; "" for NaN."""
    if math.isnan(ratio):
        return ""
    if math.isinf(ratio):
        return "from 0"
    if ratio == 0:
        return "to 0"
    if not 0.5 < ratio < 2:
        return f"x{ratio:.3g}"
    change = ratio - 1
    return f"{change:+.1%}" if abs(change) >= 1e-3 else f"{change:+.0e}" if change else "same"


def _distances(comparison: Comparison) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The distance of each site in one step, as `SiteDifferences.distance` says."""
    a, b = comparison.rms.T
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log(b / a))
    apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    apart[np.isnan(apart)] = math.inf
    apart[np.isinf(comparison.relative[:, _UNLIKE]).any(1)] = math.inf
    distances: np.ndarray[tuple[int], np.dtype[np.float64]] = apart + np.nan_to_num(
        comparison.moved
    )
    return distances
