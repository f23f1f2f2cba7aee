"""Prints what the rules found."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hookstats.records.alerts import (
    SCALAR,
    Incident,
    count_by_severity,
    incidents_of,
    samples_of,
    worst,
)
from hookstats.records.keys import Key
from hookstats.rules import Alert, advice_of, replay
from hookstats.runs.run import Run
from hookstats.show.grid import require_rich
from hookstats.show.progress import track
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def alerts_of(run: Run, rules: str | None) -> list[Alert]:
    """What the rules said while the run was recorded, or what `rules` say of its steps now."""
    if rules is None:
        return run.alerts
    return replay(run, rules, partial(track, what="checking"))


def print_alerts(
    console: Console,
    run: Run,
    alerts: Sequence[Alert],
    limit: int,
    chosen: Collection[Key] | None = None,
) -> None:
    """Print how many incidents of each severity a run has, and the worst `limit` of them by step.

    chosen: print those alone that have an alert about one of these sites, or about a scalar, and
        how many others there are.
    """
    console.print()
    samples = run.scalars.samples() if alerts else {}
    for line in alert_lines(console, alerts, limit, chosen, samples=samples):
        console.print(line, soft_wrap=not console.is_terminal)


def alert_lines(
    console: Console,
    alerts: Sequence[Alert],
    limit: int,
    chosen: Collection[Key] | None = None,
    *,
    cut: bool = False,
    samples: Mapping[int, Sequence[int | str]] | None = None,
) -> Iterator[RenderableType]:
    """The lines of `print_alerts`: coloured by severity, in a terminal as a list with dashes.

    cut: in a terminal, keep one line of each incident. samples: see `samples_of`.
    """
    incidents = incidents_of(alerts)
    shown = [one for one in incidents if chosen is None or _is_about(one, chosen)]
    others = len(incidents) - len(shown)
    elsewhere = f" here, {others} about other layers" if others else ""
    if not shown:
        yield f"no incidents{elsewhere}"
        return
    which = f", the worst {limit}" if limit < len(shown) else ""
    yield f"{count_by_severity(shown)}{elsewhere}{which}:"
    rich = require_rich()
    for incident in sorted(worst(shown)[:limit], key=lambda one: one.step):
        message = rich.text.Text(
            f"{incident.severity}: {printable(str(incident))}", STYLES[incident.severity]
        )
        if (advice := advice_of(incident.cause)) and not cut:
            message.append(f"; what helps: {advice}", "default")
        if said := samples_of(incident.cause, samples or {}):
            message.append(f"; {printable(said)}", "default")
        if not console.is_terminal:
            yield message
            continue
        marked = rich.table.Table.grid(padding=(0, 1))
        marked.add_column()
        marked.add_column(no_wrap=cut, overflow="ellipsis" if cut else "fold")
        marked.add_row("-", message)
        yield marked


def _is_about(incident: Incident, chosen: Collection[Key]) -> bool:
    return any(
        alert.kind == SCALAR or (alert.site, alert.kind) in chosen for alert in incident.alerts
    )
