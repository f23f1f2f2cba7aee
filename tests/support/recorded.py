"""train(): a short training run whose records go to a sink."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch


def train(sink: Any, steps: int = 4) -> list[StepRecord]:
    """Train a small network, watched; the records that went to `sink`."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records: list[StepRecord] = []
    with watch(model, optimizer, sinks=(sink, records.append)) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()
    assert w.coverage().failures == {}
    return records
