"""run: run a training script, unchanged, with every model that it trains watched.

SCRIPT and its arguments are what python would get; -m MODULE runs a module. Optimizers are noted
when they are made, and the modules that own their parameters are watched from the first training
step on: plain loops, compiled models, several models, Transformers, Lightning, DDP and FSDP2 under
torchrun. Processes that the script starts by multiprocessing, as torch.multiprocessing.spawn does,
and those that run the script again, as Lightning's are for several devices, are watched as well. Of
other commands that run Python, a line on stderr says that they are not. What cannot be watched is
said there, too, and the script goes on.

examples:
  hookstats run train.py --epochs 3
  hookstats run -o runs/a --every 10 --include 'encoder.*' train.py
  hookstats run --config watch.toml -m package.train --lr 0.1
  torchrun --nproc-per-node 2 -m hookstats run train.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.usage.arguments import natural

DIRECTORY = Path("runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help=f"run directory to write (default: {DIRECTORY}/ and the name of the script, with a "
        "number where that is taken)",
    )
    parser.add_argument(
        "--every", type=natural, metavar="N", help="record every Nth step (default: 1)"
    )
    parser.add_argument(
        "--include",
        action="append",
        metavar="GLOB",
        help="only layers and parameters with this name; may be repeated",
    )
    parser.add_argument(
        "--kinds",
        type=lambda text: tuple(text.split(",")),
        metavar="KIND,...",
        help="what to record (default: output,grad_output,param_grad)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with arguments of `watch`; options of the command line come first",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script to run")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script"
    )
