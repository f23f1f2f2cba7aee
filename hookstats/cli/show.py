"""Prints one step of a run as a table, and the incidents up to that step."""

from __future__ import annotations

import argparse

from hookstats.cli.alerts import alerts_of, print_alerts
from hookstats.cli.inputs import check_chosen, choose, open_path, read_step
from hookstats.cli.output import stdout
from hookstats.records.summary import summarise
from hookstats.show.sorts import SORTS
from hookstats.show.terminal import render


def run(options: argparse.Namespace) -> int:
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
