"""demo: train a small network on real digits, every layer watched, and look at what was recorded.

One layer is initialised badly on purpose: the rules find it, and the report shows it. Takes some
ten seconds.

examples:
  hookstats demo
  hookstats demo --out runs/mine --epochs 3
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from hookstats.cli.alerts import print_alerts
from hookstats.cli.inputs import open_path
from hookstats.cli.output import stdout
from hookstats.cli.report import beside
from hookstats.show.terminal import render

OUT = Path("runs/demo")
ALERTS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from hookstats.cli.training import EPOCHS

    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="DIR",
        help=f"run directory (default: {OUT}, which is replaced)",
    )
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, metavar="N", help=f"default: {EPOCHS}"
    )


def run(options: argparse.Namespace) -> int:
    from hookstats import rules
    from hookstats.cli.training import BAD_LAYER, train
    from hookstats.show import page as report

    if options.epochs < 1:
        raise ValueError(f"--epochs {options.epochs}: expected 1 or more")
    console = stdout()
    out: Path = options.out
    if out == OUT:
        shutil.rmtree(out, ignore_errors=True)  # an earlier demo; nobody else's run
    start = time.perf_counter()
    accuracy = train(out, options.epochs)
    seconds = time.perf_counter() - start

    recorded = open_path(out)
    record = recorded[recorded.steps[-1]]
    render(record, console)
    print(
        f"\n{len(recorded.steps)} steps of {len(record)} sites recorded in {seconds:.1f} s, "
        f"accuracy {accuracy:.1%}"
    )
    print_alerts(console, rules.replay(recorded), ALERTS)
    print(
        f"\nplanted: most biases of {BAD_LAYER!r} are -20, so that its ReLU never opens\n"
        f"report:  {report.write(recorded, beside(out))}\n"
        f"more:    {_program()} show {out} --sort dead"
    )
    return 0


def _program() -> str:
    """How the user's shell finds this program: an environment need not be active to be used."""
    script = Path(sys.prefix, "bin", "hookstats")
    active = sys.prefix == sys.base_prefix or "VIRTUAL_ENV" in os.environ
    return "hookstats" if active or not script.exists() else os.path.relpath(script)
