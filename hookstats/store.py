"""RunWriter: a run directory, written so that a reader never sees a half-written file.

    run.json                                    format version, header, coverage once closed
    parts/RANK-PART-FIRSTSTEP.parquet           one row a (step, site, kind), in order of writing

Files are written under a temporary name (".NAME.RANDOM.tmp"), flushed to the disk and renamed. A
kill at any moment loses at most the records not yet in a part, and leaves a temporary file behind
that readers do not look at.
"""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from hookstats._version import __version__
from hookstats.bins import Bins, bins_from_dict
from hookstats.records import Int64, SiteInfo, StepRecord
from hookstats.state import COUNT, L1, M2, MAX, MEAN, MIN, TALLIES

FORMAT_VERSION = 1
"""Raised whenever a reader of the version before could misread a run."""

RUN_JSON = "run.json"
PARTS = "parts"
PART_KEY = b"hookstats"
"""Key in a part's metadata: JSON, format_version, rank and records, a list of [step, rows]."""


def require_pyarrow() -> Any:
    """The pyarrow module with pyarrow.parquet loaded, or an ImportError that says what to do."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"run directories need pyarrow ({error}): pip install 'hookstats[store]'"
        ) from error
    return pyarrow


@cache
def part_schema() -> Any:
    """The Arrow schema of every part; list columns hold one entry a channel, or a nonzero slot."""
    pa = require_pyarrow()

    def field(name: str, type: Any) -> Any:
        return pa.field(name, type, nullable=name == "channel_dim")

    def list_of(type: Any) -> Any:
        return pa.list_(pa.field("element", type, nullable=False))

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            field("step", pa.int64()),
            field("rank", pa.int32()),
            field("site", text),
            field("kind", text),
            field("channel_dim", pa.int32()),
            field("shape", list_of(pa.int64())),
            field("dtype", text),
            field("observed", pa.int64()),
            *(field(name, list_of(pa.int64())) for name in TALLIES),
            *(field(name, list_of(pa.float64())) for name in ("mean", "var", "min", "max", "l1")),
            field("hist_slots", list_of(pa.int32())),
            field("hist_counts", list_of(pa.int64())),
            field("channel_hist_slots", list_of(pa.int32())),
            field("channel_hist_counts", list_of(pa.int64())),
        ]
    )


class RunWriter:
    """Writes the records of one rank into a run directory, several steps a Parquet part.

    A part is written when `seconds_per_part` have passed since its first record, or its records
    hold `bytes_per_part`; the first is seen at the next `write` or `flush_if_due`. Rank 0 also
    owns run.json; other ranks may start before or after it. Not for several threads at once.

    Args:
        out: the directory, made if missing; must be empty, or hold other ranks of the same run.
        header: what the run was, JSON-able. Its "bins" and "channel_bins" (a LinearBins or
            LogBins, its dict, or None) say how to read the histograms of every record.

    Raises:
        FileExistsError: `out` holds another run, or anything else.
        OSError: `out` cannot be made or written; NotADirectoryError where it is a file.
        ValueError: a header JSON cannot say; a bad rank, seconds_per_part or bytes_per_part.
        ImportError: pyarrow is not installed.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        rank: int = 0,
        seconds_per_part: float = 5.0,
        bytes_per_part: int = 64 << 20,
    ) -> None:
        if rank < 0:
            raise ValueError(f"rank = {rank}: expected 0 or more")
        if not 0 <= seconds_per_part <= threading.TIMEOUT_MAX:
            raise ValueError(f"seconds_per_part = {seconds_per_part}: expected 0 or more, finite")
        if not bytes_per_part >= 1:
            raise ValueError(f"bytes_per_part = {bytes_per_part}: expected 1 or more")
        require_pyarrow()
        self.path = Path(out)
        self.rank = rank
        self._bins = _bins_of(header, "bins")
        self._channel_bins = _bins_of(header, "channel_bins")
        self._run: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "hookstats": __version__,
            "created": _now(),
            "closed": None,
            "header": {
                **header,
                "bins": self._bins and self._bins.to_dict(),
                "channel_bins": self._channel_bins and self._channel_bins.to_dict(),
            },
            "coverage": None,
        }
        content = _json("header", self._run)
        self._seconds = seconds_per_part
        self._bytes = bytes_per_part
        self._batches: list[Any] = []  # of the part to come
        self._records: list[tuple[int, int]] = []  # (step, rows), one a batch
        self._pending = 0  # bytes in _batches
        self._due = math.inf
        self._part = 0
        self._open = True
        try:
            self._claim(content)
        except OSError as error:
            if error.filename is None:  # ours: says all there is to say
                raise
            raise OSError(
                error.errno,
                f"out = {str(self.path)!r}: expected a directory that can be made and written "
                f"({error.strerror}: {error.filename})",
            ) from error

    def _claim(self, content: bytes) -> None:
        """Make the directory; refuse one that is not empty but for other ranks' parts."""
        parts = self.path / PARTS
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, f"out = {str(self.path)!r}: is a file, expected a directory"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in self.path.iterdir()]
        foreign = [n for n in names if n not in (PARTS, RUN_JSON) and not _is_temporary(n)]
        ours = list(parts.glob(f"{self.rank:05d}-*.parquet")) if PARTS in names else []
        if ours or (self.rank == 0 and RUN_JSON in names):
            raise self._exists("holds another run")
        if foreign:
            raise self._exists(f"holds {min(foreign)!r}")
        parts.mkdir(exist_ok=True)
        if self.rank == 0:
            try:
                _write(self.path / RUN_JSON, lambda path: path.write_bytes(content), new=True)
            except FileExistsError:
                raise self._exists("holds another run") from None

    def _exists(self, what: str) -> FileExistsError:
        return FileExistsError(
            errno.EEXIST, f"out = {str(self.path)!r}: {what}, expected a new or empty directory"
        )

    def write(self, record: StepRecord) -> None:
        """Take a record; write a part if it is due.

        Raises:
            ValueError: the writer is closed, or the record is of another rank or other bins.
            OSError: the part cannot be written; its records are kept for the next attempt.
        """
        if not self._open:
            raise ValueError(f"{self.path}: the writer is closed")
        for name, value, expected in (
            ("rank", record.rank, self.rank),
            ("bins", record.bins, self._bins),
            ("channel_bins", record.channel_bins, self._channel_bins),
        ):
            if value != expected:
                raise ValueError(f"record.{name} = {value}: expected {expected}, as in the header")
        if record.step < 0:
            raise ValueError(f"record.step = {record.step}: expected 0 or more")
        batch = _encode(record)
        if not self._records:
            self._due = time.monotonic() + self._seconds
        self._records.append((record.step, batch.num_rows))
        self._batches.append(batch)
        self._pending += batch.nbytes
        self.flush_if_due()

    def due_in(self) -> float | None:
        """Seconds until `flush_if_due` has something to write; None while nothing is pending."""
        return max(0.0, self._due - time.monotonic()) if self._records else None

    def flush_if_due(self) -> None:
        """Write the pending records as a part if they are old or many enough."""
        if self._pending >= self._bytes or time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write the pending records, if any, as a part that is on the disk when this returns."""
        if not self._records:
            return
        pa = require_pyarrow()
        about = {"format_version": FORMAT_VERSION, "rank": self.rank, "records": self._records}
        table = pa.Table.from_batches(self._batches, schema=part_schema()).unify_dictionaries()
        table = table.replace_schema_metadata({PART_KEY: json.dumps(about)})
        name = f"{self.rank:05d}-{self._part:06d}-{self._records[0][0]:012d}.parquet"
        _write(self.path / PARTS / name, lambda path: _write_table(table, path))
        self._part += 1
        self._batches, self._records = [], []
        self._pending, self._due = 0, math.inf

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Write what is pending, and `coverage` (JSON-able) into run.json; again does nothing."""
        if not self._open:
            return
        self.flush()
        if self.rank == 0:
            self._run.update(coverage=coverage, closed=_now())
            content = _json("coverage", self._run)
            _write(self.path / RUN_JSON, lambda path: path.write_bytes(content))
        self._open = False


