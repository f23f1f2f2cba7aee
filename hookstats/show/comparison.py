"""print_comparison(): how two runs differ, as tables in a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hookstats.insight.comparison import RunComparison, SiteDifferences, format_ratio
from hookstats.records.difference import Difference
from hookstats.records.keys import label
from hookstats.runs.series import span
from hookstats.show.grid import Cell, count, fits, print_grid
from hookstats.show.terminal import format_number

if TYPE_CHECKING:
    from rich.console import Console


_COLUMNS = (
    *("layer", "kind", "first\nstep", "steps"),
    *("in\nstep", "rms A", "rms B", "change", "values\nmoved"),
)


def print_comparison(
    console: Console,
    found: RunComparison,
    *,
    limit: int,
    rtol: float = 0.0,
    rank: int | None = None,
) -> None:
    """Print the first difference, and the `limit` sites that differ most.

    rtol, rank: those of the comparison; a rank of None is all ranks.
    """
    both = f"{found.a} and {found.b}"
    what = f"{count(len(found.steps), 'step')} of {count(len(found.compared), 'site')}"
    to = f" to {rtol:g}" if rtol else ""
    of = "" if rank is None else f" of rank {rank}"
    for path, steps in found.only:
        console.print(f"only {path} has {span(steps)}{of}", soft_wrap=True)
    if found.first is not None:
        step, differences = found.first
        console.print(f"{both} first differ in step {step}{of}, at", soft_wrap=True)
        _print_first(console, differences)
        sites = found.sites
        if found.bits:
            console.print(f"\n{found.bits}")
        console.print(
            f"\n{len(sites)} of {count(len(found.compared), 'site')} differ, in "
            f"{len(found.differing)} of {count(len(found.steps), 'step')}; the largest differences:"
        )
        _print_worst(console, sites, limit)
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
