"""render(): a step's record as a table in the terminal, with one row per site."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hookstats.insight.layers import update_to_weight
from hookstats.records.keys import label
from hookstats.records.norms import SPEEDS
from hookstats.records.record import StepRecord
from hookstats.records.summary import SiteSummary, summarise
from hookstats.show.grid import Cell, fits, print_grid, require_rich
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

MANY_DEAD = 0.25
"""The least share of dead channels that a table marks."""

_NUMBERS = ("mean", "std", "min", "max", "non-\nfinite", "dead")
_FURTHER = ("rms", "zero")
_UPDATES = 3
"""How many parameters are named that the step changed most."""


def render(
    record: StepRecord,
    console: Console | None = None,
    sites: Sequence[SiteSummary] | None = None,
    note: str = "",
    statistic: str | None = None,
) -> None:
    """Print one row per site: its name, its statistics, its non-finite values and dead channels.

    Where the console has colours, non-finite values are red and many dead channels (`MANY_DEAD`)
    yellow. A terminal that is too narrow leaves out the shapes, and elides names in the middle.
    The numbers that training logged in the step follow, without those of its speed, and which
    parameters the step changed most, where the kinds "param" and "update" were recorded.
    `summary.SiteSummary` defines the columns; "-" means that a site had no finite values.

    Args:
        sites: the sites of the record to print, in their order; by default all.
        note: words that follow the number of the step.
        statistic: "rms" or "zero" adds its column; tables have all others.
    Raises:
        ImportError: rich is not installed.
    """
    console = console or require_rich().console.Console()
    title = f"step {record.step}" + (f", rank {record.rank}" if record.rank else "") + note
    sites = summarise(record) if sites is None else sites
    further = [name for name in _FURTHER if name == statistic]
    columns = ["layer", "kind", "shape", *further, *_NUMBERS]
    cells = [[CELLS[name](site) for name in columns] for site in sites]
    shape = columns.index("shape")
    narrow = not fits(console, columns, cells)
    if narrow:
        del columns[shape]
        for row in cells:
            del row[shape]
    print_grid(console, columns, cells, text=3 - narrow, elided=2, title=title)
    for line in filter(None, (logged(record), largest_updates(record))):
        console.print(line, markup=False, highlight=False)


def logged(record: StepRecord) -> str:
    """The numbers of the step, losses first, without those of its speed; "" for none."""
    shown = (name for name in record.scalars if name not in SPEEDS)
    names = sorted(shown, key=lambda name: "loss" not in name.lower())
    return ", ".join(f"{printable(name)} {format_number(record.scalars[name])}" for name in names)


def largest_updates(record: StepRecord) -> str:
    """The parameters that the step changed most, by `insight.update_to_weight`, which leaves out
    those of zeros; "" where updates were not recorded."""
    found = {n: r for n, r in update_to_weight(record).items() if math.isfinite(r)}
    if not found:
        return ""
    most = sorted(found, key=lambda name: -found[name])[:_UPDATES]
    named = ", ".join(f"{printable(name)} {format_number(found[name])}" for name in most)
    middle = format_number(statistics.median(found.values()))
    return f"update to weight: median {middle}, the largest {named}"


def format_number(value: float) -> str:
    """Three significant digits, whole numbers up to five: 1.20e-3, -0.0120, 1.20, 12345, 1.23e5."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    if -2 <= int(exponent) <= 2:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:.0f}" if 3 <= int(exponent) <= 4 else f"{mantissa}e{int(exponent)}"


def _number(name: str) -> Callable[[SiteSummary], Cell]:
    """What makes the cell of a statistic."""
    return lambda site: (format_number(getattr(site, name)) if site.finite else "-", "")


def _zero(site: SiteSummary) -> Cell:
    return f"{site.zero / site.finite:.0%}" if site.finite else "-", ""


def _dead(site: SiteSummary) -> Cell:
    many = site.dead and site.dead >= MANY_DEAD * site.channels
    return site.dead_of, "yellow" if many else ""


CELLS: dict[str, Callable[[SiteSummary], Cell]] = {
    "layer": lambda site: (label(site.name), ""),
    "kind": lambda site: (site.kind, ""),
    "shape": lambda site: ("x".join(map(str, site.shape)) or "scalar", ""),
    **{name: _number(name) for name in ("rms", "mean", "std", "min", "max")},
    "zero": _zero,
    "non-\nfinite": lambda site: (str(site.nonfinite), "bold red" if site.nonfinite else ""),
    "dead": _dead,
}
"""By column, what makes its cell."""
