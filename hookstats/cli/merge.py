"""Writes what all ranks of a run recorded as a run of the whole model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from hookstats.cli.inputs import open_path
from hookstats.records.alerts import Alert, Grouping
from hookstats.runs.alerts import Told
from hookstats.runs.run import Run
from hookstats.runs.writer import RunWriter
from hookstats.show.progress import track
from hookstats.stats.printable import printable


def run(options: argparse.Namespace) -> int:
    # Strict: what is written must be the whole.
    recorded = open_path(options.run, strict=True)
    writer = RunWriter(options.out, {**recorded.header, "reduced": recorded.ranks})
    _copy(recorded, writer)
    writer.write_alerts(_told(recorded.alerts))
    writer.close(recorded.coverage)
    print(printable(str(options.out)))
    return 0


def _copy(recorded: Run, writer: RunWriter) -> None:
    """Write the records and scalars of all steps, and which steps were lost."""
    steps, gaps, times = set(recorded.steps), recorded.gaps, recorded.scalars.times()
    for step in track(sorted({*steps, *gaps, *times}), "merging"):
        if step not in steps:
            scalars = recorded.scalars.at(step)
            if step in gaps:
                writer.skip(step, gaps[step])
        else:
            record = recorded[step]
            scalars = dict(record.scalars)
            writer.write(replace(record, rank=0))
        if scalars:
            writer.write_scalars(step, times[step], scalars)


def _told(alerts: Sequence[Alert]) -> list[Told]:
    """The alerts by their causes, as a run keeps them."""
    grouping = Grouping()
    return [Told(alert, *grouping.add(alert), None) for alert in alerts]
