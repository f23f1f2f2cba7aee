"""render(): a step's record as a table in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hookstats.records import StepRecord
from hookstats.summary import SiteSummary, summarise

if TYPE_CHECKING:
    from rich.console import Console

MANY_DEAD = 0.25
"""The share of dead channels from which on a table marks them."""


def render(record: StepRecord, console: Console | None = None) -> None:
    """Print one row a site: what it is, its statistics, non-finite values and dead channels.

    Non-finite values are red, many dead channels (`MANY_DEAD`) yellow, where the console has
    colours. Long names are folded over lines, never cut; where the console is no terminal, rows
    are as wide as they need to be. `summary.SiteSummary` says what the columns mean; "-" stands
    where there were no finite values.

    Raises:
        ImportError: rich is not installed.
    """
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise ImportError(f"tables need rich ({error}): pip install 'hookstats[demo]'") from error
    console = console or Console()
    title = f"step {record.step}" + (f", rank {record.rank}" if record.rank else "")
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("layer", "kind", "shape"):
        table.add_column(name, overflow="fold")
    for name in ("mean", "std", "min", "max", "non-\nfinite", "dead\nchannels"):
        table.add_column(name, justify="right", no_wrap=True)
    for site in summarise(record):
        table.add_row(*(Text(text, style) for text, style in _cells(site)))
    if not console.is_terminal:
        unlimited = console.options.update(width=sys.maxsize)
        table.width = console.measure(table, options=unlimited).maximum
    console.print(table, crop=False)


def _cells(site: SiteSummary) -> list[tuple[str, str]]:
    """The text and the style of each column."""
    numbers = (site.mean, site.std, site.min, site.max)
    many_dead = site.dead and site.dead >= MANY_DEAD * site.channels
    return [
        (site.name or "(root)", ""),
        (site.kind, ""),
        ("x".join(map(str, site.shape)) or "scalar", ""),
        *((_number(number) if site.finite else "-", "") for number in numbers),
        (str(site.nonfinite), "bold red" if site.nonfinite else ""),
        (f"{site.dead}/{site.channels}", "yellow" if many_dead else ""),
    ]


def _number(value: float) -> str:
    """Four significant digits: 0.01230, -1.234, 1234, 1.234e-5."""
    if value == 0:
        return "0"
    mantissa, e, exponent = f"{value:#.4g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa.rstrip(".")
