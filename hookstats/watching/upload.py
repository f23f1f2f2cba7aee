"""Upload: copies the files of a run that is being written to a URL, on a thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from uuid import uuid4

from hookstats.hooks.inert import weakly
from hookstats.runs.format import CHANNELS, RUN_JSON, SCALARS, TENSORS, owner, rank_json
from hookstats.runs.remote import file_system, files_at
from hookstats.runs.world import world_size
from hookstats.stats.messages import error_text, notify, warn
from hookstats.stats.retries import Patience
from hookstats.watching.sinks import error_of

SECONDS = 5.0
"""The seconds between two looks at the local directory."""
MOST_SECONDS = 60.0
"""The most seconds between two tries while the URL takes nothing."""
LAST_TRIES = (0.0, 1.0, 5.0)
"""The seconds before each try once the run is closed."""
PATIENCE = 60.0
"""The seconds that anybody waits for the next file to arrive once the run is closed."""

Version = tuple[int, int]
"""When a local file was written, in nanoseconds, and its size in bytes."""


class Upload:
    """Keeps the files of one rank at a URL equal to those in the run directory.

    A part is uploaded once it is complete. Nothing waits for the thread before `finish`. While the
    URL takes nothing, the files wait in the run directory, which stays whole in any case.
    """

    def __init__(
        self,
        url: str,
        path: Path,
        rank: int,
        failures: dict[str, str],
        *,
        append: bool,
        overwrite: bool,
    ) -> None:
        """path: the run directory. failures: gets the first error. append, overwrite: whether what
        the URL has is continued or replaced; otherwise, it must have nothing of this rank."""
        self.url = url
        self._path = path
        self._rank = rank
        self._failures = failures
        self._ranks = world_size()
        self._append, self._overwrite = append, overwrite
        self._system, self._root = file_system(url)
        self._sent: dict[str, Version | None] | None = None  # None before the first look at the URL
        self._arrived = 0
        self._bell: SimpleQueue[None] = SimpleQueue()  # rung once the run is closed
        self._is_over = self._is_complete = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="hookstats-upload", daemon=True)
        self._thread.start()
        before_exit(self.finish)

    def end(self) -> None:
        """Have the thread upload what is left and end; never waits."""
        self._bell.put(None)

    def finish(self) -> None:
        """`end`, and wait until all files have arrived, or none has for `PATIENCE` seconds."""
        if os.getpid() != self._pid or self._is_over:
            return
        self.end()
        left, arrived = Patience(PATIENCE), self._arrived
        while not (self._is_over or left.is_over()):
            self._thread.join(left.tick)
            if self._arrived != arrived:
                left, arrived = Patience(PATIENCE), self._arrived
        self._is_over = True
        if not self._is_complete:
            warn(f"hookstats: {self.url} lacks files of the run, which is whole in {self._path}")

    def _run(self) -> None:
        pause = SECONDS
        while not (self._is_over or self._is_closed_within(pause)):
            pause = SECONDS if self._try() else min(2 * pause, MOST_SECONDS)
        for pause in LAST_TRIES:
            time.sleep(pause)
            if self._is_over:
                return
            if self._try():
                self._is_complete = True
                break
        self._is_over = True

    def _is_closed_within(self, seconds: float) -> bool:
        try:
            self._bell.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _try(self) -> bool:
        """Whether the URL took all that it lacked."""
        error = error_of(self._send)
        if error is not None:
            why = f"{error_text(error)}; it is tried again, and {self._path} has the whole run"
            notify(self._failures, f"uploading to out = {self.url!r}", why)
        return error is None

    def _send(self) -> None:
        """Upload what is new or changed, and delete what was thinned."""
        if self._sent is None:
            self._sent = self._found()
        sent, here = self._sent, self._files()
        # What changed comes last: a run that says that it is closed has all its parts.
        for name in sorted(here, key=sent.__contains__):
            if sent.get(name) != here[name] and (self._path / name).exists():
                self._put(name)
                sent[name] = here[name]
                self._arrived += 1
        if rank_json(self._rank) in here:  # otherwise somebody removed the directory
            for name in [name for name in sent if name not in here]:
                self._delete(name)
                del sent[name]

    def _found(self) -> dict[str, Version | None]:
        """What the URL has of this rank; what is replaced is deleted."""
        there = files_at(self._system, self._root)
        if self._overwrite:
            for name in there:
                rank = owner(name)
                if rank is not None and (rank == self._rank or rank >= self._ranks):
                    self._delete(name)
            return {}
        own = {name: info for name, info in there.items() if owner(name) == self._rank}
        if rank_json(self._rank) in own and not self._append:  # of a machine that began just now
            raise FileExistsError(f"{self.url} has another run")
        here = self._files()
        # Parts never change.
        whole = {n for n in own if "/" in n and n in here and own[n]["size"] == here[n][1]}
        return {name: here[name] if name in whole else None for name in own}

    def _files(self) -> dict[str, Version]:
        """The files of this rank, in the order in which readers need them: a run that is there has
        a header, and a step that is there, by its tensors, has its channels."""
        paths = [self._path / rank_json(self._rank), self._path / RUN_JSON]
        for folder in (CHANNELS, SCALARS, TENSORS, ""):
            paths += sorted((self._path / folder).glob("*.*"))
        here: dict[str, Version] = {}
        for path in paths:
            name = path.relative_to(self._path).as_posix()
            if owner(name) == self._rank:
                with suppress(FileNotFoundError):  # thinned since it was listed
                    about = path.stat()
                    here.setdefault(name, (about.st_mtime_ns, about.st_size))
        return here

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{name}")

    def _put(self, name: str) -> None:
        target = f"{self._root}/{name}"
        if self._system.async_impl:  # an object store, which shows an object once it is whole
            self._system.put_file(str(self._path / name), target)
            return
        parent = target.rpartition("/")[0]
        temporary = f"{parent}/.{uuid4().hex}.tmp"
        self._system.makedirs(parent, exist_ok=True)
        self._system.put_file(str(self._path / name), temporary)
        self._system.mv(temporary, target)


def before_exit(method: Callable[[], object]) -> None:
    """Call a bound method as the interpreter ends, while executors still have threads: asyncio
    looks up the names of hosts by one. atexit comes later."""
    getattr(threading, "_register_atexit", atexit.register)(weakly(method))
