"""What training pays for a sink or a disk that is slow, or that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from support.modules import network

from hookstats.records.record import StepRecord
from hookstats.runs import files
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def test_a_slow_sink_holds_no_step_up() -> None:
    model = network()
    go_on = threading.Event()
    with watch(model, kinds=("output",), sinks=[lambda record: go_on.wait() and None]) as w:
        for _ in range(20):
            model(torch.randn(2, 3))
            w.step()
        go_on.set()
        coverage = w.coverage()
        assert coverage.steps == 20
        assert coverage.stalls == 0
        assert coverage["0", "output"].observed == 20
        assert w.latest.step == 19


def test_a_disk_that_hangs_holds_neither_readers_nor_close_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    sync = os.fsync

    def hanging(descriptor: int) -> None:
        assert go_on.wait(60)
        sync(descriptor)

    model = network()
    w = watch(model, kinds=("output",), out=tmp_path, rules=())

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.randn(2, 3))
            w.step()

    def wait() -> None:
        w._recorder.drain()
        assert w.latest.step <= 2
        w.close()
        w.close()

    train(1)
    assert w.latest.step == 0
    thread = w._recorder._thread
    assert thread is not None
    w._recorder.disk_patience = 0.3
    monkeypatch.setattr(files.os, "fsync", hanging)
    train(2)
    began = time.monotonic()
    with pytest.warns(RuntimeWarning, match="no progress in 0.3 s") as warned:
        wait()
    assert time.monotonic() - began < 20
    assert len(warned) == 1
    assert "waiting for the disk" in w.coverage().failures
    go_on.set()  # the disk comes back: all that waited is written
    thread.join(20)
    run = open_run(tmp_path)
    assert run.steps == [0, 1, 2]
    assert run.coverage is not None


@pytest.mark.check
def test_a_disk_that_hangs_holds_no_exit_up(tmp_path: Path) -> None:
    script = """
import os, sys, time, warnings
import torch, hookstats as hs

warnings.simplefilter("ignore")
model = torch.nn.Linear(3, 2)
w = hs.watch(model, kinds=("output",), out=sys.argv[1])
w._recorder.disk_patience = 0.5
os.fsync = lambda descriptor: time.sleep(1000)
for _ in range(3):
    model(torch.randn(2, 3))
    w.step()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    subprocess.run(command, check=True, timeout=120)


def test_a_disk_that_hangs_costs_steps_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go_on = threading.Event(), threading.Event()
    write = RunWriter.write

    def hanging(self: RunWriter, record: StepRecord) -> None:
        hangs.set()
        assert go_on.wait(20)
        write(self, record)

    monkeypatch.setattr(RunWriter, "write", hanging)
    model = network()
    with (
        warnings.catch_warnings(record=True) as warned,
        watch(model, kinds=("output",), out=tmp_path, rules=()) as w,
    ):
        warnings.simplefilter("always")
        monkeypatch.setattr("hookstats.watching.recorder.MOST_WAITING", 2)
        w._buffers.patience = w._recorder.patience = 0.2
        for step in range(9):
            if step == 8:
                go_on.set()
                assert w.latest.step < 8  # waits until the steps before are written
            model(torch.randn(2, 3))
            w.log(loss=step)
            w.step()
            assert hangs.wait(20)
        assert w.coverage().steps == 9
    (warning,) = warned
    assert "keeping up failed: no step was taken for 0.2 s" in str(warning.message)
    run = open_run(tmp_path)
    assert {*run.steps, *run.gaps} == set(range(9))
    assert set(run.gaps.values()) == {"stall"}
    assert run.steps[-1] == 8
    loss = run.scalars["loss"]  # of all steps: of those that were lost, too
    assert loss.steps.tolist() == loss.values.tolist() == [*range(9)]
    assert (run[8]["0", "output"].count == 2).all()  # nothing of the steps that were lost
