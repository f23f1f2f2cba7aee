"""Lock: one writer of a rank at a time, and none that waits long for one that is gone."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.interrupts import Alarm, Interrupt
from support.paths import python_path
from torch import nn

from hookstats import open_run, watch
from hookstats.runs.lock import Lock
from hookstats.runs.writer import RunWriter

SCRIPT = """
import sys, time
import torch
from torch import nn
from hookstats import watch

model = nn.Linear(2, 2)
w = watch(model, out=sys.argv[1], append=True)
model(torch.ones(1, 2))
w.step()
w._flusher.drain()
print("writes", flush=True)
time.sleep(60)
"""


def start(out: Path) -> subprocess.Popen[str]:
    """Another process that writes a run, and is in the middle of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out)],
        env={**os.environ, "PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writes\n"
    return process


def test_a_second_writer_is_refused_and_a_killed_one_restarts_at_once(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        content = json.loads((tmp_path / "lock-00000.json").read_text())
        assert (content["host"], content["process"]) == (socket.gethostname(), process.pid)
        says = rf"out = .*: process {process.pid} on .* writes this run, expected a run that nobody"
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(FileExistsError, match=says):
            watch(nn.Linear(2, 2), out=tmp_path, append=True)
        assert sorted(tmp_path.rglob("*")) == before
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    w = watch(nn.Linear(2, 2), out=tmp_path, append=True)
    w.close()
    assert open_run(tmp_path).steps == [0]
    assert not (tmp_path / "lock-00000.json").exists()


def test_two_watches_of_one_process(tmp_path: Path) -> None:
    model, before = nn.Linear(2, 2), set(threading.enumerate())
    first = watch(model, out=tmp_path, append=True)
    with pytest.raises(FileExistsError, match=f"process {os.getpid()} on"):
        watch(model, out=tmp_path, append=True)
    first.close()
    watch(model, out=tmp_path, append=True).close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:  # threads were told to end, and may not have begun yet
        made = [one for one in set(threading.enumerate()) - before if one.name == "hookstats-lock"]
        if not made:
            break
        time.sleep(0.01)
    assert not made


def test_a_watch_that_is_refused_leaves_no_lock(tmp_path: Path) -> None:
    watch(nn.Linear(2, 2), out=tmp_path).close()
    with pytest.raises(ValueError, match="as in this run"):
        watch(nn.Linear(3, 2), out=tmp_path, append=True)
    assert not (tmp_path / "lock-00000.json").exists()


def other_host(run: Path, **changes: Any) -> Path:
    """The lock of a writer on another machine."""
    path = run / "lock-00000.json"
    content = {"host": "elsewhere", "process": 1, "started": "x", "token": "t", "beat": 3}
    path.write_text(json.dumps({**content, **changes}))
    return path


def gone(path: Path) -> bool:
    """Whether a lock's file goes away: the thread that beats may be the one to remove it."""
    deadline = time.monotonic() + 20
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    return not path.exists()


QUICK = {"stale": 0.75, "beat": 0.125}
"""Clocks that run forty times faster."""


def test_a_writer_elsewhere_that_no_longer_beats_is_gone(tmp_path: Path) -> None:
    path = other_host(tmp_path)
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"waiting for at most 0.75 s: .* on 'elsewhere'"):
        mine = Lock(tmp_path, 0, **QUICK)
    assert time.monotonic() - start >= 0.75
    assert json.loads(path.read_text())["process"] == os.getpid()
    mine.release()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_elsewhere_that_beats_is_not(tmp_path: Path) -> None:
    path = other_host(tmp_path)
    timer = threading.Timer(0.3, other_host, [tmp_path], {"beat": 4})
    timer.start()
    with (
        pytest.warns(RuntimeWarning, match="waiting"),
        pytest.raises(FileExistsError, match="process 1 on 'elsewhere' writes this run"),
    ):
        Lock(tmp_path, 0, **QUICK)
    timer.join()
    assert json.loads(path.read_text())["host"] == "elsewhere"


def test_the_beat_counts_up_until_the_lock_is_dropped(tmp_path: Path) -> None:
    mine = Lock(tmp_path, 3, **QUICK)
    path = tmp_path / "lock-00003.json"
    deadline = time.monotonic() + 20
    while json.loads(path.read_text())["beat"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    Lock(tmp_path, 4).release()  # ranks do not meet
    del mine
    assert not path.exists()


def test_the_beat_goes_on_where_the_lock_could_not_be_read(tmp_path: Path) -> None:
    mine = Lock(tmp_path, 0, **QUICK)
    path = tmp_path / "lock-00000.json"
    path.write_text("{")
    deadline = time.monotonic() + 20
    while path.read_text() == "{":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert json.loads(path.read_text())["process"] == os.getpid()
    mine.release()
    assert gone(path)


def test_a_process_of_the_same_number_is_another_one(tmp_path: Path) -> None:
    other_host(tmp_path, host=socket.gethostname(), process=os.getpid(), started="before the boot")
    Lock(tmp_path, 0).release()


@pytest.mark.parametrize("releasing", [False, True])
def test_an_interrupt_at_any_line_leaves_no_lock(releasing: bool, tmp_path: Path) -> None:
    path, before = tmp_path / "lock-00000.json", set(threading.enumerate())

    def disturb(at: int) -> Interrupt:
        mine = Lock(tmp_path, 0) if releasing else None
        with Interrupt(at, KeyboardInterrupt) as interruption:
            if mine is None:
                mine = Lock(tmp_path, 0)
            else:
                mine.release()
        del mine
        assert gone(path), f"line {at}, {interruption.where}"
        return interruption

    lines = disturb(0).lines
    assert lines > 10
    for at in range(1, lines + 1):
        disturb(at)
    end = time.monotonic() + 10  # no join: the last one may not have started yet
    while {one for one in threading.enumerate() if one.name == "hookstats-lock"} - before:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_close_that_an_interrupt_ended_is_done_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is being written then, on a slow disk; the next writer comes at once."""
    writes, fsync = threading.Event(), os.fsync

    def slowly(descriptor: int) -> None:
        if threading.current_thread().name == "hookstats-lock":
            writes.set()
            time.sleep(0.5)
        fsync(descriptor)

    monkeypatch.setattr("hookstats.runs.writer.Lock", partial(Lock, beat=1.0))
    monkeypatch.setattr("hookstats.runs.files.os.fsync", slowly)
    writer = RunWriter(tmp_path, {}, locked=True)
    assert writes.wait(10)
    alarm = Alarm()
    alarm.set(0.1)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    writer.close()
    after = RunWriter(tmp_path, {}, locked=True, append=True)
    content = (tmp_path / "lock-00000.json").read_text()
    time.sleep(0.6)  # by then the first one's file would be there
    assert (tmp_path / "lock-00000.json").read_text() == content
    after.close()


def test_a_close_that_fails_gives_the_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if somebody, such as a traceback in garbage, still has the writer."""
    model = nn.Linear(2, 2)
    w = watch(model, out=tmp_path, rules=())
    writer = w._flusher._disk._writer
    assert writer is not None

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_write_rank_json", full)
        with pytest.warns(RuntimeWarning, match="No space left on device"):
            w.close()
    watch(model, out=tmp_path, append=True, rules=()).close()
