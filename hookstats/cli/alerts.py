"""Prints what the rules found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hookstats.cli.output import count
from hookstats.show.grid import require_rich
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hookstats.rules import Alert

STYLES = {"error": "bold red", "warning": "yellow"}


def print_alerts(console: Console, alerts: Sequence[Alert], limit: int) -> None:
    """Print the number of alerts, and the first `limit` of them, which have the cause."""
    console.print()
    for line in alert_lines(console, alerts, limit):
        console.print(line, soft_wrap=not console.is_terminal)


def alert_lines(
    console: Console, alerts: Sequence[Alert], limit: int, cut: bool = False
) -> Iterator[RenderableType]:
    """The lines of `print_alerts`: coloured by severity, in a terminal as a list with dashes.

    cut: in a terminal, keep one line of each alert.
    """
    if not alerts:
        yield "no alerts"
        return
    first = f", the first {limit}" if limit < len(alerts) else ""
    yield f"{count(len(alerts), 'alert')}{first}:"
    rich = require_rich()
    for alert in alerts[:limit]:
        message = rich.text.Text(printable(alert.message), STYLES[alert.severity])
        if not console.is_terminal:
            yield message
            continue
        marked = rich.table.Table.grid(padding=(0, 1))
        marked.add_column()
        marked.add_column(no_wrap=cut, overflow="ellipsis" if cut else "fold")
        marked.add_row("-", message)
        yield marked
