"""merge: write what all ranks recorded as a run of the whole model.

The new run has one rank, and is read without the work of merging. What the ranks recorded for
themselves is not in it.

examples:
  hookstats merge runs/a -o runs/a-merged
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.usage.arguments import add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="OUT", help="a new or empty directory"
    )
