"""What training pays for a sink or a disk that is slow, or that hangs."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch
from support.modules import network

from hookstats.arena import arena
from hookstats.records.record import StepRecord
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


def test_a_disk_that_hangs_costs_steps_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "MOST_AHEAD", 2)
    monkeypatch.setattr(arena, "PATIENCE", 0.2)
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
        watch(model, kinds=("output",), out=tmp_path) as w,
    ):
        warnings.simplefilter("always")
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
