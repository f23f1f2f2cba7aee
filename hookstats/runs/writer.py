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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hookstats.records.record import StepRecord
from hookstats.runs.alerts import AlertFile, Told
from hookstats.runs.disk_notice import DiskNotice
from hookstats.runs.encode import encode, rows_of, schema_of
from hookstats.runs.files import is_temporary, remove_temporaries, to_json, write_file
from hookstats.runs.footer import check_grad_scale
from hookstats.runs.format import (
    FORMAT_VERSION,
    PARTS,
    RUN_JSON,
    SCALARS,
    PartName,
    is_of_a_run,
    list_parts,
    listed_ranks,
    rank_json,
    require_pyarrow,
    scalars_schema,
)
from hookstats.runs.headers import (
    bins_of,
    check_settings,
    continue_rank_json,
    headed_ranks,
    new_rank_json,
    new_run_json,
    now,
    read_rank_json,
    read_run_json,
)
from hookstats.runs.lock import Lock
from hookstats.runs.part_file import read_footer
from hookstats.runs.part_writer import Pace, PartWriter
from hookstats.runs.replace import remove_run
from hookstats.runs.scalars import encode_scalars, scalar_rows
from hookstats.runs.thinning import Around, block_of
from hookstats.stats.arguments import check_path
from hookstats.stats.printable import printable

AROUND = 10
"""How many recorded steps before and after the cause of an incident thinning keeps."""
_HINT = "; overwrite=True replaces the run, append=True continues it"
_PARTS_AT_LEAST = 64
"""The number of parts that `max_bytes` is cut into: thinning deletes whole parts."""
_SCALARS_SHARE = 16
"""Scalars may have one of so many parts of `max_bytes`; records have the rest."""
_LEAST_SCALARS = 4096
"""The least bytes in memory that make a part of scalars."""


