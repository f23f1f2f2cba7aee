"""show: print a step of a run as a table, and the alerts so far.

examples:
  hookstats show runs/a
  hookstats show runs/a --step 100 --kind output
  hookstats show runs/a --layer 'encoder.*' --layer head --sort dead
"""

from __future__ import annotations

import argparse

from hookstats.cli.alerts import print_alerts
from hookstats.cli.inputs import (
    add_rank,
    add_run,
    add_selection,
    check_chosen,
    choose,
    natural,
    open_path,
    read_step,
)
from hookstats.cli.output import stdout
from hookstats.records.summary import SORTS, summarise

ALERTS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--step", type=int, metavar="N", help="default: the last; negative: from the end"
    )
    add_selection(parser)
    parser.add_argument(
        "--sort",
        choices=("order", *SORTS),
        default="order",
        help="the greatest first; by default the order of execution",
    )
    add_rank(parser)
    parser.add_argument(
        "--alerts",
        type=natural,
        default=ALERTS,
        metavar="N",
        help=f"print at most the last N alerts of the steps so far (default: {ALERTS})",
    )


def run(options: argparse.Namespace) -> int:
    from hookstats import rules
    from hookstats.show.terminal import render

    console = stdout()
    recorded = open_path(options.run)
    record = read_step(recorded, options.step, options.rank)
    check_chosen(record.keys(), options.layer, options.kind)
    chosen = set(choose(record.keys(), options.layer, options.kind))
    sites = [site for site in summarise(record) if (site.name, site.kind) in chosen]
    if options.sort != "order":
        sites.sort(key=SORTS[options.sort])
    render(record, console, sites)
    if options.alerts > 0:
        alerts = rules.replay(recorded, rank=options.rank)
        alerts = [a for a in alerts if a.step <= record.step and (a.site, a.kind) in chosen]
        print_alerts(console, alerts, options.alerts)
    return 0
