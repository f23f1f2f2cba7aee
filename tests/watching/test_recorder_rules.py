"""Rules on the recorder: slow ones lose nothing, and what they raise comes soon."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn

from hookstats.records.alerts import Alert
from hookstats.records.record import StepRecord
from hookstats.rules import NonFinite
from hookstats.rules.history import History
from hookstats.watching.watch import watch


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    model = nn.Linear(3, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()


class Slow(NonFinite):
    """Takes a while for each step."""

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        time.sleep(0.1)
        yield from ()


def test_slow_rules_lose_nothing() -> None:
    model = small()
    w = watch(*model, rules=[Slow()])
    w._recorder.patience = 0.5
    for _ in range(2):  # which the recorder begins with; those after it come together
        train_a_step(*model)
    assert w.alerts == ()
    for _ in range(12):
        train_a_step(*model)
    assert w.alerts == ()
    w.close()
    assert w._recorder.failures == {}
