"""report: write a run as one HTML file that opens in any browser, offline.

examples:
  hookstats report runs/a                    writes runs/a.html
  hookstats report runs/a -o report.html
  hookstats report runs/a runs/b             writes runs/a-b.html: two runs, and the ratios
  hookstats report --watch runs/a            serves the page while the run grows
  hookstats report runs/a --ranks            all ranks merged, and each one to choose
  hookstats report runs/a --steps 900:1100   these steps alone, every histogram
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookstats.cli.arguments import add_rank, add_rules, add_run

if TYPE_CHECKING:
    from hookstats.runs.run import Run

HOST = "127.0.0.1"
"""Where the page is served by default."""
PAUSE = 0.5
"""The seconds between two looks for the first step."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "other",
        metavar="OTHER",
        type=Path,
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
    parser.add_argument(
        "--watch",
        action="store_true",
        help="write no file: serve the page, read-only, and add steps as they come",
    )
    parser.add_argument(
        "--host",
        help="with --watch, the address to serve at (default: 127.0.0.1, which only this machine "
        "reaches); whoever reaches another one can read the run",
    )
    parser.add_argument(
        "--port", type=_port, metavar="N", help="with --watch, the port (default: any free one)"
    )
    add_rank(parser)
    parser.add_argument(
        "--ranks",
        action="store_true",
        help="of a distributed run: all ranks merged, and each of them to choose beside",
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


def _port(text: str) -> int:
    """The type of an argument: a port."""
    if not text.isdecimal() or int(text) > 0xFFFF:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to 65535")
    return int(text)


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.inputs import open_path
    from hookstats.show import page
    from hookstats.stats.printable import printable

    _check(options)
    recorded = open_path(options.run, rank=options.rank)
    other = None if options.other is None else open_path(options.other, rank=options.rank)
    if options.watch:
        return _watch(recorded, other, options)
    out = page.write(recorded, options.out, options.rules, options.steps, other, options.ranks)
    print(printable(str(out)))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse what the page's file has no use for, or its server."""
    if options.ranks and (options.other is not None or options.rank is not None):
        raise ValueError("--ranks: expected neither another run nor --rank")
    if options.watch and options.out is not None:
        raise ValueError(f"--out {options.out}: expected none with --watch, which writes no file")
    for name in ("host", "port"):
        value = getattr(options, name)
        if value is not None and not options.watch:
            raise ValueError(f"--{name} {value}: expected none without --watch, which serves")


def _watch(recorded: Run, other: Run | None, options: argparse.Namespace) -> int:
    """Serve the page, from the first step of the run on, until it is interrupted."""
    with suppress(KeyboardInterrupt):
        _await_step(recorded)
        _serve(recorded, other, options)
    return 0


def _await_step(recorded: Run) -> None:
    """Wait until a run that has only begun has a step on the disk."""
    if not recorded.steps and recorded.closed is None:
        print("no step is on the disk yet: waiting for the first; Ctrl-C ends it", flush=True)
    while not recorded.steps and recorded.closed is None:
        time.sleep(PAUSE)


def _serve(recorded: Run, other: Run | None, options: argparse.Namespace) -> None:
    from hookstats.cli.live import server
    from hookstats.show import page

    make = partial(page.payload_of, recorded, options.rules, options.steps, other, options.ranks)
    host = HOST if options.host is None else options.host
    with server(recorded, make, host, options.port or 0) as serving:
        where = f"http://{host}:{serving.server_port}/"
        print(f"{where} shows the run as it grows; Ctrl-C ends it", flush=True)
        serving.serve_forever()
