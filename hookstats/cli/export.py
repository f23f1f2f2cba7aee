"""export: write a run as Parquet, CSV or TensorBoard events, for other tools.

parquet      one file, every column of `Run.table`: statistics and histograms of every channel
csv          one file, a row a step and site with the statistics of the whole tensor;
             with --channels a row a channel; no histograms
tensorboard  a directory of event files: scalars and histograms

examples:
  hookstats export runs/a -o a.parquet
  hookstats export runs/a -o a.csv --channels
  hookstats export runs/a -o tb --format tensorboard
"""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hookstats.cli.inputs import add_run, open_path
from hookstats.runs.format import require_pyarrow
from hookstats.runs.run import Run
from hookstats.runs.series import SiteSeries
from hookstats.stats.derived import statistic_names

FORMATS = ("parquet", "csv", "tensorboard")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="the file or, for TensorBoard, the directory to write; a file is replaced",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="default: what the name ends in, .parquet or .csv"
    )
    parser.add_argument("--channels", action="store_true", help="csv: one row a channel")


def run(options: argparse.Namespace) -> int:
    out: Path = options.out
    format = options.format or out.suffix.removeprefix(".")
    if format not in FORMATS:
        raise ValueError(f"--out {out}: ends in neither .parquet nor .csv: give a --format")
    if options.channels and format != "csv":
        raise ValueError(f"--channels: for csv, not for {format}")
    recorded = open_path(options.run)
    if format == "tensorboard":
        _write_events(recorded, out)
    else:
        with _replacing(out) as temporary:
            if format == "csv":
                _write_csv(recorded, temporary, options.channels)
            else:
                _write_parquet(recorded, temporary)
    print(out)
    return 0


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A file to write, which becomes `out` once it is whole."""
    for path, wrong in ((out.parent, not out.parent.is_dir()), (out, out.is_dir())):
        if wrong:
            code = errno.EISDIR if path.is_dir() else errno.ENOENT
            raise OSError(code, os.strerror(code), str(path))
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def _write_parquet(recorded: Run, out: Path) -> None:
    pa = require_pyarrow()
    with pa.parquet.ParquetWriter(out, recorded.schema, compression="zstd") as writer:
        for table in recorded.batches():
            writer.write_table(table)


def _write_csv(recorded: Run, out: Path, channels: bool) -> None:
    pa = require_pyarrow()
    import pyarrow.csv

    writer = None
    with pa.OSFile(str(out), "wb") as file:
        for rank in recorded.ranks:
            for site in recorded.series(rank=rank).values():
                table = pa.table(_channel_rows(site, rank) if channels else _rows(site, rank))
                if writer is None:
                    writer = pyarrow.csv.CSVWriter(file, table.schema)
                writer.write_table(table)
        if writer is not None:
            writer.close()


def _rows(site: SiteSeries, rank: int) -> dict[str, Any]:
    """The columns of one site, one row per step."""
    names = statistic_names(higher=site.higher)
    return {
        "step": site.steps,
        **_constants(site, rank, len(site)),
        "observed": site.observed,
        **{name: getattr(site, name) for name in names},
    }


def _channel_rows(site: SiteSeries, rank: int) -> dict[str, Any]:
    """The columns of one site, a row a step and channel."""
    steps, channels = site.channels.count.shape
    names = statistic_names(higher=site.higher)
    return {
        "step": np.repeat(site.steps, channels),
        **_constants(site, rank, steps * channels),
        "channel": np.tile(np.arange(channels), steps),
        **{name: getattr(site.channels, name).ravel() for name in names},
    }


def _constants(site: SiteSeries, rank: int, rows: int) -> dict[str, Any]:
    values = {"rank": rank, "site": site.name, "kind": site.kind}
    return {name: np.full(rows, value) for name, value in values.items()}


def _write_events(recorded: Run, out: Path) -> None:
    from hookstats.sinks import TensorBoard

    sink = TensorBoard(out)
    try:
        for step in recorded.steps:
            sink(recorded[step])
    finally:
        sink.close()
