"""An interrupt while a step closes: the step is closed, or stays open under its own number."""

from __future__ import annotations

import pytest
import torch
from support.interrupts import Interrupt
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("one_thread")


def train(at: int) -> tuple[int, int, dict[int, float]]:
    """Train three iterations; in the second, raise at line `at` of those that close its step.

    Returns the number of these lines, that of the step which was open then, and the sum of the
    recorded outputs by step: iteration i adds 10**i.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    records: list[StepRecord] = []
    w = watch(model, optimizer, ("output", "param_grad"), sinks=[records.append], rules=())

    def forward(i: int) -> None:
        optimizer.zero_grad()
        model(torch.full((1, 1), 10.0**i)).sum().backward()

    forward(0)
    optimizer.step()
    assert w.latest.step == 0  # read out: what is interrupted is the close alone
    forward(1)
    with Interrupt(at, KeyboardInterrupt) as interruption:
        optimizer.step()
    assert interruption.reached == (at > 0)
    number = w._step
    forward(2)
    optimizer.step()
    w.close()
    sums = {}
    assert len({record.step for record in records}) == len(records)
    for record in records:
        whole = record["", "output"].per_tensor()
        sums[record.step] = float(whole.mean * whole.count)
    return interruption.lines, number, sums


def test_an_interrupt_mixes_no_two_steps() -> None:
    lines, *undisturbed = train(0)
    assert undisturbed == [2, {0: 1.0, 1: 10.0, 2: 100.0}]
    outcomes = set()
    for at in range(1, lines + 1):
        _, number, sums = train(at)
        if number == 1:  # open: what follows is of the same step
            assert sums == {0: 1.0, 1: 110.0}, at
        else:  # closed
            assert sums == {0: 1.0, 1: 10.0, 2: 100.0}, at
        outcomes.add(number)
    assert outcomes == {1, 2}
