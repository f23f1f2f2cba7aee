"""compare(): where two runs part, and which of their sites differ most."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hookstats.records import difference
from hookstats.records.difference import STATISTICS, Comparison, Difference
from hookstats.records.keys import Key, label
from hookstats.runs import selections
from hookstats.runs.run import Run, open_run
from hookstats.runs.series import span

_SHOWN = 10
"""The number of sites that the text of a comparison lists."""
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
        self._seen: dict[Key, None] = {}
        self._sites: dict[Key, _Site] = {}

    def __bool__(self) -> bool:
        return bool(self.differing or self.only)

    @property
    def seen(self) -> Collection[Key]:
        """The sites of both runs, those that were not chosen included."""
        return self._seen

    @property
    def sites(self) -> list[SiteDifferences]:
        """The sites that differ, those with the greatest `SiteDifferences.distance` first; among
        equals, those that differ first."""
        order = {key: i for i, key in enumerate(self._seen)}
        found = sorted(
            self._sites.items(),
            key=lambda item: (-item[1].total, item[1].first, -item[1].relative, order[item[0]]),
        )
        return [site.described(*key, len(self.steps)) for key, site in found]

    def add(self, step: int, comparison: Comparison, sites: Collection[int]) -> None:
        """Add the chosen sites of a step; steps come in ascending order."""
        self._seen.update(dict.fromkeys(comparison.keys))
        self.compared.update(comparison.keys[site] for site in sites)
        self.steps.append(step)
        differing = [site for site in sites if comparison.relative[site].any()]
        if not differing:
            return
        self.differing.append(step)
        if self.first is None:
            self.first = step, comparison.of(differing[0])
        distances = _distances(comparison)
        for site in differing:
            key = comparison.keys[site]
            known = self._sites.setdefault(key, _Site(first=step))
            known.add(step, comparison, site, float(distances[site]))

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
        step, differences = self.first
        name, kind, *_ = differences[0]
        return (
            f"first differ in step {step}, at {label(name)} {kind}; {len(self._sites)} of "
            f"{len(self.compared)} sites differ, in {len(self.differing)} of {len(self.steps)} "
            f"steps{only}"
        )


@dataclass
class _Site:
    """What is known of a site that differs."""

    first: int
    steps: int = 0
    total: float = 0.0
    most: float = -1.0
    relative: float = 0.0
    step: int = 0
    rms: tuple[float, float] = (math.nan, math.nan)
    moved: float = math.nan

    def add(self, step: int, comparison: Comparison, site: int, distance: float) -> None:
        self.steps += 1
        self.total += distance
        self.relative = max(self.relative, float(comparison.relative[site].max()))
        if distance > self.most:
            self.most, self.step = distance, step
            a, b = comparison.rms[site].tolist()
            self.rms, self.moved = (a, b), float(comparison.moved[site])

    def described(self, name: str, kind: str, compared: int) -> SiteDifferences:
        distance = self.total / compared
        return SiteDifferences(
            name, kind, self.first, self.steps, distance, self.step, self.rms, self.moved
        )


def compare(
    a: Run | str | os.PathLike[str],
    b: Run | str | os.PathLike[str],
    names: str = "*",
    kinds: str = "*",
    *,
    rtol: float = 0.0,
    common: bool = False,
) -> RunComparison:
    """Compare two runs, step by step: ``print(hs.compare("runs/a", "runs/b"))``.

    Integers (counts, histograms) are compared exactly, moments to the last bit or within `rtol`.
    Two runs with one seed show where they part; `RunComparison.sites` says where two ordinary runs
    differ most.

    Args:
        a, b: runs, or their paths.
        names, kinds: the sites, chosen as by ``run[names, kinds]``.
        rtol: the relative difference of moments that counts as equal.
        common: ignore steps and sites that only one run has.
    Raises:
        KeyError: nothing matches; the message suggests similar names.
        ValueError: rtol is not 0 or more, or a part is damaged.
        FileNotFoundError: there is no such run.
    """

    def chosen(keys: Collection[Key]) -> Collection[Key]:
        with suppress(KeyError):  # a step may lack the sites
            return selections.choose(keys, names, kinds)
        return []

    runs = [run if isinstance(run, Run) else open_run(run) for run in (a, b)]
    found = compare_runs(runs[0], runs[1], chosen, rtol=rtol, common=common)
    if found.seen and not found.compared:
        selections.choose(found.seen, names, kinds)
    return found


def compare_runs(
    a: Run,
    b: Run,
    chosen: Chooser,
    *,
    rtol: float = 0.0,
    common: bool = False,
    shown: Callable[[list[int]], Iterable[int]] = iter,
) -> RunComparison:
    """What `compare` does, of the sites that `chosen` picks; `shown` goes through the steps, and
    may show how far it is."""
    found = RunComparison(str(a.path), str(b.path))
    of_a, of_b = set(a.steps), set(b.steps)
    if not common:
        only = ((found.a, of_a - of_b), (found.b, of_b - of_a))
        found.only += [(path, sorted(steps)) for path, steps in only if steps]
    for step in shown(sorted(of_a & of_b)):
        comparison = difference.compare(a[step], b[step], rtol)
        keys = set(chosen(comparison.keys))
        one_sided = np.isinf(comparison.relative[:, STATISTICS.index("site")])
        sites = [
            site
            for site, key in enumerate(comparison.keys)
            if key in keys and not (common and one_sided[site])
        ]
        found.add(step, comparison, sites)
    return found


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
