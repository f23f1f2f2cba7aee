"""Writes the report of a run."""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial

from hookstats.cli.inputs import open_path
from hookstats.cli.live import server
from hookstats.runs.run import Run
from hookstats.show import page
from hookstats.stats.printable import printable


def run(options: argparse.Namespace) -> int:
    if options.ranks and (options.other is not None or options.rank is not None):
        raise ValueError("--ranks: expected neither another run nor --rank")
    recorded = open_path(options.run, rank=options.rank)
    other = None if options.other is None else open_path(options.other, rank=options.rank)
    if options.watch:
        return _watch(recorded, other, options)
    out = page.write(recorded, options.out, options.rules, options.steps, other, options.ranks)
    print(printable(str(out)))
    return 0


def _watch(recorded: Run, other: Run | None, options: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    make = partial(page.payload_of, recorded, options.rules, options.steps, other, options.ranks)
    with server(recorded, make, options.host, options.port) as serving:
        where = f"http://{options.host}:{serving.server_port}/"
        print(f"{where} shows the run as it grows; Ctrl-C ends it", flush=True)
        with suppress(KeyboardInterrupt):
            serving.serve_forever()
    return 0
