"""demo: train a small network on handwritten digits with every layer watched, and show the record.

One layer is initialised badly on purpose: the rules find it, and the report shows it. Training
takes ten seconds to a minute.

examples:
  hookstats demo
  hookstats demo --out runs/mine --epochs 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

OUT = Path("runs/demo")
EPOCHS = 12


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
