"""RunWriter: a run directory, written so that a reader never sees a half-written file.

Files are written under a temporary name, flushed to the disk and renamed. A kill at any moment
loses at most the records not yet in a part, and leaves a temporary file behind, which readers do
not look at and the next writer of the rank removes.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from hookstats.records.record import StepRecord
from hookstats.runs.encode import PartBuilder
from hookstats.runs.encode import check as check_encodable
from hookstats.runs.files import is_temporary, remove_temporaries, to_json, write_file
from hookstats.runs.footer import Gap, footer_json, noted
from hookstats.runs.format import (
    FORMAT_VERSION,
    PARTS,
    RUN_JSON,
    PartName,
    is_of_a_run,
    list_parts,
    rank_json,
    require_pyarrow,
)
from hookstats.runs.headers import (
    bins_of,
    check_settings,
    first_rank,
    new_rank_json,
    new_run_json,
    now,
    read_rank_json,
    read_run_json,
)
from hookstats.runs.lock import Lock
from hookstats.runs.part_file import read_footer
from hookstats.stats.arguments import check_path
from hookstats.stats.printable import printable
from hookstats.stats.state import is_higher

_PARTS_AT_LEAST = 64
"""The number of parts that `max_bytes` is cut into: thinning deletes whole parts."""
RETRY_SECONDS = 1.0
"""The least time between two attempts to write a part that the disk did not take."""
_PARTS_WAITING = 2
"""The number of parts whose bytes may wait in memory while the disk takes none."""


class RunWriter:
    """Writes the records of one rank into a run directory, several steps per Parquet part.

    Records are encoded as they come, several at once if they are small. A part is written once
    `seconds_per_part` have passed since its first record, which the next `write` or `flush_if_due`
    notices, or once the part holds `bytes_per_part`. Each rank has a header of its own, and may
    start before or after other ranks. A writer is not for several threads at once.

    Where the disk takes no part, the records wait in memory, and each `write` and `flush_if_due`
    tries again, at most once in `RETRY_SECONDS`. Once the bytes of two parts wait, further records
    are lost: `lost` counts them, and the next part says which records they were.

    If `max_bytes` is given, the parts of the rank never hold more once a part is written. Every
    step in the newest quarter of `max_bytes` is kept. Older parts are deleted: first every second,
    then every fourth that is left, and so on, the older ones first and the first part last. Deleted
    records are counted, in the parts and beside the header.

    Args:
        out: the directory, made if missing; must be empty, or hold other ranks of the same run.
        header: what the run is, JSON-able. Its "bins" and "channel_bins" (a LinearBins or
            LogBins, its dict, or None) say how to read the histograms of every record.
        append: whether `out` may hold a run with an equal header (see `check_settings`), which is
            then continued.
        locked: whether other writers of the rank that are locked, too, are kept out; see `lock`.

    Raises:
        FileExistsError: `out` holds another run, or anything else, or another writer is at work.
        OSError: `out` cannot be made or written; NotADirectoryError where it is a file.
        ValueError: `out` is no path; JSON cannot represent the header, the header differs from that
            of the run to continue, or the latter is damaged; a bad rank, max_bytes,
            seconds_per_part or
            bytes_per_part.
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
        locked: bool = False,
        seconds_per_part: float = 5.0,
        bytes_per_part: int = 32 << 20,
    ) -> None:
        _check_arguments(rank, max_bytes, seconds_per_part, bytes_per_part)
        require_pyarrow()
        self.path = check_path("out", out)
        self.rank = rank
        self.last_step: int | None = None
        """The last step of the continued run, of any rank; None for a new run."""
        self._bins = bins_of(header, "bins")
        self._channel_bins = bins_of(header, "channel_bins")
        self._described = {
            "bins": self._bins and self._bins.to_dict(),
            "channel_bins": self._channel_bins and self._channel_bins.to_dict(),
        }
        self._run = new_rank_json(rank, {**header, **self._described}, max_bytes)
        to_json("header", self._run)
        self._max_bytes = max_bytes
        self._seconds = seconds_per_part
        self._bytes = min(bytes_per_part, (max_bytes or math.inf) // _PARTS_AT_LEAST)
        self._part: PartBuilder | None = None
        self._sealed: list[tuple[_Written, Any]] = []  # parts that are not on the disk yet
        self._parts: dict[int, _Written] = {}  # those that are, by number
        self._number = 0  # of the next part
        self._written = 0  # records in all parts, those that were deleted included
        self._before = -1  # the step written last
        self._rewinds: list[tuple[int, int]] = []  # see footer.Footer
        self.lost = 0
        """How many records were dropped because the disk took none."""
        self._gaps: list[Gap] = []  # since the last part that is sealed
        self._failing = False  # the last attempt to write a part failed
        self._retry = 0.0  # when to try again
        self._left = 0  # bytes of temporary files that could not be removed
        self._due = math.inf
        self._open = True
        self._locked = locked
        self._lock: Lock | None = None
        try:
            self._claim(append)
        except OSError as error:
            self._unlock()
            if error.filename is None:  # ours: says all there is to say
                raise
            raise OSError(
                error.errno,
                f"out = {str(self.path)!r}: expected a directory that can be made and written "
                f"({error.strerror}: {error.filename})",
            ) from error

    def _claim(self, append: bool) -> None:
        """Make the directory; refuse one with files that are not those of other ranks."""
        parts, own = self.path / PARTS, rank_json(self.rank)
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, f"out = {str(self.path)!r}: is a file, expected a directory"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in self.path.iterdir()]
        foreign = [name for name in names if not (is_of_a_run(name) or is_temporary(name))]
        if foreign:
            raise self._exists(f"holds {min(foreign)!r}")
        found = list_parts(self.path) if PARTS in names else []
        run = read_run_json(self.path) if RUN_JSON in names else None
        if append and (run is not None or own in names):
            self._take_lock()  # what is read now must not change
            self._continue(run, found, own in names)
        elif own in names or any(p.rank == self.rank for p in found) or "header" in (run or {}):
            raise self._exists("holds another run")
        parts.mkdir(exist_ok=True)
        try:
            self._write_rank_json(new=own not in names)
        except FileExistsError:
            raise self._exists("holds another run") from None
        self._take_lock()
        # Not before: until here, other writers of the rank may be asking for the directory.
        self._left = sum(remove_temporaries(each, self.rank) for each in (self.path, parts))
        self._write_run_json(run)

    def _take_lock(self) -> None:
        if self._locked and self._lock is None:
            self._lock = Lock(self.path, self.rank)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _write_run_json(self, run: dict[str, Any] | None) -> None:
        """Write run.json if there is none; raise its version if an older hookstats wrote it."""
        if run is None:
            with suppress(FileExistsError):  # another rank was first
                content = to_json("run", new_run_json())
                write_file(self.path / RUN_JSON, content, self.rank, new=True)
        elif run["format_version"] < FORMAT_VERSION:
            content = to_json("run", {**run, "format_version": FORMAT_VERSION})
            write_file(self.path / RUN_JSON, content, self.rank)

    def _continue(
        self, run: Mapping[str, Any] | None, parts: list[PartName], has_own: bool
    ) -> None:
        """Continue after the records that the rank has written; damaged parts stay as they are."""
        what = f"out = {str(self.path)!r}"
        if has_own or "header" in (run or {}):
            before = read_rank_json(self.path, self.rank)
            check_settings(before["header"], self._run["header"], what)
            if has_own or self.rank == 0:
                session = {k: before.get(k) for k in ("created", "closed", "hookstats", "coverage")}
                self._run["earlier"] = [*before.get("earlier", []), session]
        else:  # a rank that is new may have other modules, but not other histograms
            header = read_rank_json(self.path, first_rank(self.path))["header"]
            check_settings(
                {name: header.get(name) for name in self._described}, self._described, what
            )
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
        # Equal on all ranks, even if some of them lost more steps than others.
        self.last_step = max(last.values(), default=None)
        self._run["thinned"] = self._thinned()

    def _exists(self, what: str) -> FileExistsError:
        return FileExistsError(
            errno.EEXIST, f"out = {str(self.path)!r}: {what}, expected a new or empty directory"
        )

    def write(self, record: StepRecord) -> None:
        """Take a record, and write a part if one is due.

        Raises:
            ValueError: the writer is closed, or the record is of another rank or other bins.
            OSError: a part cannot be written; its records are kept for the next attempt.
            FileExistsError: another process writes this run, too.
        """
        if not self._open:
            raise ValueError(f"{printable(str(self.path))}: the writer is closed")
        for name, value, expected in (
            ("rank", record.rank, self.rank),
            ("bins", record.bins, self._bins),
            ("channel_bins", record.channel_bins, self._channel_bins),
        ):
            if value != expected:
                raise ValueError(f"record.{name} = {value}: expected {expected}, as in the header")
        if record.step < 0:
            raise ValueError(f"record.step = {record.step}: expected 0 or more")
        while self._gaps and self._gaps[-1].step >= record.step:
            self._gaps.pop()  # training went back: the step comes again
        # A record that goes back is kept, as it makes void what the disk has.
        full = self._failing and self._waiting >= _PARTS_WAITING * self._bytes
        if full and record.step > self._before:
            self.lost += 1
            self._gaps.append(Gap(self._next, record.step, "disk"))
            self.flush_if_due()
            return
        check_encodable(record)
        higher = is_higher(record.moments)
        if self._part is not None and self._part.higher != higher:
            self._seal(self._part)
        if self._part is None:
            self._part = PartBuilder(higher=higher)
            self._due = time.monotonic() + self._seconds
        if record.step <= self._before:
            noted(self._rewinds, self._next, record.step)
        self._before = record.step
        self._part.add(record)
        self.flush_if_due()

    def skip(self, step: int, reason: str) -> None:
        """Note that `step` was due and is lost; the reason is that of a gap in docs/format.md."""
        if step > self._before:
            self._gaps.append(Gap(self._next, step, reason))

    def due_in(self) -> float | None:
        """Seconds until `flush_if_due` has something to write; None while nothing is pending."""
        if self._part is None and not self._failing:
            return None
        return max(0.0, (self._retry if self._failing else self._due) - time.monotonic())

    def flush_if_due(self) -> None:
        """Write the pending records as a part if they are old or many enough."""
        now, part = time.monotonic(), self._part
        if self._failing:
            due = now >= self._retry
        else:
            due = part is not None and (part.nbytes >= self._bytes or now >= self._due)
        if due:
            self.flush()

    def flush(self) -> None:
        """Write the pending records, if any, as a part that is on the disk when this returns."""
        self._put()  # what failed before comes first, so that a part can grow meanwhile
        if self._part is not None:
            self._seal(self._part)
            self._put()
        if self._max_bytes is not None:
            self._thin(self._max_bytes)

    @property
    def _next(self) -> int:
        """The number of the next record."""
        return self._written + (0 if self._part is None else len(self._part.records))

    @property
    def _waiting(self) -> int:
        """The bytes in memory."""
        sealed = sum(part.size for part, _ in self._sealed)
        return sealed + (0 if self._part is None else self._part.nbytes)

    def _put(self) -> None:
        """Put the sealed parts on the disk."""
        while self._sealed:
            part, content = self._sealed[0]
            path = self.path / PARTS / str(part.name)
            try:
                # Its name must be free: else another process writes this run, too.
                write_file(path, content, self.rank, new=True)
            except OSError as error:
                taken = isinstance(error, FileExistsError)
                # The attempt before may have failed after the file had its name.
                if not (taken and self._failing and path.read_bytes() == bytes(content)):
                    self._failing = True
                    self._retry = time.monotonic() + max(self._seconds, RETRY_SECONDS)
                    raise
            self._parts[part.name.number] = part
            del self._sealed[0]
        self._failing = False

    def _seal(self, part: PartBuilder) -> None:
        """Make the pending part a file in memory."""
        about = footer_json(
            self.rank, part.records, self._written, self._rewinds, self._gaps, self._described
        )
        content = part.finish(about)
        name = PartName(self.rank, self._number, part.records[0][0])
        self._sealed.append((_Written(name, len(part.records), content.size), content))
        self._number += 1
        self._written += len(part.records)
        self._part, self._due, self._gaps = None, math.inf, []

    def _thin(self, max_bytes: int) -> None:
        """Delete old parts until the remaining parts hold at most `max_bytes`."""
        excess = self._left + sum(part.size for part in self._parts.values()) - max_bytes
        if excess <= 0:
            return
        older = sorted(self._parts)
        recent = self._parts[older.pop()].size  # the newest part stays, whatever its size
        while older and recent + self._parts[older[-1]].size <= max_bytes // 4:
            recent += self._parts[older.pop()].size
        # Sorted by how many powers of two divide their numbers: the rest is spread evenly.
        older.sort(key=lambda number: (number & -number or math.inf, number))
        for number in older:
            if excess <= 0:
                break
            part = self._parts.pop(number)
            excess -= part.size
            (self.path / PARTS / str(part.name)).unlink(missing_ok=True)
        self._run["thinned"] = self._thinned()
        self._write_rank_json()

    def _thinned(self) -> int:
        """The number of deleted records."""
        return self._written - sum(part.records for part in self._parts.values())

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Write the pending records, and `coverage` (JSON-able) beside the header.

        Closing a closed writer does nothing.
        """
        if not self._open:
            return
        self.flush()
        self._run.update(coverage=coverage, closed=now())
        self._write_rank_json()
        self._open = False
        self._unlock()

    def _write_rank_json(self, *, new: bool = False) -> None:
        content = to_json("coverage", self._run)
        write_file(self.path / rank_json(self.rank), content, self.rank, new=new)


def _check_arguments(
    rank: int, max_bytes: int | None, seconds_per_part: float, bytes_per_part: int
) -> None:
    if rank < 0:
        raise ValueError(f"rank = {rank}: expected 0 or more")
    if max_bytes is not None and not max_bytes >= 1:
        raise ValueError(f"max_bytes = {max_bytes}: expected 1 or more, or None")
    if not 0 <= seconds_per_part <= threading.TIMEOUT_MAX:
        raise ValueError(f"seconds_per_part = {seconds_per_part}: expected 0 or more, finite")
    if not bytes_per_part >= 1:
        raise ValueError(f"bytes_per_part = {bytes_per_part}: expected 1 or more")


class _Written(NamedTuple):
    """A part that is complete."""

    name: PartName
    records: int
    size: int
    """The size in bytes."""
