"""export: write a run as Parquet, CSV or TensorBoard events, for other tools.

parquet      one file with every column of `Run.table`: statistics and histograms per channel
csv          one file with one row per step and site, the statistics of the whole tensor;
             with --channels one row per channel; without histograms; an apostrophe comes before
             names that a spreadsheet would take for formulas
             with --scalars, either has the numbers that training logged: one row per step and name
tensorboard  a directory of event files with scalars and histograms

examples:
  hookstats export runs/a -o a.parquet
  hookstats export runs/a -o a.csv --channels
  hookstats export runs/a -o tb --format tensorboard
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hookstats.cli.usage.arguments import add_run

FORMATS = ("parquet", "csv", "tensorboard")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="the file to write or replace, or the directory for TensorBoard events",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="the format of PATH (default: by its suffix, .parquet or .csv)",
    )
    parser.add_argument(
        "--scalars", action="store_true", help="write what training logged, such as the loss"
    )
    parser.add_argument(
        "--channels", action="store_true", help="csv only: write one row per channel"
    )
