"""Writes the report of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.inputs import open_path
from hookstats.show import page
from hookstats.stats.printable import printable


def run(options: argparse.Namespace) -> int:
    recorded = open_path(options.run, rank=options.rank)
    out = page.write(recorded, options.out or beside(options.run), options.rules)
    print(printable(str(out)))
    return 0


def beside(run: Path) -> Path:
    """The default file of a run's report: beside the run, which only its writer changes."""
    run = run if run.name else run.resolve()  # "." has no name
    return run.with_name(f"{run.name}.html")