class RunWriter:
    """Writes the records of one rank into a run directory, several steps per Parquet part.

    Records are encoded as they come, several at once if they are small. A part is written once
    `seconds_per_part` have passed since its first record, which the next `write` or `flush_if_due`
    notices, or once the part holds `bytes_per_part`. Each rank has a header of its own, and may
    start before or after other ranks. A writer is not for several threads at once.

    Where the disk takes no part, the records wait in memory, and each `write` and `flush_if_due`
    tries again, at most once in `seconds_per_retry`. Once the bytes of two parts wait, further
    records are lost: `lost` counts them, and the next part says which records they were.

    Scalars go into parts of their own, in the same way.

    If `max_bytes` is given, the parts of the rank never hold more once a part is written. Every
    step in the newest quarter of `max_bytes` is kept, and so are the steps around incidents
    (`AROUND` recorded steps before and after each cause that is worse than a note), the latest
    first, in up to half of it. Older blocks of steps are deleted: first every second, then every
    fourth that is left, and so on, the older ones first and the first block last; the same blocks
    on all ranks (see `thinning`). Deleted records are counted, in the parts and beside the header.

    Args:
        out: the directory, made if missing; must be empty, or hold other ranks of the same run.
        header: what the run is, JSON-able. Its "bins" and "channel_bins" (a LinearBins or
            LogBins, its dict, or None) say how to read the histograms of every record.
        append: whether `out` may hold a run with an equal header (see `check_settings`), which is
            then continued.
        overwrite: whether a run in `out` is deleted first; nothing else is. Each rank deletes its
            own files, and those of ranks that there are no more.
        world: how many ranks there are (`size`), and a text that is equal on all ranks and greater
            for process groups that started later (`started`); None if nothing is known.
        ranks: how many ranks write the run.
        says: whether to say what steps take on the disk, at the second one, and when steps are
            about to be deleted; see `DiskNotice`.
        locked: whether other writers of the rank that are locked, too, are kept out; see `lock`.
        seconds_per_part, bytes_per_part, bytes_per_group, seconds_per_retry: see `Pace`.

    Raises:
        FileExistsError: `out` holds another run, or anything else, or another writer is at work.
        OSError: `out` cannot be made or written; NotADirectoryError where it is a file.
        ValueError: `out` is no path; JSON cannot represent the header, the header differs from that
            of the run to continue, or the latter is damaged; a bad rank, max_bytes,
            seconds_per_part, bytes_per_part, bytes_per_group or seconds_per_retry.
        ImportError: pyarrow is not installed.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        rank: int = 0,
        append: bool = False,
        overwrite: bool = False,
        max_bytes: int | None = None,
        locked: bool = False,
        says: bool = False,
        world: Mapping[str, Any] | None = None,
        ranks: int = 1,
        seconds_per_part: float = 5.0,
        bytes_per_part: int = 32 << 20,
        bytes_per_group: int = 4 << 20,
        seconds_per_retry: float = 1.0,
    ) -> None:
        seconds = {"seconds_per_part": seconds_per_part, "seconds_per_retry": seconds_per_retry}
        sizes = {"bytes_per_part": bytes_per_part, "bytes_per_group": bytes_per_group}
        _check_arguments(rank, max_bytes, seconds, sizes)
        # Its first array imports pandas, where that is: half a second, not beside the first step.
        require_pyarrow().array([])
        self.path = check_path("out", out)
        self.rank = rank
        self.last_step: int | None = None
        """The last step of the continued run, of any rank; None for a new run."""
        self._bins = bins_of(header, "bins")
        self._channel_bins = bins_of(header, "channel_bins")
        self._every = int(header.get("every") or 1)
        self._detail = header.get("detail") == "tensor"  # rows may be of whole tensors
        self._described = {
            "bins": self._bins and self._bins.to_dict(),
            "channel_bins": self._channel_bins and self._channel_bins.to_dict(),
        }
        self._run = new_rank_json(rank, {**header, **self._described}, max_bytes, world)
        self._started: str | None = (world or {}).get("started")
        to_json("header", self._run)
        sizes_and_times = Pace(seconds_per_part, bytes_per_part, bytes_per_group, seconds_per_retry)
        self._limit = self._make_parts(header, max_bytes, sizes_and_times)
        self._around = Around(self.path)
        self._records.ranges_kept = self._around.ranges
        self._alerts = AlertFile(self.path, rank)
        self._notice: DiskNotice | None = None
        if says:
            channels_every = int(header.get("channels_every") or 1) if self._detail else 1
            self._notice = DiskNotice(
                *(self.path, self._every, channels_every, ranks, max_bytes, seconds_per_part)
            )
            self._records.before_thinning = self._notice.before_thinning
        self._open = True
        self._locked = locked
        self._lock: Lock | None = None
        try:
            self._claim(append, overwrite, ranks)
        except BaseException as error:
            self.unlock()
            if isinstance(error, OSError) and error.filename is not None:
                raise self._unwritable(error) from error
            raise  # one of ours says all there is to say

    def _make_parts(
        self, header: Mapping[str, Any], max_bytes: int | None, pace: Pace
    ) -> int | None:
        """The writers of records and of scalars. Returns how many bytes the records may have."""
        scalars = None if max_bytes is None else max_bytes // _SCALARS_SHARE
        of_records = None if max_bytes is None else max_bytes - (scalars or 0)
        scale = check_grad_scale(header.get("grad_scale"))
        about = {**self._described, "grad_scale": scale or 1.0}
        most = min(pace.bytes_per_part, (max_bytes or math.inf) // _PARTS_AT_LEAST)
        self._records = PartWriter(
            *(self.path / PARTS, self.rank, about, of_records),
            *(pace._replace(bytes_per_part=most), self._started),
        )
        least = max(_LEAST_SCALARS, (scalars or math.inf) // _PARTS_AT_LEAST)
        of_scalars = pace._replace(bytes_per_part=min(pace.bytes_per_part, least))
        self._scalars = PartWriter(self.path / SCALARS, self.rank, {}, scalars, of_scalars)
        return of_records

    def _claim(self, append: bool, overwrite: bool, ranks: int) -> None:
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
        if overwrite and names:  # run.json, which is written last, may be missing
            self._take_lock()  # nobody else may be writing what is deleted
            remove_run(self.path, self.rank, ranks, self._started)
            names = [path.name for path in self.path.iterdir()]
        found = list_parts(self.path) if PARTS in names else []
        run = read_run_json(self.path) if RUN_JSON in names else None
        if append and (run is not None or own in names):
            self._take_lock()  # what is read now must not change
            self._continue(run, found, own in names)
        elif (
            own in names
            or any(p.rank == self.rank for p in found)
            or "header" in (run or {})
            or (not overwrite and self._is_of_another_world(names))
        ):
            raise self._exists("holds another run", _HINT)
        parts.mkdir(exist_ok=True)
        try:
            self._write_rank_json(new=own not in names)
        except FileExistsError:
            raise self._exists("holds another run", _HINT) from None
        self._take_lock()
        # Not before: until here, other writers of the rank may be asking for the directory.
        remove_temporaries(self.path, self.rank)
        self._records.clean()
        self._scalars.clean()
        self._write_run_json(run)

    def _is_of_another_world(self, names: list[str]) -> bool:
        """Whether other ranks began the run in another process group, where that can be told."""
        if self._started is None:
            return False
        worlds = (read_rank_json(self.path, rank).get("world") for rank in listed_ranks(names)[:1])
        return any((world or {}).get("started") != self._started for world in worlds)

    def _take_lock(self) -> None:
        if self._locked and self._lock is None:
            self._lock = Lock(self.path, self.rank)

    def unlock(self) -> None:
        """Let other writers of the rank in, as `close` does, also where that failed."""
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
                self._run = continue_rank_json(self._run, before)
        else:  # a rank that is new may have other modules, but not other histograms
            header = read_rank_json(self.path, headed_ranks(self.path)[0])["header"]
            check_settings(
                {name: header.get(name) for name in self._described}, self._described, what
            )
        last: dict[int, int] = {}  # step by rank
        for part in parts:
            footer = None
            with suppress(ValueError, FileNotFoundError):
                footer = read_footer(self.path, part)
                last[part.rank] = footer.records[-1][0]
            if part.rank == self.rank:
                self._records.after(part, footer)
        for part in list_parts(self.path, SCALARS):
            if part.rank == self.rank:
                footer = None
                with suppress(ValueError, FileNotFoundError):
                    footer = read_footer(self.path, part, SCALARS)
                self._scalars.after(part, footer)
        # Equal on all ranks, even if some of them lost more steps than others.
        self.last_step = max(last.values(), default=None)
        self._run["thinned"] = self._records.thinned

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"{printable(str(self.path))}: the writer is closed")

    def _unwritable(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"out = {str(self.path)!r}: expected a directory that can be made and written "
            f"({error.strerror}: {error.filename})",
        )

    def _exists(self, what: str, hint: str = "") -> FileExistsError:
        return FileExistsError(
            errno.EEXIST,
            f"out = {str(self.path)!r}: {what}, expected a new or empty directory{hint}",
        )

    def write(self, record: StepRecord) -> None:
        """Take a record, and write a part if one is due.

        Raises:
            ValueError: the writer is closed, or the record is of another rank or other bins.
            OSError: a part cannot be written; its records are kept for the next attempt.
            MemoryError: as of `PartWriter.add`.
            FileExistsError: another process writes this run, too.
        """
        self._check_open()
        for name, value, expected in (
            ("rank", record.rank, self.rank),
            ("bins", record.bins, self._bins),
            ("channel_bins", record.channel_bins, self._channel_bins),
        ):
            if value != expected:
                raise ValueError(f"record.{name} = {value}: expected {expected}, as in the header")
        if record.step < 0:
            raise ValueError(f"record.step = {record.step}: expected 0 or more")
        if self._records.takes(record.step):
            rows, schema = rows_of(record), schema_of(record, detail=self._detail)
            encoded = partial(encode, schema=schema)
            if self._limit is not None and self._records.block is None:
                self._records.block = block_of(
                    self.path, self.rank, rows.nbytes, self._every, self._limit
                )
            self._records.add(rows, schema, encoded)
            if self._notice is not None:
                has_channels = not any(site.merged for site in record.sites)
                self._notice.add(rows, schema, encoded, has_channels=has_channels)
        self._alerts.at(record.step)
        self.flush_if_due()

    def skip(self, step: int, reason: str) -> None:
        """Note that `step` was due and is lost; the reason is that of a gap in docs/format.md."""
        self._records.skip(step, reason)

    def write_scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Take the scalars of a step, recorded or not, which was closed at `time`.

        time: in seconds since 1970, UTC.

        Raises:
            ValueError: the writer is closed.
            OSError, FileExistsError: as of `write`.
        """
        self._check_open()
        if self._scalars.takes(step):
            self._scalars.add(
                scalar_rows(step, self.rank, time, values), scalars_schema(), encode_scalars
            )
        self.flush_if_due()

    def write_alerts(self, told: Sequence[Told]) -> None:
        """Append alerts; they are on the disk when this returns.

        Raises:
            ValueError: the writer is closed.
            OSError: they cannot be written; they are kept for the next attempt.
        """
        self._check_open()
        for alert in (one.alert for one in told if one.cause):
            if alert.level and self._limit is not None:
                width = AROUND * self._every
                self._around.add(alert.step - width, alert.step + width)
        self._alerts.write(told)

    @property
    def lost(self) -> int:
        """How many records were dropped because the disk took none."""
        return self._records.lost

    def due_in(self) -> float | None:
        """Seconds until `flush_if_due` has something to write; None while nothing is pending."""
        due = [each.due_in() for each in (self._records, self._scalars)]
        return min((seconds for seconds in due if seconds is not None), default=None)

    def flush_if_due(self) -> None:
        """Write the pending records, and the pending scalars, if they are old or many enough."""
        some = self._records.flush_if_due()
        self._scalars.flush_if_due()
        if some:
            self._say_thinned()

    def flush(self) -> None:
        """Put all that is pending, if anything, on the disk, where it is when this returns."""
        self._records.flush()
        self._scalars.flush()
        self._alerts.flush()
        self._say_thinned()

    def _say_thinned(self) -> None:
        """Write beside the header how many records were deleted, if more were."""
        if self._run["thinned"] != self._records.thinned:
            self._run["thinned"] = self._records.thinned
            self._write_rank_json()

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Write the pending records, and `coverage` (JSON-able) beside the header.

        Closing a closed writer does nothing, but for what an interrupt has left to do.
        """
        if self._open:
            self.flush()
            self._run.update(coverage=coverage, closed=now())
            self._write_rank_json()
            self._open = False
        self.unlock()

    def _write_rank_json(self, *, new: bool = False) -> None:
        content = to_json("coverage", self._run)
        write_file(self.path / rank_json(self.rank), content, self.rank, new=new)


def _check_arguments(
    rank: int,
    max_bytes: int | None,
    seconds: Mapping[str, float],
    sizes: Mapping[str, int],
) -> None:
    if rank < 0:
        raise ValueError(f"rank = {rank}: expected 0 or more")
    if max_bytes is not None and not max_bytes >= 1:
        raise ValueError(f"max_bytes = {max_bytes}: expected 1 or more, or None")
    for name, value in seconds.items():
        if not 0 <= value <= threading.TIMEOUT_MAX:
            raise ValueError(f"{name} = {value}: expected 0 or more, finite")
    for name, size in sizes.items():
        if not size >= 1:
            raise ValueError(f"{name} = {size}: expected 1 or more")
