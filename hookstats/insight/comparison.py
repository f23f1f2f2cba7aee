"""compare(): where two runs first differ, and which of their sites differ most."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records import difference
from hookstats.records.difference import STATISTICS, Comparison, Difference, Side
from hookstats.records.display import view_of
from hookstats.records.keys import InOrder, Key, hint, label
from hookstats.records.replicas import CHECKSUM
from hookstats.records.sparse import Int64
from hookstats.runs import selections
from hookstats.runs.decode import decode, numbers, one_chunk
from hookstats.runs.format import CHANNELS, TENSORS, require_pyarrow, schema_of
from hookstats.runs.format import STATISTICS as COLUMNS
from hookstats.runs.run import Run, open_run
from hookstats.runs.selections import SiteNumbers
from hookstats.runs.series import span

_SHOWN = 10
"""The number of sites that the text of a comparison lists."""
_AT_ONCE = 1 << 14
"""About how many tensors of each run are compared at once."""
_SITE = STATISTICS.index("site")

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
    """The mean over the compared steps of how far apart the tensors are in size and shape:
    ``abs(log(rms of B / rms of A))``, plus the differences of their means and of their mean
    magnitudes, each in units of its tensor's rms. It is inf where a step cannot be compared: only
    one run has the site or has non-finite values in it, only one rms is 0, or the numbers of
    channels differ."""
    step: int
    """The step in which the site differs most."""
    rms: tuple[float, float]
    """The rms of the whole tensor in that step, in A and in B; NaN where there is none."""
    _read: Callable[[int, Key], float] = field(repr=False, compare=False)  # what `moved` calls

    @cached_property
    def moved(self) -> float:
        """The share of the values, 0 to 1, that lie in other bins of the histogram in that step:
        half the L1 distance of the two. NaN where the runs have other bins, or none, or the step
        was deleted since. The histograms of the step are read when this is asked for.

        Raises:
            ValueError: a part is damaged.
        """
        return self._read(self.step, (self.name, self.kind))

    @property
    def ratio(self) -> float:
        """The rms of B over that of A, in `step`; NaN where either has none."""
        a, b = self.rms
        return b / a if a else math.nan if b == 0 or math.isnan(b) else math.inf


_FOUND = np.dtype(
    [
        ("first", np.int64),
        ("steps", np.int64),
        ("total", np.float64),  # of the distances in these steps
        ("relative", np.float64),  # the greatest, of all statistics
        ("distance", np.float64),  # the greatest
        ("step", np.int64),  # which has that
        ("rms", np.float64, 2),  # there
    ]
)
"""How a site differs in the steps so far."""


class RunComparison:
    """How run B differs from run A, step by step and site by site; true if they differ."""

    def __init__(self, a: Run, b: Run, rtol: float, called: Callable[[str], str]) -> None:
        """The arguments are those of `compare_runs`."""
        self.a = str(a.path)
        """The path of run A."""
        self.b = str(b.path)
        """The path of run B."""
        self.steps: list[int] = []
        """The steps that were compared, ascending."""
        self.differing: list[int] = []
        """Those of them that differ."""
        self.first: tuple[int, list[Difference]] | None = None
        """The first step that differs, and all differences of the first site there."""
        self.only: list[tuple[str, list[int]]] = []
        """(run, steps): the steps that only this run has."""
        self._seen: dict[Key, int] = {}
        self._compared: set[int] = set()  # numbers, as in _seen
        self._keys: list[Key] = []  # of the comparison that was added last
        self._numbers = np.zeros(0, np.int64)  # of these, as in _seen
        self._wanted = np.zeros(0, bool)
        self._found = np.zeros(0, _FOUND)  # by number
        self._runs = a, b
        self._rtol, self._called = rtol, called
        self._moved: dict[int, dict[Key, float]] = {}  # by step

    def __bool__(self) -> bool:
        return bool(self.differing or self.only)

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    @property
    def seen(self) -> Collection[Key]:
        """The sites of both runs, chosen or not."""
        return self._seen

    @property
    def compared(self) -> set[Key]:
        """The sites that were compared."""
        return {key for key, number in self._seen.items() if number in self._compared}

    @cached_property
    def sites(self) -> list[SiteDifferences]:
        """The sites that differ, those with the greatest `SiteDifferences.distance` first; among
        equals, differing sites first."""
        found, keys = self._found, list(self._seen)
        order = np.lexsort((-found["relative"], found["first"], -found["total"]))
        return [
            SiteDifferences(
                name=keys[i][0],
                kind=keys[i][1],
                first=int(found["first"][i]),
                steps=int(found["steps"][i]),
                distance=float(found["total"][i]) / len(self.steps),
                step=int(found["step"][i]),
                rms=(float(found["rms"][i, 0]), float(found["rms"][i, 1])),
                _read=self._moved_in,
            )
            for i in order.tolist()
            if found["steps"][i]
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
        shape = len(comparison.steps), len(keys)
        self._compared.update(self._numbers[taken.reshape(shape).any(0)].tolist())
        self.steps += comparison.steps
        differs = taken & relative.any(1)
        if not differs.any():
            return
        steps = np.array(comparison.steps, np.int64)
        differing = steps[differs.reshape(shape).any(1)].tolist()
        if self.first is None:
            self.first = differing[0], self._all_of(comparison, int(differs.argmax()), differing[0])
        self.differing += differing
        sites = np.flatnonzero(differs.reshape(shape).any(0))
        self._note(comparison, differs.reshape(shape)[:, sites], sites, steps)

    def _note(
        self, comparison: Comparison, differs: NDArray[np.bool_], sites: Int64, steps: Int64
    ) -> None:
        """Note how some sites of a comparison differ.

        differs: [T, sites], whether in this step.
        """
        shape = len(steps), len(comparison.keys)
        distance, relative = (
            np.where(differs, of_places.reshape(shape)[:, sites], 0.0)
            for of_places in (comparison.distance, comparison.relative.max(1))
        )
        distance[:, [comparison.keys[site][1] == CHECKSUM for site in sites]] = 0.0
        self._found = np.append(self._found, np.zeros(len(self._seen) - len(self._found), _FOUND))
        found = self._found[self._numbers[sites]]
        new = found["steps"] == 0
        found["first"][new] = steps[differs.argmax(0)][new]
        found["steps"] += differs.sum(0)
        found["total"] += distance.sum(0)
        found["relative"] = np.maximum(found["relative"], relative.max(0))
        worst = np.where(differs, distance, -1.0).argmax(0)  # of equal distances the first
        greatest = distance[worst, np.arange(len(sites))]
        more = new | (greatest > found["distance"])
        found["distance"][more] = greatest[more]
        found["step"][more] = steps[worst][more]
        found["rms"][more] = comparison.rms[worst * shape[1] + sites][more]
        self._found[self._numbers[sites]] = found

    def _all_of(self, comparison: Comparison, place: int, step: int) -> list[Difference]:
        """The differences at a place, with those of histograms, unless the step was deleted."""
        found = comparison.of(place)
        with suppress(KeyError):
            a, b = (run[step] for run in self._runs)
            whole = difference.between(a, b, self._rtol, self._called)
            key = comparison.keys[place % len(comparison.keys)]
            found = whole.of(whole.keys.index(key)) or found  # channels may be equal nevertheless
        return found

    def _moved_in(self, step: int, key: Key) -> float:
        """`SiteDifferences.moved` of a site in a step."""
        with suppress(KeyError):  # the step was deleted since, to keep to max_bytes
            if step not in self._moved:
                a, b = (run.tensors(step) for run in self._runs)
                whole = difference.between(a, b, called=self._called)
                self._moved[step] = dict(zip(whole.keys, whole.moved.tolist(), strict=True))
            return self._moved[step][key]
        return math.nan

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

    Counts are compared exactly, moments (mean, variance, extremes, l1) to the last bit or within
    `rtol`. Tensors that agree in all of these are equal: histograms are only read to say how what
    is shown differs.
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
    found = RunComparison(a, b, rtol, called)
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
    """The comparisons of steps that both runs have, ascending, without histograms; of many at once
    where channels were not kept by both. called: what a site of B is called in A.

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
        of_a, of_b = map(_side, tables, channels, places)
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


_NAMES = {
    TENSORS: ("step", "site", "kind", "channels", "dtype", "observed", *COLUMNS),
    CHANNELS: ("step", *COLUMNS),
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


def _side(tensors: Any, channels: Any, places: Int64) -> Side:
    """The rows of a run as a side of a comparison, without histograms."""
    dtype = one_chunk(tensors.column("dtype"))
    dtypes = np.array(dtype.dictionary.to_pylist(), object)
    return Side(
        places,
        numbers(tensors.column("channels")).astype(np.int64),
        dtypes[numbers(dtype.indices)],
        numbers(tensors.column("observed")),
        decode(tensors),
        None if channels is None else decode(channels),
        bins=None,
        channel_bins=None,
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