def _encode(record: StepRecord) -> Any:
    """The record's rows as a record batch of `part_schema`; copies columns, loops over none."""
    pa = require_pyarrow()
    schema = part_schema()
    rows = len(record)
    columns = _encode_sites(record.sites).copy()
    columns["step"] = pa.array(np.full(rows, record.step, np.int64))
    columns["rank"] = pa.array(np.full(rows, record.rank, np.int32))
    columns["observed"] = pa.array(record.observed)

    def lists(offsets: Int64, **values: Any) -> None:
        # int32 offsets are enough: 2**31 entries would be 16 GiB in a step.
        starts = pa.array(offsets.astype(np.int32))
        for name, array in values.items():
            type = schema.field(name).type
            columns[name] = pa.ListArray.from_arrays(starts, pa.array(array), type=type)

    tallies = np.ascontiguousarray(record.tallies.T)
    moments = np.ascontiguousarray(record.moments.T)
    count = tallies[COUNT]
    var = np.full(len(count), np.nan)
    np.divide(moments[M2], count, out=var, where=count > 0)
    lists(
        record.offsets,
        **dict(zip(TALLIES, tallies, strict=True)),
        mean=np.where(count > 0, moments[MEAN], np.nan),
        var=var,
        min=moments[MIN],
        max=moments[MAX],
        l1=moments[L1],
    )
    hist, channel_hist = record.hist, record.channel_hist
    lists(hist.offsets, hist_slots=hist.slots, hist_counts=hist.counts)
    if record.channel_bins is not None:
        lists(
            channel_hist.offsets[record.offsets],
            channel_hist_slots=_site_slots(record, record.channel_bins.slots),
            channel_hist_counts=channel_hist.counts,
        )
    else:
        lists(
            np.zeros(rows + 1, np.int64),
            channel_hist_slots=np.zeros(0, np.int32),
            channel_hist_counts=np.zeros(0, np.int64),
        )
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


