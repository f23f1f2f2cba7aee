"""An interrupt or an error while a step closes: the step is closed, lost, or stays open under its
own number."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support.interrupts import Interrupt
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.watching.watch import watch

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_checkpoints"),
    # What is lost is warned of.
    pytest.mark.filterwarnings("ignore:hookstats:RuntimeWarning"),
]


@pytest.fixture
def no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nothing has loaded them: else each step looks for their functions on the stack, and
    takes as many lines as the stack is deep."""
    monkeypatch.delitem(sys.modules, "torch.distributed.checkpoint.state_dict", raising=False)


WHOLE = {0: 1.0, 1: 10.0, 2: 100.0}


class Trained(NamedTuple):
    interruption: Interrupt
    step: int
    """The one that was open then."""
    sums: dict[int, float]
    """Of the recorded outputs, by step: iteration i adds 10**i."""
    gaps: dict[int, str]
    failures: dict[str, str]


def train(
    at: int, out: Path | None = None, error: type[BaseException] = KeyboardInterrupt
) -> Trained:
    """Train three iterations; in the second, raise at line `at` of those that close its step."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    records: list[StepRecord] = []
    kinds = ("output", "param_grad")
    w = watch(model, optimizer, kinds=kinds, sinks=[records.append], rules=(), out=out)
    w._log._handed_on = math.inf  # nothing is done because time has passed

    def forward(i: int) -> None:
        optimizer.zero_grad()
        model(torch.full((1, 1), 10.0**i)).sum().backward()

    forward(0)
    optimizer.step()
    assert w.latest.step == 0  # read out: what is interrupted is the close alone
    forward(1)
    with Interrupt(at, error) as interruption:
        optimizer.step()
    step = w._step
    forward(2)
    optimizer.step()
    w.log(loss=2)
    w.close()
    sums = {}
    assert len({record.step for record in records}) == len(records)
    for record in records:
        whole = record["", "output"].per_tensor()
        sums[record.step] = float(whole.mean * whole.count)
    gaps = {}
    if out is not None:
        run = open_run(out)
        assert run.steps == sorted(sums)
        assert run.scalars["loss"].steps.tolist() == [max(sums)]
        gaps = run.gaps
    return Trained(interruption, step, sums, gaps, w.coverage().failures)


def test_an_interrupt_at_a_sample_of_lines_mixes_no_two_steps() -> None:
    interrupts_at(11)


@pytest.mark.check
def test_an_interrupt_at_any_line_mixes_no_two_steps() -> None:
    interrupts_at(1)


def interrupts_at(every: int) -> None:
    undisturbed = train(0)
    assert undisturbed[1:] == (2, WHOLE, {}, {})
    outcomes = set()
    for at in range(1, undisturbed.interruption.lines + 1)[::every]:
        trained = train(at)
        assert trained.interruption.reached
        if trained.step == 1:  # open: what follows is of the same step
            assert trained.sums == {0: 1.0, 1: 110.0}, at
        else:  # closed
            assert trained.sums == WHOLE, at
        outcomes.add(trained.step)
    assert outcomes == {1, 2}


def test_an_error_at_a_sample_of_lines_is_a_gap(tmp_path: Path) -> None:
    errors_at(23, tmp_path)


@pytest.mark.full
def test_an_error_at_any_line_is_a_gap(tmp_path: Path) -> None:
    errors_at(1, tmp_path)


def errors_at(every: int, scratch: Path) -> None:
    """It ends no training, but for the lines before the close, which ask for no memory."""
    lines = range(1, train(0, None, MemoryError).interruption.lines + 1)[::every]
    lost, ended = 0, set[str]()
    for at in lines:
        trained = train(at, scratch / str(at), MemoryError)
        where = trained.interruption.where
        if trained.interruption.reached:
            ended.add(where)
        elif "closing a step" not in trained.failures:
            assert trained.sums == WHOLE, where
        else:
            assert trained.step == 2, where
            assert trained.sums | {1: 10.0} == WHOLE, where
            assert trained.gaps == dict.fromkeys({1} - trained.sums.keys(), "error"), where
            lost += len(trained.gaps)
    assert lost > len(lines) // 4
    assert len(ended) < len(lines) // 2
    assert not any("scalars.py" in where or "snapshot.py" in where for where in ended)
