"""export: write a run as Parquet, CSV or TensorBoard events, for other tools.

parquet      one file with every column of `Run.table`: statistics and histograms per channel
csv          one file with one row per step and site, the statistics of the whole tensor;
             with --channels one row per channel; without histograms; an apostrophe precedes
             names that a spreadsheet would read as formulas
             with --scalars, either holds the logged numbers: one row per step and name
tensorboard  a directory of event files with scalars and histograms

examples:
  hookstats export runs/a -o a.parquet
  hookstats export runs/a -o a.csv --channels
  hookstats export runs/a -o tb --format tensorboard
"""

from __future__ import annotations

import argparse
import errno
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookstats.cli.arguments import add_run

if TYPE_CHECKING:
    from hookstats.runs.run import Run
    from hookstats.runs.series import SiteSeries

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
        "--scalars", action="store_true", help="write the logged numbers, such as the loss"
    )
    parser.add_argument(
        "--channels", action="store_true", help="csv only: write one row per channel"
    )


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.inputs import open_path
    from hookstats.stats.printable import printable

    out: Path = options.out
    format = options.format or out.suffix.removeprefix(".")
    if format not in FORMATS:
        raise ValueError(f"--out {out}: expected the suffix .parquet or .csv, or a --format")
    if options.channels and format != "csv":
        raise ValueError(f"--channels: expected the format csv, not {format}")
    if options.scalars and (options.channels or format == "tensorboard"):
        raise ValueError("--scalars: expected the format parquet or csv, and no --channels")
    recorded = open_path(options.run)
    if format == "tensorboard":
        _write_events(recorded, out)
    else:
        with _replacing(out) as temporary:
            if options.scalars:
                _write_scalars(recorded, temporary, format)
            elif format == "csv":
                _write_csv(recorded, temporary, options.channels)
            else:
                _write_parquet(recorded, temporary)
    print(printable(str(out)))
    return 0


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A temporary file, which replaces `out` once it is complete.

    A link stays, and the file that it names is replaced. What is no regular file, such as a pipe or
    a device, stays, too: it is written to.
    """
    import shutil
    import tempfile

    if out.exists() and not (out.is_file() or out.is_dir()):
        with tempfile.TemporaryDirectory() as directory:
            whole = Path(directory, "export")
            yield whole
            with whole.open("rb") as read, out.open("wb") as written:
                shutil.copyfileobj(read, written)
        return
    out = out.resolve() if out.is_symlink() else out
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
    from hookstats.runs.format import require_pyarrow
    from hookstats.show.progress import track

    pa = require_pyarrow()
    steps = iter(track(recorded.steps, "exporting"))
    with pa.parquet.ParquetWriter(out, recorded.schema, compression="zstd") as writer:
        for table in recorded.batches():
            count = len(table.column("step").unique())
            writer.write_table(table)
            deque(islice(steps, count), 0)  # the bar is as far as the file
    deque(steps, 0)  # a run that is being written may have deleted some since


def _write_csv(recorded: Run, out: Path, channels: bool) -> None:
    from hookstats.runs.format import require_pyarrow
    from hookstats.show.progress import track

    pa = require_pyarrow()
    import pyarrow.csv

    writer = None
    with pa.OSFile(str(out), "wb") as file:
        for site in track(recorded.series().values() if len(recorded) else (), "exporting"):
            table = pa.table(_channel_rows(site) if channels else _rows(site))
            if writer is None:
                writer = pyarrow.csv.CSVWriter(file, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _write_scalars(recorded: Run, out: Path, format: str) -> None:
    from hookstats.runs.format import require_pyarrow

    pa = require_pyarrow()
    of_ranks = [recorded.of_rank(rank).scalars.table() for rank in recorded.ranks]
    table = pa.concat_tables(of_ranks or [recorded.scalars.table()])
    if format == "csv":
        import pyarrow.csv

        names = [_cell(name) for name in table["name"].to_pylist()]
        table = table.set_column(table.schema.get_field_index("name"), "name", pa.array(names))
        with pa.OSFile(str(out), "wb") as file:
            pyarrow.csv.write_csv(table, file)
    else:
        pa.parquet.write_table(table, out, compression="zstd")


def _rows(site: SiteSeries) -> dict[str, Any]:
    """The columns of one site, one row per step."""
    from hookstats.stats.derived import STATISTICS

    return {
        "step": site.steps,
        **_constants(site, len(site)),
        "observed": site.observed,
        **{name: getattr(site, name) for name in STATISTICS},
    }


def _channel_rows(site: SiteSeries) -> dict[str, Any]:
    """The columns of one site, one row per step and channel."""
    import numpy as np

    from hookstats.stats.derived import STATISTICS

    steps, channels = site.channels.count.shape
    return {
        "step": np.repeat(site.channels.steps, channels),
        **_constants(site, steps * channels),
        "channel": np.tile(np.arange(channels), steps),
        **{name: getattr(site.channels, name).ravel() for name in STATISTICS},
    }


def _constants(site: SiteSeries, rows: int) -> dict[str, Any]:
    import numpy as np

    values = {"site": _cell(site.name), "kind": _cell(site.kind)}
    return {name: np.full(rows, value) for name, value in values.items()}


def _cell(text: str) -> str:
    """`text` as a cell that no spreadsheet takes for a formula.

    Names may come from anybody. The apostrophe says text, see "CSV Injection" of OWASP.
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def _write_events(recorded: Run, out: Path) -> None:
    from hookstats.show.progress import track
    from hookstats.sinks import TensorBoard
    from hookstats.sinks.charts import SCALARS

    sink = TensorBoard(out, SCALARS, histograms=True)
    try:
        for step in track(recorded.steps, "exporting"):
            sink(recorded[step])
        scalars = recorded.scalars
        for step in scalars.steps:
            sink.write_scalars(step, 0, scalars.at(step))
    finally:
        sink.close()
