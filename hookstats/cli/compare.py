"""Prints where two runs differ first, and which sites differ most."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hookstats.cli.inputs import check_chosen, choose, open_path
from hookstats.cli.output import count, stdout
from hookstats.records.difference import STATISTICS, Comparison, Difference, compare
from hookstats.records.keys import Key, label
from hookstats.runs.run import Run
from hookstats.runs.series import span
from hookstats.show.grid import Cell, print_grid

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class SiteDifferences:
    """How one site differs, over all steps."""

    first: int
    """The first step in which it differs."""
    steps: int
    """The number of steps in which it differs."""
    step: int
    """The step in which it differs most."""
    worst: Difference


class Differences:
    """How two runs differ; steps are added one by one, in ascending order."""

    def __init__(self) -> None:
        self.seen: dict[Key, None] = {}
        self.compared: set[Key] = set()
        self.steps = 0
        self.differing = 0
        self.first: tuple[int, list[Difference]] | None = None
        """The first step that differs, and all differences of the first site there."""
        self.sites: dict[Key, SiteDifferences] = {}
        self.only: list[tuple[str, list[int]]] = []
        """(run, steps): the steps that only this run has."""

    def __bool__(self) -> bool:
        return bool(self.differing or self.only)

    def add(self, step: int, comparison: Comparison, sites: list[int]) -> None:
        """Add the chosen sites of a step."""
        self.seen.update(dict.fromkeys(comparison.keys))
        self.compared.update(comparison.keys[site] for site in sites)
        self.steps += 1
        differing = [site for site in sites if comparison.relative[site].any()]
        self.differing += bool(differing)
        for site in differing:
            if self.first is None:
                self.first = step, comparison.of(site)
            statistic = int(comparison.relative[site].argmax())
            relative = comparison.relative[site, statistic]
            known = self.sites.get(comparison.keys[site])
            if known is None:
                worst = comparison.at(site, statistic)
                self.sites[comparison.keys[site]] = SiteDifferences(step, 1, step, worst)
                continue
            known.steps += 1
            if relative > known.worst.relative:
                known.step, known.worst = step, comparison.at(site, statistic)


def run(options: argparse.Namespace) -> int:
    # Strict: nobody knows whether an unreadable part is equal.
    a, b = (open_path(path, strict=True, rank=options.rank) for path in (options.a, options.b))
    console = stdout()
    for name in ("bins", "channel_bins"):
        one, other = getattr(a, name), getattr(b, name)
        if one != other:
            console.print(
                f"{name} differ ({one}, {other}): histograms are not compared", soft_wrap=True
            )
    found = _compare_runs(a, b, options)
    _print(console, found, options)
    return int(bool(found))


def _compare_runs(a: Run, b: Run, options: argparse.Namespace) -> Differences:
    found = Differences()
    of_a, of_b = set(a.steps), set(b.steps)
    if not options.common:
        only = ((options.a, of_a - of_b), (options.b, of_b - of_a))
        found.only += [(str(path), sorted(steps)) for path, steps in only if steps]
    for step in sorted(of_a & of_b):
        comparison = compare(a[step], b[step], options.rtol)
        chosen = set(choose(comparison.keys, options.layer, options.kind))
        one_sided = np.isinf(comparison.relative[:, STATISTICS.index("site")])
        sites = [
            site
            for site, key in enumerate(comparison.keys)
            if key in chosen and not (options.common and one_sided[site])
        ]
        found.add(step, comparison, sites)
    if found.steps:
        check_chosen(list(found.seen), options.layer, options.kind)
    return found


def _print(console: Console, found: Differences, options: argparse.Namespace) -> None:
    both = f"{options.a} and {options.b}"
    what = f"{count(found.steps, 'step')} of {count(len(found.compared), 'site')}"
    to = f" to {options.rtol:g}" if options.rtol else ""
    of = "" if options.rank is None else f" of rank {options.rank}"
    for path, steps in found.only:
        console.print(f"only {path} has {span(steps)}{of}", soft_wrap=True)
    if found.first is not None:
        step, differences = found.first
        console.print(f"{both} first differ in step {step}{of}, at", soft_wrap=True)
        _print_first(console, differences)
        console.print(
            f"\n{len(found.sites)} of {count(len(found.compared), 'site')} differ, in "
            f"{found.differing} of {count(found.steps, 'step')}; the largest differences:"
        )
        _print_worst(console, found, options.limit)
    elif not found.only:
        console.print(f"{both} are equal{to}: {what}", soft_wrap=True)
    elif found.steps:
        console.print(f"the {what} that both have are equal{to}", soft_wrap=True)


def _print_first(console: Console, differences: list[Difference]) -> None:
    """Every difference of one site, with both values."""
    name, kind, *_ = differences[0]
    console.print(f"{label(name)} {kind}:", style="bold", soft_wrap=True)
    rows = [
        _cells(
            difference.statistic,
            _channel(difference),
            *_values(difference),
            f"{difference.relative:.1e}",
        )
        for difference in differences
    ]
    columns = ("statistic", "channel", "A", "B", "relative")
    print_grid(console, columns, rows, text=1, elided=0)


def _print_worst(console: Console, found: Differences, limit: int) -> None:
    """One row per site; the sites that differ most come first."""
    order = {key: i for i, key in enumerate(found.seen)}
    sites = sorted(found.sites.items(), key=lambda item: (-item[1].worst.relative, order[item[0]]))
    columns = (
        *("layer", "kind", "first\nstep", "steps"),
        *("relative", "statistic", "channel", "in\nstep"),
    )
    rows = [
        _cells(
            *(label(name), kind, str(site.first), str(site.steps)),
            *(f"{site.worst.relative:.1e}", site.worst.statistic, _channel(site.worst)),
            str(site.step),
        )
        for (name, kind), site in sites[:limit]
    ]
    print_grid(console, columns, rows, text=2, elided=2)
    if len(sites) > limit:
        console.print(f"... and {len(sites) - limit} more (--limit)")


def _cells(*texts: str) -> list[Cell]:
    return [(text, "") for text in texts]


def _channel(difference: Difference) -> str:
    return "" if difference.channel is None else str(difference.channel)


def _values(difference: Difference) -> tuple[str, str]:
    """Both values, with enough digits to tell them apart."""
    a, b, relative = difference.a, difference.b, difference.relative
    if not (isinstance(a, float) and isinstance(b, float)):
        return str(a), str(b)
    digits = 4 if not math.isfinite(relative) else max(4, 2 - math.floor(math.log10(relative)))
    return f"{a:.{min(digits, 17)}g}", f"{b:.{min(digits, 17)}g}"