@lru_cache(maxsize=2)
def _encode_sites(sites: tuple[SiteInfo, ...]) -> dict[str, Any]:
    """The columns that say what sites are; kept, as steps mostly have equal sites."""
    schema = part_schema()
    values = {
        "site": [site.name for site in sites],
        "kind": [site.kind for site in sites],
        "channel_dim": [site.channel_dim for site in sites],
        "shape": [list(site.shape) for site in sites],
        "dtype": [site.dtype for site in sites],
    }
    return {
        name: require_pyarrow().array(value, type=schema.field(name).type)
        for name, value in values.items()
    }


def _site_slots(record: StepRecord, slots: int) -> Any:
    """channel * slots + slot of every entry of the channel histograms, int32 [nnz]."""
    channel = np.arange(len(record.tallies)) - np.repeat(
        record.offsets[:-1], np.diff(record.offsets)
    )
    hist = record.channel_hist
    if channel.max(initial=0) * slots + slots > np.iinfo(np.int32).max:
        raise ValueError(
            f"channel_bins: {channel.max() + 1} channels of {slots} slots, "
            "expected a product below 2**31"
        )
    return (np.repeat(channel, np.diff(hist.offsets)) * slots + hist.slots).astype(np.int32)


def _write_table(table: Any, path: Path) -> None:
    pa = require_pyarrow()
    # No dictionaries for numbers, and the bytes of floats apart: half the time, less on the disk.
    encodings = {
        f"{field.name}.list.element": "BYTE_STREAM_SPLIT"
        if field.type.value_type == pa.float64()
        else "DELTA_BINARY_PACKED"
        for field in table.schema
        if pa.types.is_list(field.type)
    }
    with pa.OSFile(str(path), "wb") as file:
        pa.parquet.write_table(
            table,
            file,
            compression="zstd",
            compression_level=1,
            use_dictionary=[f.name for f in table.schema if pa.types.is_dictionary(f.type)],
            column_encoding=encodings,
            row_group_size=max(1, table.num_rows),
            write_batch_size=1 << 16,
            data_page_version="2.0",
            write_statistics=["step", "rank"],
            write_page_checksum=True,
        )


def _write(path: Path, write: Callable[[Path], object], *, new: bool = False) -> None:
    """Let `write` fill a temporary file, put it on the disk, then give it its name at once.

    With `new`, FileExistsError if the name is taken, also by a process that asks just now.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        write(temporary)
        _sync(temporary)
        if new:
            _link(temporary, path)
        else:
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if os.name == "posix":  # elsewhere a directory cannot be opened
        _sync(path.parent, os.O_RDONLY)


def _link(temporary: Path, path: Path) -> None:
    """Rename to a name that must be free."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)
    else:
        temporary.unlink()


def _sync(path: Path, flags: int = os.O_RDWR) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _bins_of(header: Mapping[str, Any], name: str) -> Bins | None:
    value = header.get(name)
    return bins_from_dict(value) if isinstance(value, Mapping) else value


def _json(what: str, content: Any) -> bytes:
    try:
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: expected what JSON can say ({error})") from error


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
