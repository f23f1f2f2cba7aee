"""ls: list the runs in a directory: their steps, last losses and incidents.

Directories inside are searched, too. The loss is the last value of "loss", or of another number
with "loss" in its name, one of the training before one of an evaluation. Runs that began last come
last.

examples:
  hookstats ls                      lists the runs below this directory
  hookstats ls runs --sort loss
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.usage.arguments import add_rank

SORTS = ("started", "name", "steps", "loss", "incidents")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        nargs="?",
        default=Path(),
        help="where to look for runs (default: this directory)",
    )
    parser.add_argument(
        "--sort", choices=SORTS, default=SORTS[0], help=f"sort by this (default: {SORTS[0]})"
    )
    add_rank(parser)
