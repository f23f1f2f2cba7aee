"""merge: write what all ranks recorded as a run of the whole model.

The new run has one rank, and is faster to read. It contains the records and scalars of the whole
model and the alerts of all ranks, but not the records of single ranks.

examples:
  hookstats merge runs/a -o runs/a-merged
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hookstats.cli.arguments import add_run

if TYPE_CHECKING:
    from hookstats.records.alerts import Alert
    from hookstats.runs.alerts import AlertEntry
    from hookstats.runs.run import Run
    from hookstats.runs.writer import RunWriter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="OUT", help="a new or empty directory"
    )


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.inputs import open_path
    from hookstats.runs.writer import RunWriter
    from hookstats.stats.printable import printable

    # Strict: what is written must be the whole.
    recorded = open_path(options.run, strict=True)
    writer = RunWriter(options.out, {**recorded.header, "reduced": recorded.ranks})
    _copy(recorded, writer)
    writer.write_alerts(_entries(recorded.alerts))
    writer.close(recorded.coverage)
    print(printable(str(options.out)))
    return 0


def _copy(recorded: Run, writer: RunWriter) -> None:
    """Write the records and scalars of all steps, and which steps were lost."""
    from dataclasses import replace

    from hookstats.show.progress import track

    steps, gaps, times = set(recorded.steps), recorded.gaps, recorded.scalars.times()
    samples = recorded.scalars.samples()
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
            writer.write_scalars(step, times[step], scalars, samples.get(step, ()))


def _entries(alerts: Sequence[Alert]) -> list[AlertEntry]:
    """The alerts by their causes, as a run keeps them."""
    from hookstats.records.alerts import Grouping
    from hookstats.runs.alerts import AlertEntry

    grouping = Grouping()
    return [AlertEntry(alert, *grouping.add(alert), None) for alert in alerts]
