"""top: watch a run while training writes it: changing layers, non-finite values, incidents.

The view is refreshed as parts of the run arrive; press q or Ctrl-C to quit. "change" is the change
of the rms over the last 12 recorded steps, which the curve draws from zero upwards. What incidents
began with comes first, then layers with non-finite values, then those that changed most. In a long
run, only the last 300 recorded steps are read.

examples:
  hookstats top runs/a
  hookstats top runs/a --kind grad_output --kind param_grad
  hookstats top runs/a --once       print one frame, the default if the output is not a terminal
"""

from __future__ import annotations

import argparse

from hookstats.cli.usage.arguments import add_rank, add_rules, add_run, add_selection, natural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_selection(parser)
    add_rank(parser)
    add_rules(parser)
    parser.add_argument("--limit", type=natural, metavar="N", help="show at most N sites")
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
