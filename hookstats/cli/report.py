"""Writes the report of a run."""

from __future__ import annotations

import argparse

from hookstats.cli.inputs import open_path
from hookstats.show import page
from hookstats.stats.printable import printable


def run(options: argparse.Namespace) -> int:
    recorded = open_path(options.run, rank=options.rank)
    other = None if options.other is None else open_path(options.other, rank=options.rank)
    out = page.write(recorded, options.out, options.rules, options.steps, other)
    print(printable(str(out)))
    return 0
