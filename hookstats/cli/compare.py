"""Prints where two runs differ first, and which sites differ most."""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import TYPE_CHECKING

from hookstats.cli.inputs import check_chosen, choose, open_path
from hookstats.cli.output import count, stdout
from hookstats.insight.comparison import (
    RunComparison,
    SiteDifferences,
    compare_runs,
    format_ratio,
)
from hookstats.records.difference import Difference
from hookstats.records.keys import label
from hookstats.runs.series import span
from hookstats.show.grid import Cell, fits, print_grid
from hookstats.show.progress import track
from hookstats.show.terminal import format_number

if TYPE_CHECKING:
    from rich.console import Console


_COLUMNS = (
    *("layer", "kind", "first\nstep", "steps"),
    *("in\nstep", "rms A", "rms B", "change", "values\nmoved"),
)


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
    found = compare_runs(
        *(a, b, lambda keys: choose(keys, options.layer, options.kind)),
        rtol=options.rtol,
        common=options.common,
        shown=partial(track, what="comparing"),
    )
    if found.steps:
        check_chosen(list(found.seen), options.layer, options.kind)
    _print(console, found, options)
    return int(bool(found))


def _print(console: Console, found: RunComparison, options: argparse.Namespace) -> None:
    both = f"{options.a} and {options.b}"
    what = f"{count(len(found.steps), 'step')} of {count(len(found.compared), 'site')}"
    to = f" to {options.rtol:g}" if options.rtol else ""
    of = "" if options.rank is None else f" of rank {options.rank}"
    for path, steps in found.only:
        console.print(f"only {path} has {span(steps)}{of}", soft_wrap=True)
    if found.first is not None:
        step, differences = found.first
        console.print(f"{both} first differ in step {step}{of}, at", soft_wrap=True)
        _print_first(console, differences)
        sites = found.sites
        console.print(
            f"\n{len(sites)} of {count(len(found.compared), 'site')} differ, in "
            f"{len(found.differing)} of {count(len(found.steps), 'step')}; those that differ most:"
        )
        _print_worst(console, sites, options.limit)
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


def _print_worst(console: Console, sites: list[SiteDifferences], limit: int) -> None:
    """One row per site; the sites that differ most come first."""
    rows = [_row(site) for site in sites[:limit]]
    for narrower in ((), ("rms A", "rms B")):
        columns = [name for name in _COLUMNS if name not in narrower]
        cells = [_cells(*(row[name] for name in columns)) for row in rows]
        if fits(console, columns, cells):
            break
    print_grid(console, columns, cells, text=2, elided=2)
    if len(sites) > limit:
        console.print(f"... and {len(sites) - limit} more (--limit)")


def _row(site: SiteDifferences) -> dict[str, str]:
    """The text of each column."""
    a, b = ("-" if math.isnan(rms) else format_number(rms) for rms in site.rms)
    return {
        "layer": label(site.name),
        "kind": site.kind,
        "first\nstep": str(site.first),
        "steps": str(site.steps),
        "in\nstep": str(site.step),
        "rms A": a,
        "rms B": b,
        "change": format_ratio(site.ratio),
        "values\nmoved": "" if math.isnan(site.moved) else f"{site.moved:.1%}",
    }


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
