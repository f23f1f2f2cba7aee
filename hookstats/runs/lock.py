"""Lock: keeps a second writer of a rank out of a run directory, also one on another machine.

A lock is a file, `lock-RANK.json` (docs/format.md), since network file systems have no other locks
that can be relied on. Its writer counts `beat` up while it lives.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
import weakref
from _thread import start_new_thread
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from hookstats.arena.flag import Flag
from hookstats.runs.files import read_json, to_json, write_file
from hookstats.stats.warning import warn

BEAT_SECONDS = 5.0
"""The time from one beat to the next."""
STALE_SECONDS = 30.0
"""A writer on another machine whose beat stays the same for so long is gone."""


class Lock:
    """The lock of a rank, held from now until `release`, or until the object or the process ends.

    A lock of a process on this machine is taken over at once if the process is gone; that of
    another machine once its beat has not changed for `stale` seconds, by the clock of who waits.

    Args:
        run: the run directory.
        rank: the rank whose files only one writer may write.
        beat: the seconds from one beat of this lock to the next.
        stale: the seconds after which another machine's writer whose beat stays the same is gone.

    Raises:
        FileExistsError: another writer of the rank is at work.
    """

    def __init__(
        self,
        run: Path,
        rank: int,
        *,
        beat: float = BEAT_SECONDS,
        stale: float = STALE_SECONDS,
    ) -> None:
        path = run / f"lock-{rank:05d}.json"
        token = uuid4().hex
        content = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "started": _started(os.getpid()),
            "token": token,
            "beat": 0,
        }
        released, ended = Flag(), Flag()
        thread = threading.Thread(
            target=_beat,
            args=(path, content, rank, released, ended, beat),
            name="hookstats-lock",
            daemon=True,
        )
        # Before the file is there, so that an interrupt leaves none.
        self._release = partial(_release, path, content, released, ended, thread, beat)
        self._end = weakref.finalize(self, self._release)
        while True:
            try:
                write_file(path, to_json("lock", content), rank, new=True)
                break
            except FileExistsError:
                _take_away(path, stale)
        # Thread.start waits for the new thread, in a way that an interrupt can break.
        start_new_thread(thread.start, ())

    def release(self) -> None:
        """Give the lock back; again does what an interrupt has left to do."""
        self._release()
        self._end.detach()


def _beat(
    path: Path, content: dict[str, Any], rank: int, released: Flag, ended: Flag, seconds: float
) -> None:
    """Count `beat` up until the lock is released, or somebody took it."""
    try:
        # No token: the file cannot be read now, such as while a network file system is away.
        while not released.wait(seconds) and _token(path) in (content["token"], None):
            content["beat"] += 1
            with suppress(OSError):  # the disk may be full; nobody can write then
                write_file(path, to_json("lock", content), rank)
        _remove(path, content["token"])
    finally:
        ended.set()


def _release(
    path: Path,
    content: dict[str, Any],
    released: Flag,
    ended: Flag,
    thread: threading.Thread,
    seconds: float,
) -> None:
    if content["process"] != os.getpid():
        return  # not a child's, which was forked with the lock
    released.set()
    if thread.ident is not None and thread is not threading.current_thread():
        # It may be writing the file. No join: after one that an interrupt ended, CPython takes the
        # thread for ended.
        ended.wait(seconds)
    _remove(path, content["token"])


def _remove(path: Path, token: str) -> None:
    if _token(path) == token:
        with suppress(OSError):
            path.unlink()


def _take_away(path: Path, stale: float) -> None:
    """Remove the lock if its writer is gone.

    Raises:
        FileExistsError: the writer is at work.
    """
    owner = _read(path)
    if not owner and not path.exists():
        return  # released meanwhile
    if _is_alive(path, owner, stale):
        raise FileExistsError(
            errno.EEXIST,
            f"out = {str(path.parent)!r}: process {owner.get('process')} on "
            f"{owner.get('host')!r} writes this run, expected a run that nobody writes",
        )
    # A rename, of which one of several who wait has the file.
    away = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    with suppress(FileNotFoundError):
        path.rename(away)
        taken = _token(away)
        if taken != owner.get("token"):  # another one was faster, and has the lock by now
            with suppress(FileExistsError):
                path.hardlink_to(away)
        away.unlink()


def _is_alive(path: Path, owner: dict[str, Any], stale: float) -> bool:
    """Whether the writer that has the lock is at work."""
    process = owner.get("process")
    if owner.get("host") == socket.gethostname() and isinstance(process, int):
        return process > 0 and _started(process) == owner.get("started") is not None
    warn(
        f"hookstats: waiting for at most {stale:g} s: {str(path.parent)!r} was written on "
        f"{owner.get('host')!r}, perhaps is still"
    )
    end = time.monotonic() + stale
    while time.monotonic() < end:
        time.sleep(min(0.5, stale / 10))
        now = _read(path)
        if (now.get("token"), now.get("beat")) != (owner.get("token"), owner.get("beat")):
            return bool(now)
    return False


def _started(process: int) -> str | None:
    """When a process of this machine started, as a text that no other process has; None if gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        return f"{boot} {stat.rpartition(')')[2].split()[19]}"
    try:
        os.kill(process, 0)  # where there is no /proc
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"


def _token(path: Path) -> object:
    return _read(path).get("token")


def _read(path: Path) -> dict[str, Any]:
    """What a lock says; nothing where it is damaged or gone."""
    with suppress(OSError, ValueError):
        content = read_json(path)
        if isinstance(content, dict):
            return content
    return {}
