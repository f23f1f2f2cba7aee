"""demo: train a small network on handwritten digits with every layer watched, and show the record.

One layer is initialised badly on purpose: the rules find it, and the report shows it. The demo
takes about ten seconds, on one thread.

examples:
  hookstats demo
  hookstats demo --out runs/mine --epochs 3
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ALERTS = 8
OUT = Path("runs/demo")
EPOCHS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="DIR",
        help=f"run directory to write (default: {OUT}, which is replaced)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=EPOCHS,
        metavar="N",
        help=f"passes over the data (default: {EPOCHS})",
    )


def run(options: argparse.Namespace) -> int:
    import shutil

    from hookstats.cli.alerts import print_alerts
    from hookstats.cli.inputs import open_path
    from hookstats.cli.output import stdout
    from hookstats.cli.training import BAD_LAYER, train
    from hookstats.show.terminal import render
    from hookstats.stats.printable import printable

    if options.epochs < 1:
        raise ValueError(f"--epochs {options.epochs}: expected 1 or more")
    console = stdout()
    out: Path = options.out
    if out == OUT:
        shutil.rmtree(out, ignore_errors=True)  # an earlier demo: nothing else has this name
    start = time.perf_counter()
    accuracy = train(out, options.epochs)
    seconds = time.perf_counter() - start

    recorded = open_path(out)
    record = recorded[recorded.steps[-1]]
    render(record, console)
    print(
        f"\n{len(recorded.steps)} steps of {len(record)} tensors recorded in {seconds:.1f} s, "
        f"accuracy {accuracy:.1%}"
    )
    print_alerts(console, recorded, recorded.alerts, ALERTS)
    report = recorded.report()
    print(
        f"\nplanted: most biases of {BAD_LAYER!r} are -20, so that its ReLU never opens\n"
        f"report:  {printable(str(report))}\n"
        f"more:    {_program()} show {printable(str(out))} --sort dead"
    )
    return 0


def _program() -> str:
    """The command that starts this program, even from an environment that is not active."""
    script = Path(sys.prefix, "bin", "hookstats")
    active = sys.prefix == sys.base_prefix or "VIRTUAL_ENV" in os.environ
    return "hookstats" if active or not script.exists() else os.path.relpath(script)
