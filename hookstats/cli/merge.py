"""Writes what all ranks of a run recorded as a run of the whole model."""

from __future__ import annotations

import argparse
from dataclasses import replace

from hookstats.cli.inputs import open_path
from hookstats.runs.writer import RunWriter
from hookstats.show.progress import track
from hookstats.stats.printable import printable


def run(options: argparse.Namespace) -> int:
    # Strict: what is written must be the whole.
    recorded = open_path(options.run, strict=True)
    writer = RunWriter(options.out, {**recorded.header, "reduced": recorded.ranks})
    for step in track(recorded.steps, "merging"):
        writer.write(replace(recorded[step], rank=0))
    writer.close(recorded.coverage)
    print(printable(str(options.out)))
    return 0
