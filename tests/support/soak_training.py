"""A session of the soak: trains, with faults at random, until it has made its steps or is killed.

The run is on a small file system; another one has room for checkpoints and the log. The log has one
line of JSON per closed step, with what really happened in the step; `soak_check` compares the run
with it.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from io import TextIOWrapper
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from support.interrupts import Alarm
from support.soak_model import BATCH, FaultError, Net, Truth

import hookstats as hs
from hookstats.rules import RuleWarning
from hookstats.runs import files, headers
from hookstats.watching.handle import Watch

SAMPLES = 100
"""The steps from one look at memory, threads and handles to the next."""
STRANGERS_STEPS = 100
"""The steps of another process that begins a run in the place of this one."""


class Session:
    """One process of the training."""

    def __init__(self, disk: Path, room: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inherited = handles()
        self.disk, self.room = disk, room
        self.out, self.filler = disk / "run", disk / "filler"
        self.checkpoint = room / "checkpoint.pt"
        self.log = (room / "log.jsonl").open("a", buffering=1)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.001)
        self.alarm = Alarm()
        self.done = 0  # steps closed in this process
        self.paused = False
        self.given = 0  # records that the sink got
        self.slow = 0.0
        self.faults: list[tuple[float, Callable[[], None]]] = [
            (0.01, self.raise_forward),
            (0.01, self.raise_backward),
            (0.02, self.interrupt),
            (0.002, self.pause),
            (0.001, self.close_and_watch),
            (0.002, self.save),
            (0.001, self.go_back),
            (0.0007, self.fill_disk),
            (0.001, self.slow_disk),
            (0.001, self.change_directory),
            (0.001, self.lose_stderr),
            (0.0003, self.replace_run),
        ]
        self._make_disk_slow()
        self._turn_clock_back()
        if self.checkpoint.exists():
            self._load()
        self.filler.unlink(missing_ok=True)
        self.watch = self._watch()

    def say(self, **what: Any) -> None:
        """Write a line into the log; a kill leaves it, since the system has it."""
        self.log.write(json.dumps({**what, "at": time.monotonic()}) + "\n")

    def run(self, steps: int) -> None:
        while self.done < steps:
            if self.done % SAMPLES == 0:
                self.sample()
            self.iterate()
            for probability, fault in self.faults:
                if self.rng.random() < probability:
                    fault()
        self.filler.unlink(missing_ok=True)
        self.slow = 0.0
        self._close()
        self.sample()
        self.say(ended=True)

    def iterate(self, micro_batches: int = 0, alarm: float = 0.0) -> None:
        """Make a step; where it fails, the same step stays open for the next attempt."""
        number = self._number()
        try:
            if alarm:
                self.alarm.set(alarm)
            self.optimizer.zero_grad()
            for _ in range(micro_batches or self.rng.randrange(1, 4)):
                self.net(torch.randn(BATCH, 5)).square().mean().backward()
            self.optimizer.step()
            self.alarm.off()
        except FaultError:
            self.alarm.off()
        except KeyboardInterrupt:
            torch.set_grad_enabled(True)  # which torch's optimizers may leave off
            self.net.truth.disturbed = True
            self.say(interrupted=number)
        self._settle(number)

    def _number(self) -> int:
        return self.watch._step  # state_dict copies the settings, too

    def _settle(self, number: int) -> None:
        """Write down the step `number`, if it is closed."""
        truth = self.net.truth
        truth.disturbed = truth.disturbed or self.paused
        if self._number() == number:
            return
        self.say(step=number, paused=self.paused, **truth.to_json())
        self.done += 1
        self.net.truth = Truth()

    def raise_forward(self) -> None:
        self.net.fails_forward = self.rng.choice(["first", "relu", "last"])
        self.iterate()
        self.net.fails_forward = None
        self.say(fault="forward")

    def raise_backward(self) -> None:
        self.net.fails_backward = self.rng.choice(["first", "relu", "last"])
        self.iterate()
        self.net.fails_backward = None
        self.say(fault="backward")

    def interrupt(self) -> None:
        self.iterate(3, alarm=self.rng.uniform(1e-6, 3e-3))

    def pause(self) -> None:
        self.net.truth.disturbed = True
        self.watch.pause()
        self.paused = True
        for _ in range(self.rng.randrange(20)):
            self.iterate()
        self.watch.resume()
        self.paused = False
        self.net.truth.disturbed = True
        self.say(fault="pause")

    def close_and_watch(self) -> None:
        """Close the watch, sometimes with an interrupt on the way, and begin another one."""
        number = self._number()
        try:
            if self.rng.random() < 0.5:
                self.alarm.set(self.rng.uniform(1e-5, 2e-2))
            self._close()
            self.alarm.off()
        except KeyboardInterrupt:
            self._close()
        self._free_disk()
        self.net.truth = Truth()  # the open step is discarded
        self.watch = self._watch(number)
        self.say(fault="close")

    def save(self) -> None:
        about = {"model": self.net.state_dict(), "watch": self.watch.state_dict()}
        temporary = self.checkpoint.with_suffix(".new")
        torch.save(about, temporary)
        temporary.replace(self.checkpoint)
        self.say(fault="save")

    def go_back(self) -> None:
        """Return to the last checkpoint, as after a loss that exploded."""
        if self.checkpoint.exists():
            self.watch.load_state_dict(self._load())
            self.net.truth = Truth()
            self.net.truth.disturbed = True  # what the open step had stays in it
            self.say(back=self._number())

    def _load(self) -> Any:
        about = torch.load(self.checkpoint)
        self.net.load_state_dict(about["model"])
        self.resumed = about["watch"]
        return self.resumed

    def fill_disk(self) -> None:
        """Fill the disk to the last byte, or give it room again."""
        if self.filler.exists():
            self._free_disk()
            return
        self.say(fault="full")
        with suppress(OSError), self.filler.open("wb", buffering=0) as file:
            for block in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while file.write(bytes(block)) == block:
                        pass

    def _free_disk(self) -> None:
        if self.filler.exists():
            self.filler.unlink()
            self.say(fault="freed")

    def slow_disk(self) -> None:
        self.slow = 0.0 if self.slow else self.rng.uniform(0.05, 0.5)
        self.say(fault="slow")

    def change_directory(self) -> None:
        """Go to another directory, which may be gone; `out` is relative to the one before."""
        other, gone = self.room / "other", self.room / "gone"
        for path in (other, gone):
            path.mkdir(exist_ok=True)
        os.chdir(self.rng.choice([self.room, other, gone]))
        gone.rmdir()
        self.say(fault="chdir")

    def lose_stderr(self) -> None:
        """Close stderr, as with a log that is rotated, or open it again."""
        if sys.stderr.closed:
            sys.stderr = nowhere()
        else:
            sys.stderr.close()
        self.say(fault="stderr")

    def replace_run(self) -> None:
        """Move the run away, or remove it, and have another watch, or another process, begin one in
        its place. The old watch, which goes on, loses its steps, and says so."""
        self._free_disk()
        self.slow = 0.0
        aside = self.disk / f"run-{len(list(self.disk.glob('run-*')))}"
        self.say(fault="replace", aside=aside.name)
        self.out.rename(aside)
        if self.rng.random() < 0.5:  # the checked run is a copy then
            moved = aside.rename(self.disk / "moved")
            shutil.copytree(moved, aside)
            shutil.rmtree(moved)
        old, log = self.watch, self.log
        with nowhere() as self.log:
            for _ in range(self.rng.randrange(1, 20)):
                self.iterate()
            if self.rng.random() < 0.5:
                stranger = begin(self.disk, self.room, STRANGERS_STEPS, self.rng.randrange(1 << 30))
                while stranger.is_alive():
                    self.iterate()
                assert stranger.exitcode == 0
        self.log = log
        self.watch = self._watch(self._number())
        for _ in range(self.rng.randrange(20)):
            self.iterate()
        old.close()
        told = old.coverage().failures
        assert any("another directory has taken the place" in why for why in told.values()), told

    def _make_disk_slow(self) -> None:
        """Have each fsync take `slow` seconds more; all else of the disk is real."""
        fsync = os.fsync

        def slowly(descriptor: int) -> None:
            time.sleep(self.slow)
            fsync(descriptor)

        files.os.fsync = slowly  # type: ignore[attr-defined]

    def _turn_clock_back(self) -> None:
        """Have the wall clock that headers are dated with go backwards an hour at each look."""
        looks = iter(range(10**9))

        def now() -> str:
            moment = datetime.now(timezone.utc) - timedelta(hours=next(looks))
            return moment.isoformat(timespec="seconds")

        headers.now = now

    def _watch(self, number: int | None = None) -> Watch:
        os.chdir(self.room)
        w = hs.watch(
            self.net,
            self.optimizer,
            bins=hs.LinearBins(12, -3.0, 3.0),
            every=1,
            out=os.path.relpath(self.out),
            append=True,
            rules="default",
            sinks=[self._check],
        )
        self.paused = False
        if number is not None:
            w.load_state_dict({**w.state_dict(), "step": number})
        elif self.checkpoint.exists():
            w.load_state_dict(self.resumed)
        self.say(back=int(w.state_dict()["step"]), begun=True)
        return w

    def _check(self, record: hs.StepRecord) -> None:
        """What holds of every record, whatever happened: calls are whole."""
        self.given += 1
        time.sleep(self.slow / 100)
        whole = record.whole
        total = whole.count + whole.nan + whole.posinf + whole.neginf
        for site, calls, elements in zip(
            record.sites, record.observed.tolist(), total.tolist(), strict=True
        ):
            expected = calls
            for size in site.shape:
                expected *= size
            if expected != elements:
                raise AssertionError(f"{site} in {calls} calls: {elements} elements")

    def _close(self) -> None:
        w = self.watch
        w.close()
        coverage = w.coverage()
        for row in coverage:
            assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
        disabled = [f"{row.kind} of {row.name}: {row.error}" for row in coverage if row.error]
        self.say(closed=True, failures=coverage.failures, disabled=disabled, steps=coverage.steps)

    def sample(self) -> None:
        status = Path("/proc/self/status").read_text().splitlines()
        about = dict(line.split(":", 1) for line in status)
        self.say(
            sample=self.done,
            resident=int(about["VmRSS"].split()[0]) * 1024,
            threads=threading.active_count(),
            handles=handles() - self.inherited,
            parts=len(list((self.out / "tensors").iterdir())),
            process=os.getpid(),
        )


def warm_up(directory: Path) -> None:
    """Do all that is done for the first time, which has 60 MiB of modules loaded, before memory is
    looked at."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    with hs.watch(net, optimizer, out=directory, rules="default", sinks=[lambda record: None]):
        for _ in range(100):
            optimizer.zero_grad()
            net(torch.randn(BATCH, 5)).square().mean().backward()
            optimizer.step()


def handles() -> int:
    """How many the process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def nowhere() -> TextIOWrapper:
    """A file that forgets what is written."""
    return Path(os.devnull).open("w")


def begin(disk: Path, room: Path, steps: int, seed: int) -> BaseProcess:
    """A session, begun: a process that need not import everything again."""
    fork = multiprocessing.get_context("fork")
    made = fork.Process(target=main, args=(disk, room, steps, seed))
    made.start()
    return made


def main(disk: Path, room: Path, steps: int, seed: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with who began it
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    # Alerts and a full disk warn; everything else is an error.
    warnings.simplefilter("error")
    warnings.filterwarnings("always", message="hookstats: ", category=RuntimeWarning)
    warnings.filterwarnings("always", category=RuleWarning)
    sys.stderr = nowhere()
    try:
        with tempfile.TemporaryDirectory(dir=room) as directory:
            warm_up(Path(directory))
        Session(disk, room, seed).run(steps)
    finally:
        sys.stderr = sys.__stderr__  # an error is shown
