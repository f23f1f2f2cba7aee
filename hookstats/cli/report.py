"""Writes the report of a run."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from functools import partial

from hookstats.cli.inputs import open_path
from hookstats.cli.live import server
from hookstats.runs.run import Run
from hookstats.show import page
from hookstats.stats.printable import printable

HOST = "127.0.0.1"
"""Where the page is served by default."""
PAUSE = 0.5
"""The seconds between two looks for the first step."""


def run(options: argparse.Namespace) -> int:
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
    make = partial(page.payload_of, recorded, options.rules, options.steps, other, options.ranks)
    host = HOST if options.host is None else options.host
    with server(recorded, make, host, options.port or 0) as serving:
        where = f"http://{host}:{serving.server_port}/"
        print(f"{where} shows the run as it grows; Ctrl-C ends it", flush=True)
        serving.serve_forever()
