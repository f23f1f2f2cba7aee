"""show: print one step of a run as a table, and the incidents up to that step.

examples:
  hookstats show runs/a
  hookstats show runs/a --step 100 --kind output
  hookstats show runs/a --layer 'encoder.*' --layer head --sort dead
"""

from __future__ import annotations

import argparse

from hookstats.cli.arguments import add_rank, add_rules, add_run, add_selection, natural
from hookstats.show.sorts import SORTS

ALERTS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the step to print (default: the last); a negative number counts from the end",
    )
    add_selection(parser)
    parser.add_argument(
        "--sort",
        choices=("order", *SORTS),
        default="order",
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
    from hookstats.show.terminal import render

    console = stdout()
    recorded = open_path(options.run, rank=options.rank)
    record = read_step(recorded, options.step)
    check_chosen(record.keys(), options.layer, options.kind)
    chosen = set(choose(record.keys(), options.layer, options.kind))
    sites = [site for site in summarise(record) if (site.name, site.kind) in chosen]
    if options.sort != "order":
        sites.sort(key=SORTS[options.sort])
    render(record, console, sites)
    if options.alerts > 0:
        alerts = alerts_of(recorded, options.rules)
        if record.step != recorded.steps[-1]:  # after the last, iterations may have closed none
            alerts = [alert for alert in alerts if alert.step <= record.step]
        selected = chosen if options.layer or options.kind else None
        print_alerts(console, alerts, options.alerts, selected)
    return 0
