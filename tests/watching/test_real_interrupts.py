"""Real signals at random moments of optimizer.step(), while training reads its steps out itself:
what was closed is recorded, once, and as it was."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from statistics import median

import pytest
import torch
from support.interrupts import Alarm
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("one_thread", "no_collections", "hooks_in")

ROUNDS, INTERRUPTS = 8, 80


class Training:
    """A training run whose flush thread is held up; iteration i adds i to the sum of its step."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.go_on = threading.Event()
        self.sums: dict[int, float] = {}
        self.expected: dict[int, float] = defaultdict(float)
        self.iterations = 0
        self.alarm = Alarm()
        self.watch = watch(self.model, self.optimizer, kinds=("output",), sinks=[self.record])

    def record(self, record: StepRecord) -> None:
        self.go_on.wait()
        whole = record["", "output"].per_tensor()
        assert record.step not in self.sums
        self.sums[record.step] = float(whole.mean * whole.count)

    def iterate(self, alarm: float | None = None) -> bool:
        """Whether an interrupt ended optimizer.step(); `alarm` says after how many seconds."""
        number = self.watch.open_step
        self.iterations += 1
        self.model(torch.full((1, 1), float(self.iterations)))
        self.expected[number] += self.iterations
        try:
            if alarm is not None:
                self.alarm.set(alarm)
            self.optimizer.step()
            self.alarm.off()
        except KeyboardInterrupt:
            torch.set_grad_enabled(True)  # which torch's optimizers may leave off
            return True
        return False

    def seconds(self) -> float:
        """How long optimizer.step() takes."""
        took = []
        for _ in range(9):
            began = time.perf_counter()
            self.iterate()
            took.append(time.perf_counter() - began)
        return median(took)

    def read(self) -> None:
        """Let the flush thread do all that waits for it."""
        self.go_on.set()
        assert self.watch.latest is not None
        self.go_on.clear()


def test_real_interrupts_lose_no_step_that_was_closed() -> None:
    rng = random.Random(0)
    training = Training()
    interrupts = 0
    for _ in range(ROUNDS):
        usual = training.seconds()
        for _ in range(INTERRUPTS):
            interrupts += training.iterate(rng.uniform(1e-6, usual))
        training.iterate()
        training.read()
    training.watch.close()
    assert interrupts > ROUNDS * INTERRUPTS // 2
    assert training.sums == training.expected
