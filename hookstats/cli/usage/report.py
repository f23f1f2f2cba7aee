"""report: write a run as one HTML file that opens in any browser, offline.

examples:
  hookstats report runs/a                   writes runs/a.html
  hookstats report runs/a -o report.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.usage.arguments import add_rank, add_rules, add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="the file to write or replace (default: RUN.html, beside the run)",
    )
    add_rank(parser)
    add_rules(parser)
