"""Real signals at random moments while updates and optimizer states are observed: training goes on
as it was, with autograd."""

from __future__ import annotations

import random
import time
from statistics import median
from typing import Any

import pytest
import torch
from support.interrupts import Alarm
from torch import nn

from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("one_thread", "no_collections", "hooks_in")

ROUNDS = 1500


class Moving(torch.optim.Optimizer):
    """Moves parameters without a look at autograd's mode, which torch's own may leave off."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        for p in self.param_groups[0]["params"]:
            self.state[p]["average"] = torch.zeros_like(p, requires_grad=False)

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.add_(1)


def seconds(optimizer: Moving) -> float:
    """How long a step takes."""
    took = []
    for _ in range(9):
        began = time.perf_counter()
        optimizer.step()
        took.append(time.perf_counter() - began)
    return median(took)


def test_an_interrupt_leaves_autograd_on() -> None:
    rng = random.Random(0)
    alarm = Alarm()
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = Moving(model.parameters())
    interrupts = 0
    with watch(model, optimizer, kinds=("update", "optimizer_state"), rules=()) as w:
        usual = seconds(optimizer)
        for _ in range(ROUNDS):
            try:
                alarm.set(rng.uniform(1e-6, usual))
                optimizer.step()
                alarm.off()
            except KeyboardInterrupt:
                interrupts += 1
            assert torch.is_grad_enabled()
        optimizer.step()
        assert w.latest is not None
    assert interrupts > ROUNDS // 4
