"""show: print one step of a run as a table, and the incidents up to that step.

Unless you choose a step, layers, kinds or an order, the table opens on the worst incident: twenty
tensors of its step and its kind, its layer's first and the others sorted by the statistic that its
rule looked at. Of a run without warnings or errors, the table shows the last step.

examples:
  hookstats show runs/a
  hookstats show runs/a --step 100 --kind output
  hookstats show runs/a --layer 'encoder.*' --layer head --sort dead
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookstats.cli.arguments import add_rank, add_rules, add_run, add_selection, natural
from hookstats.show.sorts import SORTS

if TYPE_CHECKING:
    from rich.console import Console

    from hookstats.records.alerts import Alert
    from hookstats.records.record import StepRecord

ALERTS = 10
TENSORS = 20
"""How many tensors the table has at most that opens on an incident: the incidents follow it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the step to print (default: that of the worst incident, or the last); a negative "
        "number counts from the end",
    )
    add_selection(parser)
    parser.add_argument(
        "--sort",
        choices=("order", *SORTS),
        help="sort by this column, greatest first (default: in order of execution)",
    )
    add_rank(parser)
    add_rules(parser)
    parser.add_argument(
        "--alerts",
        type=natural,
        default=ALERTS,
        metavar="N",
        help=f"print at most the worst N incidents (default: {ALERTS})",
    )


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.alerts import alerts_of, print_alerts
    from hookstats.cli.inputs import check_chosen, choose, open_path, read_step
    from hookstats.cli.output import stdout
    from hookstats.records.summary import summarise
    from hookstats.show.focus import step_of
    from hookstats.show.terminal import render

    console = stdout()
    recorded = open_path(options.run, rank=options.rank)
    alerts = alerts_of(recorded, options.rules) if options.alerts > 0 else []
    asked = options.step is not None or options.layer or options.kind or options.sort
    cause = None if asked or not recorded.steps else _worst(alerts)
    record = read_step(recorded, step_of(cause, recorded.steps) if cause else options.step)
    check_chosen(record.keys(), options.layer, options.kind)
    chosen = set(choose(record.keys(), options.layer, options.kind))
    if cause:
        _open_on(cause, record, console)
    else:
        sites = summarise(record, chosen)
        if options.sort not in (None, "order"):
            sites.sort(key=SORTS[options.sort])
        render(record, console, sites)
    if options.alerts > 0:
        # After the last step, iterations may have closed none.
        if not cause and record.step != recorded.steps[-1]:
            alerts = [alert for alert in alerts if alert.step <= record.step]
        selected = chosen if options.layer or options.kind else None
        print_alerts(console, recorded, alerts, options.alerts, selected)
    return 0


def _worst(alerts: Sequence[Alert]) -> Alert | None:
    """The cause of the worst incident; None if there are notes at most."""
    from hookstats.records.alerts import incidents_of, worst

    found = worst(incidents_of(alerts))
    return found[0].cause if found and found[0].severity != "note" else None


def _open_on(cause: Alert, record: StepRecord, console: Console) -> None:
    """Print tensors of the cause's kind, its own first, the others by its statistic."""
    from hookstats.records.summary import summarise
    from hookstats.show.focus import statistic_of, tensor_of
    from hookstats.show.terminal import render

    tensor, statistic = tensor_of(cause, record.keys()), statistic_of(cause)
    if tensor is None:
        sites = summarise(record)
    else:
        name, kind = tensor
        sites = summarise(record, {key for key in record if key[1] == kind})
        sites.sort(key=SORTS[statistic])
        sites.sort(key=lambda site: site.name != name)
    render(record, console, sites[:TENSORS], ", of the worst incident", statistic)
    more = f"... and {len(sites) - TENSORS:,} more; " if len(sites) > TENSORS else ""
    console.print(f"{more}--step {record.step} prints all its tensors, --step -1 the last step")
