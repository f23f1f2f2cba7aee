"""RunWriter: a run directory, written so that a reader never sees a half-written file.

Files are written under a temporary name, flushed to the disk and renamed. A kill at any moment
loses at most the records not yet in a part, and leaves a temporary file behind, which readers do
not look at and the next writer of the rank removes.
"""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hookstats.records.record import StepRecord
from hookstats.runs.alerts import AlertEntry, AlertFile, read_alert_lines
from hookstats.runs.encode import channel_rows, encode_channels, encode_tensors, tensor_rows
from hookstats.runs.files import RunDirectory, is_temporary, remove_temporaries, to_json
from hookstats.runs.format import (
    CHANNELS,
    FOLDERS,
    RUN_JSON,
    RUN_LOCK,
    SCALARS,
    TENSORS,
    alerts_jsonl,
    batch_pt,
    is_of_a_run,
    list_parts,
    listed_ranks,
    lock_name,
    rank_json,
    require_pyarrow,
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
from hookstats.runs.kept_channels import EVERY, ChannelKeeper
from hookstats.runs.part_file import check_grad_scale, read_footer
from hookstats.runs.part_writer import Pace, PartWriter
from hookstats.runs.scalars import encode_scalars, scalar_rows
from hookstats.stats.arguments import check_path
from hookstats.stats.messages import say, short_path
from hookstats.stats.messages import size as size_text

if TYPE_CHECKING:
    from filelock import FileLock  # imported where a run is opened: 8 % of what `watch` imports

AROUND = 10
"""How many recorded steps before and after the cause of an incident thinning keeps."""
_HINT = "; overwrite=True replaces the run, append=True continues it"
_PARTS_AT_LEAST = 64
"""The number of parts that `max_bytes` is cut into."""
_SCALARS_SHARE = 16
"""Scalars may have one of so many parts of `max_bytes`; records have the rest."""
_LEAST_SCALARS = 4096
"""The least bytes in memory that make a part of scalars."""


class RunWriter:
    """Writes the records of one rank into a run directory, several steps per Parquet part.

    A part is written once `seconds_per_part` have passed since its first record, which the next
    `write` or `flush_if_due` notices, or once it has `bytes_per_part` in memory. Each rank has a
    header, and may start before or after other ranks. A writer is not for several threads at once.

    Which steps keep their channels, the header's "channels" says, see `ChannelKeeper`.

    Where the disk takes no part, the records wait in memory, and each `write` and `flush_if_due`
    tries again, at most once in `seconds_per_retry`. Once the bytes of two parts wait, further
    records are lost: `lost` counts them, and the next part says which records they were.

    If `max_bytes` is given, the parts of the rank never hold more once a part is written. Every
    step in the newest quarter of `max_bytes` is kept, and so are the steps around incidents
    (`AROUND` recorded steps before and after each cause that is worse than a note), the latest
    first, in up to half of it. Of the older steps, the ones that are no multiple of 2 go
    first, then of 4, and so on. Deleted records are counted beside the header.

    Args:
        out: the directory, made if missing; must be empty, or hold other ranks of the same run.
        header: what the run is, JSON-able. Its "bins" and "channel_bins" (a LinearBins or
            LogBins, its dict, or None) say how to read the histograms of every record.
        append: whether `out` may hold a run with an equal header (see `check_settings`), which is
            then continued.
        overwrite: whether a run in `out` is deleted first; nothing else is. Of several ranks in a
            process group the first deletes all of it, else each deletes its own files.
        world: how many ranks there are (`size`), and a text that is equal on all ranks of a process
            group and of no other (`started`); None if nothing is known.
        ranks: how many ranks write the run.
        says: whether to say what steps take on the disk, once there is a part, and when steps are
            about to be deleted.
        locked: whether other writers of the rank that are locked, too, are kept out.
        seconds_per_part, bytes_per_part, bytes_per_group, seconds_per_retry: see `Pace`.

    Raises:
        FileExistsError: `out` holds another run, or anything else, or another writer is at work.
        OSError: `out` cannot be made or written; NotADirectoryError where it is a file.
        ValueError: `out` is no path; JSON cannot represent the header, the header differs from that
            of the run to continue, or the latter is damaged.
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
        require_pyarrow()  # not beside the first step
        self._out = check_path("out", out)
        self.rank = rank
        self.last_step: int | None = None
        """The last step of the continued run, of any rank; None for a new run."""
        self._every = int(header.get("every") or 1)
        self._keeper = ChannelKeeper(header.get("channels") or "always")
        bins = {name: bins_of(header, name) for name in ("bins", "channel_bins")}
        self._described = {name: one and one.to_dict() for name, one in bins.items()}
        self._started: str | None = (world or {}).get("started")
        self._run = {
            **new_rank_json(rank, {**header, **self._described}, max_bytes, world),
            "host": socket.gethostname(),
            "process": os.getpid(),
        }
        to_json("header", self._run)
        self._ranks = ranks
        self._says = says
        grad_scale = check_grad_scale(header.get("grad_scale")) or 1.0
        pace = Pace(seconds_per_part, bytes_per_part, bytes_per_group, seconds_per_retry)
        self._open = True
        self._locked = locked
        self._lock: FileLock | None = None
        try:
            self._directory = self._make_directory()
            self.path = self._directory.path
            """The directory, absolute and without links."""
            try:
                self._make_parts(max_bytes, pace, grad_scale)
                self._claim(append, overwrite)
            except BaseException:
                self.unlock()
                raise
        except OSError as error:
            if error.filename is None:  # one of ours says all there is to say
                raise
            raise OSError(
                error.errno,
                f"out = {str(self._out)!r}: expected a directory that can be created and written "
                f"({error.strerror}: {error.filename})",
            ) from error

    def _make_directory(self) -> RunDirectory:
        if self._out.exists() and not self._out.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, f"out = {str(self._out)!r}: is a file, expected a directory"
            )
        self._out.mkdir(parents=True, exist_ok=True)
        return RunDirectory(self._out)

    def _make_parts(self, max_bytes: int | None, pace: Pace, grad_scale: float) -> None:
        """The writers of records, of scalars and of alerts."""
        scalars = None if max_bytes is None else max_bytes // _SCALARS_SHARE
        of_records = None if max_bytes is None else max_bytes - (scalars or 0)
        most = min(pace.bytes_per_part, (max_bytes or math.inf) // _PARTS_AT_LEAST)
        self._records = PartWriter(
            self._directory,
            self.rank,
            {TENSORS: encode_tensors, CHANNELS: encode_channels},
            of_records,
            pace._replace(bytes_per_part=most),
            grad_scale,
        )
        self._records.incidents = self._incidents
        least = max(_LEAST_SCALARS, (scalars or math.inf) // _PARTS_AT_LEAST)
        of_scalars = pace._replace(bytes_per_part=min(pace.bytes_per_part, least))
        encoders = {SCALARS: encode_scalars}
        self._scalars = PartWriter(self._directory, self.rank, encoders, scalars, of_scalars)
        self._scalars.incidents = self._incidents
        self._alerts = AlertFile(self._directory, self.rank)
        self._limit = max_bytes

    def _claim(self, append: bool, overwrite: bool) -> None:
        """Begin or continue a run; refuse a directory with files that are not those of ranks."""
        foreign = [n for n in self._names() if not (is_of_a_run(n) or is_temporary(n))]
        if foreign:
            raise self._exists(f"holds {min(foreign)!r}")
        self._take_lock()
        from filelock import FileLock

        with FileLock(self.path / RUN_LOCK):  # ranks start at the same time
            if overwrite:
                self._remove()
            self._enter(append)
        remove_temporaries(self.path, self.rank)
        self._records.clean()
        self._scalars.clean()

    def _names(self) -> list[str]:
        return [path.name for path in self.path.iterdir()]

    def _enter(self, append: bool) -> None:
        """Make the run, join it as another of its ranks, or continue it."""
        names, own = self._names(), rank_json(self.rank)
        run = read_run_json(self.path) if RUN_JSON in names else None
        is_own = own in names or any(p.rank == self.rank for p in list_parts(self.path, TENSORS))
        sessions: list[str | None] = [] if run is None else run["sessions"]
        if append and run is not None:
            self._continue(own in names)
        elif is_own or (run is not None and self._started not in (None, sessions[-1])):
            raise self._exists("holds another run", _HINT)
        # Without a process group nobody can tell whether another rank has begun this session.
        if not sessions or self._started not in (None, sessions[-1]):
            sessions = [*sessions, self._started]
            run = {**(run or new_run_json()), "sessions": sessions}
            self._write_json(RUN_JSON, "run", run)
        (self.path / TENSORS).mkdir(exist_ok=True)
        self._records.session = self._scalars.session = len(sessions) - 1
        self._write_rank_json()

    def _remove(self) -> None:
        """Delete the run that is there, or, where other ranks of this process group have begun to
        replace it or nobody can tell, the files of this rank."""
        names = self._names()
        run = None
        with suppress(ValueError):
            run = read_run_json(self.path) if RUN_JSON in names else None
        parts = {folder: list_parts(self.path, folder, every=True) for folder in FOLDERS}
        ranks = {*listed_ranks(names), self.rank}
        ranks |= {part.rank for found in parts.values() for part in found}
        if self._started is None or (run and self._started == run["sessions"][-1]):
            ranks = {rank for rank in ranks if rank == self.rank or rank >= self._ranks}
        for folder, found in parts.items():
            for part in found:
                if part.rank in ranks:
                    (self.path / folder / str(part)).unlink(missing_ok=True)
        for rank in ranks:
            batches = [path.name for path in self.path.glob(f"batch-{rank:05d}-*.pt")]
            for name in (*batches, alerts_jsonl(rank), rank_json(rank)):
                (self.path / name).unlink(missing_ok=True)
        if not listed_ranks(self._names()):
            (self.path / RUN_JSON).unlink(missing_ok=True)

    def _take_lock(self) -> None:
        if not self._locked:
            return
        from filelock import FileLock, Timeout

        # Not thread_local: another thread may close the writer.
        lock = FileLock(self.path / lock_name(self.rank), timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            who: dict[str, Any] = {}
            with suppress(OSError, ValueError):
                who = read_rank_json(self.path, self.rank)
            raise FileExistsError(
                errno.EEXIST,
                f"out = {str(self._out)!r}: process {who.get('process')} on {who.get('host')!r} "
                "writes this run, expected a run that no other process writes",
            ) from None
        self._lock = lock

    def unlock(self) -> None:
        """Let other writers of the rank in, as `close` does, also where that failed; nothing can be
        written then."""
        if self._lock is not None and self._run["process"] == os.getpid():
            self._lock.release()
            with suppress(OSError):
                self._directory.check()
                (self.path / lock_name(self.rank)).unlink()
            self._lock = None
        self._directory.release()

    def _continue(self, has_own: bool) -> None:
        """Continue after the records that the rank has written; damaged parts stay as they are."""
        what = f"out = {str(self._out)!r}"
        if has_own:
            before = read_rank_json(self.path, self.rank)
            check_settings(before["header"], self._run["header"], what)
            self._run = continue_rank_json(self._run, before)
        else:  # a rank that is new may have other modules, but not other histograms
            header = read_rank_json(self.path, headed_ranks(self.path)[0])["header"]
            check_settings(
                {name: header.get(name) for name in self._described}, self._described, what
            )
        last: dict[int, int] = {}  # step by rank
        for folder, writer in ((TENSORS, self._records), (SCALARS, self._scalars)):
            for part in list_parts(self.path, folder):
                footer = None
                with suppress(ValueError, FileNotFoundError):
                    footer = read_footer(self.path, part, folder)
                    if folder == TENSORS and footer.records:
                        last[part.rank] = footer.records[-1][0]
                if part.rank == self.rank:
                    writer.after(part, footer)
        # Equal on all ranks, even if some of them lost more steps than others.
        self.last_step = max(last.values(), default=None)
        self._run["thinned"] = self._records.thinned

    def _incidents(self) -> list[tuple[int, int]]:
        """Between which steps the incidents of all ranks are, by step."""
        width = AROUND * self._every
        causes = [
            entry["step"]
            for rank in listed_ranks(self._names())
            for entry in read_alert_lines(self.path, rank)
            if entry.get("cause", True) and entry["severity"] != "note"
        ]
        return [(step - width, step + width) for step in sorted(set(causes))]

    def _exists(self, what: str, hint: str = "") -> FileExistsError:
        return FileExistsError(
            errno.EEXIST,
            f"out = {str(self._out)!r}: {what}, expected a new or empty directory{hint}",
        )

    def write(self, record: StepRecord) -> None:
        """Take a record, and write a part if one is due.

        Raises:
            OSError: a part cannot be written; its records are kept for the next attempt.
            MemoryError: there is no memory to encode them; they are kept, too.
            FileExistsError: another process writes this run, too.
        """
        if self._records.takes(record.step):
            channels = channel_rows(record)
            self._records.add(tensor_rows(record))
            if channels is not None:
                self._records.add_beside(CHANNELS, self._keeper.take(channels))
        self._alerts.at(record.step)
        self.flush_if_due()

    def skip(self, step: int, reason: str) -> None:
        """Note that `step` was due and is lost; see docs/format.md for reasons."""
        self._records.skip(step, reason)

    def write_scalars(
        self,
        step: int,
        time: float,
        values: Mapping[str, float],
        samples: Sequence[int | str] = (),
    ) -> None:
        """Take the scalars of a step, recorded or not, which was closed at `time`.

        time: in seconds since 1970, UTC. samples: the ids of the step's samples.

        Raises:
            OSError, FileExistsError: as of `write`.
        """
        if self._scalars.takes(step):
            self._scalars.add(scalar_rows(step, self.rank, time, values, samples))
        self.flush_if_due()

    def write_alerts(self, entries: Sequence[AlertEntry]) -> None:
        """Append alerts; they are on the disk when this returns.

        Raises:
            OSError: they cannot be written; they are kept for the next attempt.
        """
        for alert in (one.alert for one in entries if one.cause):
            if alert.level:
                self._records.add_beside(CHANNELS, self._keeper.incident(alert.step))
        self._alerts.write(entries)

    def write_batch(self, step: int, content: bytes) -> None:
        """Put the file of a step's batch on the disk, see `runs.batches`.

        Raises:
            OSError: it cannot be written.
        """
        self._directory.write(batch_pt(self.rank, step), content, self.rank)

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
            self._say()

    def flush(self) -> None:
        """Put all that is pending, if anything, on the disk, where it is when this returns."""
        self._records.flush()
        self._scalars.flush()
        self._alerts.flush()
        self._say()

    def _say(self) -> None:
        """Say what the first part took, and write beside the header how many records are gone."""
        if self._says and self._records.written is not None:
            self._say_size(*self._records.written)
        if self._run["thinned"] != self._records.thinned:
            if self._says_thinning:
                self._says_thinning = False
                limit = size_text((self._limit or 0) * self._ranks)
                say(
                    f"{short_path(self._out)} has reached {limit} (max_bytes): from now on old "
                    "steps are thinned, never new ones"
                )
            self._run["thinned"] = self._records.thinned
            self._write_rank_json()

    _says_thinning = False

    def _say_size(self, steps: int, sizes: Mapping[str, int]) -> None:
        if not steps:
            return
        self._says, self._says_thinning = False, True
        one_in = EVERY if self._run["header"].get("channels") == "incidents" else 1
        per_step = (sizes.get(TENSORS, 0) + sizes.get(CHANNELS, 0) / one_in) / steps
        per_step *= self._ranks / self._every
        size = size_text(1000 * per_step)
        what = f"{short_path(self._out)} takes about {size} per 1,000 steps"
        if self._limit is None:
            say(f"{what}, without a limit (max_bytes=None)")
        else:
            say(f"{what}; old steps are thinned above {size_text(self._limit * self._ranks)}")

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

    def _write_rank_json(self) -> None:
        self._write_json(rank_json(self.rank), "coverage", self._run)

    def _write_json(self, name: str, what: str, content: Mapping[str, Any]) -> None:
        self._directory.write(name, to_json(what, content), self.rank)
