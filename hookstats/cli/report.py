"""report: write a run as one HTML file that opens in any browser, offline.

examples:
  hookstats report runs/a                    writes runs/a.html
  hookstats report runs/a -o report.html
  hookstats report runs/a runs/b             writes runs/a-b.html: two runs, and their ratios
  hookstats report runs/a --ranks            all ranks merged, and each rank alone
  hookstats report runs/a --steps 900:1100   only these steps, with every histogram
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.arguments import add_rank, add_rules, add_run, location


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "other",
        metavar="OTHER",
        type=location,
        nargs="?",
        help="another run, to set beside the first one: its statistics, and the ratios",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="the file to write or replace (default: RUN.html or RUN-OTHER.html, beside the run)",
    )
    parser.add_argument(
        "--steps",
        type=_window,
        metavar="A:B",
        help="only steps A to B, both included; either may be left out (default: all steps)",
    )
    add_rank(parser)
    parser.add_argument(
        "--ranks",
        action="store_true",
        help="of a distributed run: all ranks merged, and each rank beside them",
    )
    add_rules(parser)


def _window(text: str) -> tuple[int | None, int | None]:
    """The type of an argument: two steps, the second not before the first; either may be empty."""
    first, colon, last = text.partition(":")
    ends = [int(end) if end.isdecimal() else None for end in (first, last)]
    unread = [end for end in (first, last) if end and not end.isdecimal()]
    swapped = ends[0] is not None and ends[1] is not None and ends[0] > ends[1]
    if not colon or unread or swapped:
        raise argparse.ArgumentTypeError(f"{text!r}: expected A:B, such as 900:1100, 900: or :1100")
    return ends[0], ends[1]


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.inputs import open_path
    from hookstats.show import page
    from hookstats.stats.printable import printable

    if options.ranks and (options.other is not None or options.rank is not None):
        raise ValueError("--ranks: expected neither another run nor --rank")
    recorded = open_path(options.run, rank=options.rank)
    other = None if options.other is None else open_path(options.other, rank=options.rank)
    out = page.write(recorded, options.out, options.rules, options.steps, other, options.ranks)
    print(printable(str(out)))
    return 0
