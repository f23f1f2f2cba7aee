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
from pathlib import Path
from typing import Any, NamedTuple

from hookstats.records.record import StepRecord
from hookstats.runs.encode import PartBuilder, encode
from hookstats.runs.files import is_temporary, remove_temporaries, to_json, write_file
from hookstats.runs.footer import footer_json, noted
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
from hookstats.runs.part_file import read_footer
from hookstats.stats.state import is_higher

_PARTS_AT_LEAST = 64
"""Into how many parts `max_bytes` are cut: a part is what is thinned at once."""


class RunWriter:
    """Writes the records of one rank into a run directory, several steps a Parquet part.

    Records are encoded as they come, and a part is written when `seconds_per_part` have passed
    since its first record, or it holds `bytes_per_part`; the first is seen at the next `write` or
    `flush_if_due`. Each rank has a header of its own, and may start before or after others. Not for
    several threads at once.

    Where `max_bytes` are given, the parts of the rank never hold more once a part is written. Of
    the newest quarter of that every step is kept; of what is older, parts are deleted: first every
    second, then every fourth that is left, and so on, the older first and the first part last. What
    is deleted is counted, in the parts and beside the header.

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
            run's header is damaged; a bad rank, max_bytes, seconds_per_part or bytes_per_part.
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
        self._left = 0  # bytes of temporary files that could not be removed
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
        """Make the directory; refuse one that is not empty but for other ranks' files."""
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
            self._continue(run, found, own in names)
        elif own in names or any(p.rank == self.rank for p in found) or "header" in (run or {}):
            raise self._exists("holds another run")
        parts.mkdir(exist_ok=True)
        try:
            self._write_rank_json(new=own not in names)
        except FileExistsError:
            raise self._exists("holds another run") from None
        # Not before: until here, other writers of the rank may be asking for the directory.
        self._left = sum(remove_temporaries(each, self.rank) for each in (self.path, parts))
        self._write_run_json(run)

    def _write_run_json(self, run: dict[str, Any] | None) -> None:
        """Write run.json where there is none; where an older version wrote it, say it is newer."""
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
        """Go on after what the rank has written; what is damaged stays as it is."""
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
        batch = encode(record)
        higher = is_higher(record.moments)
        if self._part is not None and self._part.higher != higher:
            self.flush()
        if self._part is None:
            self._part = PartBuilder(higher=higher)
            self._due = time.monotonic() + self._seconds
        if record.step <= self._before:
            noted(self._rewinds, self._written + len(self._part.records), record.step)
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
            write_file(self.path / PARTS / str(part.name), content, self.rank, new=True)
            self._parts[part.name.number] = part
            del self._sealed[0]
        if self._max_bytes is not None:
            self._thin(self._max_bytes)

    def _seal(self, part: PartBuilder) -> None:
        about = footer_json(self.rank, part.records, self._written, self._rewinds, self._described)
        content = part.finish(about)
        name = PartName(self.rank, self._number, part.records[0][0])
        self._sealed.append((_Written(name, len(part.records), content.size), content))
        self._number += 1
        self._written += len(part.records)

    def _thin(self, max_bytes: int) -> None:
        """Delete old parts until all others hold `max_bytes` at most."""
        excess = self._left + sum(part.size for part in self._parts.values()) - max_bytes
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
        self._write_rank_json()

    def _thinned(self) -> int:
        """How many records were deleted."""
        return self._written - sum(part.records for part in self._parts.values())

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Write what is pending, and `coverage` (JSON-able) beside the header.

        Closed again, it does nothing.
        """
        if not self._open:
            return
        self.flush()
        self._run.update(coverage=coverage, closed=now())
        self._write_rank_json()
        self._open = False

    def _write_rank_json(self, *, new: bool = False) -> None:
        content = to_json("coverage", self._run)
        write_file(self.path / rank_json(self.rank), content, self.rank, new=new)


class _Written(NamedTuple):
    """A part that is complete."""

    name: PartName
    records: int
    size: int
    """In bytes."""
