"""merge: write what all ranks recorded as a run of the whole model.

The new run has one rank, and is read without the work of merging. It has the records and scalars of
the whole model and the alerts of all ranks; what each rank recorded for itself is not in it.

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
