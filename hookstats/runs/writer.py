"""RunWriter: a run directory, written so that a reader never sees a half-written file.

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
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from hookstats._version import __version__
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64
from hookstats.runs.columns import to_columns
from hookstats.runs.format import (
    FORMAT_VERSION,
    PART_KEY,
    PARTS,
    RUN_JSON,
    PartName,
    list_parts,
    part_schema,
    read_footer,
    read_run_json,
    require_pyarrow,
)
from hookstats.stats.bins import Bins, bins_from_dict

_GROUP_BYTES = 4 << 20
"""How much is encoded at once: little waits in memory, and who reads a step reads little more."""

_MAY_DIFFER = ("torch", "every")

_PARTS_AT_LEAST = 64
"""Into how many parts `max_bytes` are cut: a part is what is thinned at once."""


class RunWriter:
    """Writes the records of one rank into a run directory, several steps a Parquet part.

    Records are encoded as they come, and a part is written when `seconds_per_part` have passed
    since its first record, or it holds `bytes_per_part`; the first is seen at the next `write` or
    `flush_if_due`. Rank 0 also owns run.json; other ranks may start before or after it. Not for
    several threads at once.

    Where `max_bytes` are given, the parts of the rank never hold more once a part is written. Of
    the newest quarter of that every step is kept; of what is older, parts are deleted: first every
    second, then every fourth that is left, and so on, the older first and the first part last. What
    is deleted is counted, in the parts and in run.json.

    Args:
        out: the directory, made if missing; must be empty, or hold other ranks of the same run.
        header: what the run was, JSON-able. Its "bins" and "channel_bins" (a LinearBins or
            LogBins, its dict, or None) say how to read the histograms of every record.
        append: whether `out` may hold a run with an equal header (see `check_settings`), which is
            then continued.

    Raises:
        FileExistsError: `out` holds another run, or anything else.
        OSError: `out` cannot be made or written; NotADirectoryError where it is a file.
        ValueError: a header JSON cannot say, or other than that of the run to continue, or that
            run's run.json is damaged; a bad rank, max_bytes, seconds_per_part or bytes_per_part.
        ImportError: pyarrow is not installed.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        rank: int = 0,
        append: bool = False,
        max_bytes: int | None = None,
        seconds_per_part: float = 5.0,
        bytes_per_part: int = 32 << 20,
    ) -> None:
        if rank < 0:
            raise ValueError(f"rank = {rank}: expected 0 or more")
        if max_bytes is not None and not max_bytes >= 1:
            raise ValueError(f"max_bytes = {max_bytes}: expected 1 or more, or None")
        if not 0 <= seconds_per_part <= threading.TIMEOUT_MAX:
            raise ValueError(f"seconds_per_part = {seconds_per_part}: expected 0 or more, finite")
        if not bytes_per_part >= 1:
            raise ValueError(f"bytes_per_part = {bytes_per_part}: expected 1 or more")
        require_pyarrow()
        self.path = Path(out)
        self.rank = rank
        self.last_step: int | None = None
        """The last step of the run that is continued, of any rank; None where there is none."""
        self._bins = _bins_of(header, "bins")
        self._channel_bins = _bins_of(header, "channel_bins")
        self._run: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "hookstats": __version__,
            "created": _now(),
            "closed": None,
            "max_bytes": max_bytes,
            "thinned": 0,
            "header": {
                **header,
                "bins": self._bins and self._bins.to_dict(),
                "channel_bins": self._channel_bins and self._channel_bins.to_dict(),
            },
            "coverage": None,
            "earlier": [],
        }
        _json("header", self._run)
        self._max_bytes = max_bytes
        self._seconds = seconds_per_part
        self._bytes = min(bytes_per_part, (max_bytes or math.inf) // _PARTS_AT_LEAST)
        self._part: _Part | None = None
        self._sealed: list[tuple[_Written, Any]] = []  # parts that are not on the disk yet
        self._parts: dict[int, _Written] = {}  # those that are, by number
        self._number = 0  # of the next part
        self._written = 0  # records in all parts, those that were deleted included
        self._before = -1  # the step written last
        self._rewinds: list[tuple[int, int]] = []  # see format.Footer
        self._due = math.inf
        self._open = True
        try:
            self._claim(append)
        except OSError as error:
            if error.filename is None:  # ours: says all there is to say
                raise
            raise OSError(
                error.errno,
                f"out = {str(self.path)!r}: expected a directory that can be made and written "
                f"({error.strerror}: {error.filename})",
            ) from error

    def _claim(self, append: bool) -> None:
        """Make the directory; refuse one that is not empty but for other ranks' parts."""
        parts = self.path / PARTS
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, f"out = {str(self.path)!r}: is a file, expected a directory"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in self.path.iterdir()]
        foreign = [n for n in names if n not in (PARTS, RUN_JSON) and not _is_temporary(n)]
        if foreign:
            raise self._exists(f"holds {min(foreign)!r}")
        found = list_parts(self.path) if PARTS in names else []
        if append and RUN_JSON in names:
            self._continue(read_run_json(self.path), found)
        elif any(p.rank == self.rank for p in found) or (self.rank == 0 and RUN_JSON in names):
            raise self._exists("holds another run")
        parts.mkdir(exist_ok=True)
        if self.rank == 0:
            try:
                self._write_run_json(new=not (append and RUN_JSON in names))
            except FileExistsError:
                raise self._exists("holds another run") from None

    def _continue(self, run: dict[str, Any], parts: list[PartName]) -> None:
        """Go on after what the rank has written; what is damaged stays as it is."""
        check_settings(run["header"], self._run["header"], f"out = {str(self.path)!r}")
        session = {key: run.get(key) for key in ("created", "closed", "hookstats", "coverage")}
        self._run["earlier"] = [*run.get("earlier", []), session]
        last: dict[int, int] = {}  # step by rank
        for part in parts:
            records = 0
            with suppress(ValueError, FileNotFoundError):
                footer = read_footer(self.path, part)
                last[part.rank] = footer.records[-1][0]
                if part.rank == self.rank:
                    records = len(footer.records)
                    self._written = records + (footer.written or self._written)
                    self._rewinds = footer.rewinds
                    self._before = last[part.rank]
            if part.rank == self.rank:
                size = (self.path / PARTS / str(part)).stat().st_size
                self._parts[part.number] = _Written(part, records, size)
                self._number = part.number + 1
        # The same for all ranks, whichever of them lost a step more than others.
        self.last_step = max(last.values(), default=None)
        self._run["thinned"] = self._thinned()

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
        if self._part is None:
            self._part = _Part()
            self._due = time.monotonic() + self._seconds
        if record.step <= self._before:
            while self._rewinds and self._rewinds[-1][1] >= record.step:  # says less than this one
                self._rewinds.pop()
            self._rewinds.append((self._written + len(self._part.records), record.step))
        self._before = record.step
        self._part.add(record.step, batch)
        self.flush_if_due()

    def due_in(self) -> float | None:
        """Seconds until `flush_if_due` has something to write; None while nothing is pending."""
        return max(0.0, self._due - time.monotonic()) if self._part is not None else None

    def flush_if_due(self) -> None:
        """Write the pending records as a part if they are old or many enough."""
        if self._part is not None and (
            self._part.nbytes >= self._bytes or time.monotonic() >= self._due
        ):
            self.flush()

    def flush(self) -> None:
        """Write the pending records, if any, as a part that is on the disk when this returns."""
        if self._part is not None:
            self._seal(self._part)
            self._part, self._due = None, math.inf
        while self._sealed:
            part, content = self._sealed[0]
            # Its name must be free: else another process writes this run, too.
            _write(self.path / PARTS / str(part.name), content, new=True)
            self._parts[part.name.number] = part
            del self._sealed[0]
        if self._max_bytes is not None:
            self._thin(self._max_bytes)

    def _seal(self, part: _Part) -> None:
        about = {
            "format_version": FORMAT_VERSION,
            "rank": self.rank,
            "records": part.records,
            "written": self._written,
            "rewinds": self._rewinds,
        }
        content = part.finish({PART_KEY: json.dumps(about)})
        name = PartName(self.rank, self._number, part.records[0][0])
        self._sealed.append((_Written(name, len(part.records), content.size), content))
        self._number += 1
        self._written += len(part.records)

    def _thin(self, max_bytes: int) -> None:
        """Delete old parts until all others hold `max_bytes` at most."""
        excess = sum(part.size for part in self._parts.values()) - max_bytes
        if excess <= 0:
            return
        older = sorted(self._parts)
        recent = self._parts[older.pop()].size  # the newest part stays, whatever its size
        while older and recent + self._parts[older[-1]].size <= max_bytes // 4:
            recent += self._parts[older.pop()].size
        # By how many powers of two divide their numbers: what is left is spread evenly.
        older.sort(key=lambda number: (number & -number or math.inf, number))
        for number in older:
            if excess <= 0:
                break
            part = self._parts.pop(number)
            excess -= part.size
            (self.path / PARTS / str(part.name)).unlink(missing_ok=True)
        self._run["thinned"] = self._thinned()
        if self.rank == 0:
            self._write_run_json()

    def _thinned(self) -> int:
        """How many records were deleted."""
        return self._written - sum(part.records for part in self._parts.values())

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Write what is pending, and `coverage` (JSON-able) into run.json; again does nothing."""
        if not self._open:
            return
        self.flush()
        if self.rank == 0:
            self._run.update(coverage=coverage, closed=_now())
            self._write_run_json()
        self._open = False

    def _write_run_json(self, *, new: bool = False) -> None:
        _write(self.path / RUN_JSON, _json("coverage", self._run), new=new)


class _Written(NamedTuple):
    """A part that is complete."""

    name: PartName
    records: int
    size: int
    """In bytes."""


class _Part:
    """A part to come: a Parquet file in memory, so that the disk sees it whole or not at all."""

    def __init__(self) -> None:
        pa = require_pyarrow()
        schema = part_schema()
        self.records: list[tuple[int, int]] = []
        """Step and rows of each."""
        self._batches: list[Any] = []  # of the row group to come
        self._waiting = 0  # bytes in _batches
        self._buffer = pa.BufferOutputStream()
        lists = [field for field in schema if pa.types.is_list(field.type)]
        self._writer = pa.parquet.ParquetWriter(
            self._buffer,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[f.name for f in schema if pa.types.is_dictionary(f.type)],
            # No dictionaries for numbers, and the bytes of floats apart: half the time, less on
            # the disk.
            column_encoding={
                f"{field.name}.list.element": "BYTE_STREAM_SPLIT"
                if field.type.value_type == pa.float64()
                else "DELTA_BINARY_PACKED"
                for field in lists
            },
            write_batch_size=1 << 16,
            data_page_version="2.0",
            write_statistics=["step", "rank"],
            write_page_checksum=True,
        )

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return int(self._buffer.tell()) + self._waiting

    def add(self, step: int, batch: Any) -> None:
        """Take the rows of a record."""
        self.records.append((step, batch.num_rows))
        self._batches.append(batch)
        self._waiting += batch.nbytes
        if self._waiting >= _GROUP_BYTES:
            self._end_group()

    def finish(self, metadata: Mapping[bytes, str]) -> Any:
        """The content of the file, a pyarrow.Buffer."""
        self._end_group()
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        return self._buffer.getvalue()

    def _end_group(self) -> None:
        table = require_pyarrow().Table.from_batches(self._batches, schema=part_schema())
        if table.num_rows:
            self._writer.write_table(table.unify_dictionaries(), row_group_size=table.num_rows)
        self._batches, self._waiting = [], 0


def check_settings(theirs: Mapping[str, Any], ours: Mapping[str, Any], what: str) -> None:
    """Raise a ValueError that names the first setting of two headers that is not equal.

    `what` has `theirs`. The version of torch and how often a step is recorded may differ.
    """
    theirs, ours = (json.loads(json.dumps(header)) for header in (theirs, ours))
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        a, b = theirs.get(key), ours.get(key)
        if a == b or key in _MAY_DIFFER:
            continue
        if isinstance(a, dict) and isinstance(b, dict):  # a module or parameter in many
            name = next(name for name in [*b, *a] if a.get(name) != b.get(name))
            key, a, b = f"{key}[{name!r}]", a.get(name), b.get(name)
        raise ValueError(f"{what}: has {key} = {a!r}, expected {b!r}, as it is now")


def _encode(record: StepRecord) -> Any:
    """The record's rows as a record batch of `part_schema`; loops over no channels."""
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

    lists(record.offsets, **to_columns(record.moments, record.tallies))
    tensors = to_columns(record.whole.moments.numpy(), record.whole.tallies.numpy())
    columns.update((f"tensor_{name}", pa.array(values)) for name, values in tensors.items())
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


def _write(path: Path, content: Any, *, new: bool = False) -> None:
    """Put `content`, bytes or a buffer, on the disk under a temporary name, then rename it.

    With `new`, FileExistsError if the name is taken, also by a process that asks just now.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _link(temporary, path)
        else:
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if os.name == "posix":  # elsewhere a directory cannot be opened
        _sync_directory(path.parent)


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


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
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
