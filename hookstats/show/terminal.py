"""render(): a step's record as a table in the terminal; what other tables are made of."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hookstats.records.record import StepRecord
from hookstats.records.summary import SiteSummary, summarise

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MANY_DEAD = 0.25
"""The share of dead channels from which on a table marks them."""


_KIND = len("grad_output")


def require_rich() -> Any:
    """The rich package with what hookstats uses of it, or an ImportError that says what to do."""
    try:
        import rich.console
        import rich.live
        import rich.table
        import rich.text
    except ImportError as error:
        raise ImportError(f"tables need rich ({error}): pip install 'hookstats[cli]'") from error
    return rich


def render(
    record: StepRecord,
    console: Console | None = None,
    sites: Sequence[SiteSummary] | None = None,
) -> None:
    """Print one row a site: what it is, its statistics, non-finite values and dead channels.

    Non-finite values are red, many dead channels (`MANY_DEAD`) yellow, where the console has
    colours. A terminal that is too narrow does without the shape. `summary.SiteSummary` says what
    the columns mean; "-" stands where there were no finite values. `sites` are those of the record
    to print, in their order; by default all.

    Raises:
        ImportError: rich is not installed.
    """
    console = console or require_rich().console.Console()
    rows = [_row(site) for site in (summarise(record) if sites is None else sites)]
    title = f"step {record.step}" + (f", rank {record.rank}" if record.rank else "")
    table = _table(title, rows, _COLUMNS)
    if console.is_terminal and _width(table, console) > console.width:
        table = _table(title, rows, [name for name in _COLUMNS if name != "shape"])
    print_table(table, console)


def grid(*columns: str, text: int, title: str | None = None) -> Table:
    """An empty table without lines; the first `text` columns are text, the others numbers."""
    table: Table = require_rich().table.Table(
        title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for i, name in enumerate(columns):
        if i < text:
            # Where it is too narrow, layers are folded first: their names are the longest.
            table.add_column(name, overflow="fold", min_width=_KIND if name == "kind" else None)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table


def print_table(table: Table, console: Console) -> None:
    """Print a table, long names folded over lines, never cut; each row a line in a pipe."""
    if not console.is_terminal:
        table.width = _width(table, console)
    console.print(table, crop=False)


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


_COLUMNS = ("layer", "kind", "shape", "mean", "std", "min", "max", "non-\nfinite", "dead")


def _row(site: SiteSummary) -> dict[str, tuple[str, str]]:
    """The text and the style of each column."""
    many_dead = site.dead and site.dead >= MANY_DEAD * site.channels
    texts = {
        "layer": site.name or "(root)",
        "kind": site.kind,
        "shape": "x".join(map(str, site.shape)) or "scalar",
        **{
            name: format_number(getattr(site, name)) if site.finite else "-"
            for name in ("mean", "std", "min", "max")
        },
        "non-\nfinite": str(site.nonfinite),
        "dead": f"{site.dead}/{site.channels}",
    }
    styles = {
        "non-\nfinite": "bold red" if site.nonfinite else "",
        "dead": "yellow" if many_dead else "",
    }
    return {name: (text, styles.get(name, "")) for name, text in texts.items()}


def _table(title: str, rows: list[dict[str, tuple[str, str]]], columns: Sequence[str]) -> Table:
    text = require_rich().text.Text
    table = grid(*columns, text=len(columns) - 6, title=title)
    for row in rows:
        table.add_row(*(text(*row[name]) for name in columns))
    return table


def _width(table: Table, console: Console) -> int:
    """How many columns of the terminal the table needs if nothing is folded."""
    unlimited = console.options.update(width=sys.maxsize)
    width: int = console.measure(table, options=unlimited).maximum
    return width
