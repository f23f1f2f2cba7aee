"""show: print one step of a run as a table, and the incidents up to that step.

examples:
  hookstats show runs/a
  hookstats show runs/a --step 100 --kind output
  hookstats show runs/a --layer 'encoder.*' --layer head --sort dead
"""

from __future__ import annotations

import argparse

from hookstats.cli.usage.arguments import add_rank, add_rules, add_run, add_selection, natural
from hookstats.show.sorts import SORTS

ALERTS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the step to print (default: the last); a negative number counts from the end",
    )
    add_selection(parser)
    parser.add_argument(
        "--sort",
        choices=("order", *SORTS),
        default="order",
        help="sort by this column, greatest first (default: in order of execution)",
    )
    add_rank(parser)
    add_rules(parser)
    parser.add_argument(
        "--alerts",
        type=natural,
        default=ALERTS,
        metavar="N",
        help=f"print at most the worst N incidents (default: {ALERTS})",
    )
