"""report: write a run as one HTML file that opens anywhere, offline.

examples:
  hookstats report runs/a                   writes runs/a.html
  hookstats report runs/a -o report.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.inputs import add_rank, add_run, open_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="what to write (default: RUN.html, beside the run); an existing file is replaced",
    )
    add_rank(parser)


def run(options: argparse.Namespace) -> int:
    from hookstats.show import page as report

    recorded = open_path(options.run)
    print(report.write(recorded, options.out or beside(options.run), rank=options.rank))
    return 0


def beside(run: Path) -> Path:
    """Where a run's report goes by default: not into the run, which only its writer touches."""
    run = run if run.name else run.resolve()  # "." has no name
    return run.with_name(f"{run.name}.html")
