"""Sinks that fail, once or always: nothing that passes ends one, and the run says what failed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.stats import retries
from hookstats.watching.watch import watch

TRIES = 3


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "TRIES", TRIES)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 8)


class Fails:
    """A sink that takes records and scalars, and fails in one of these at some steps."""

    def __init__(self, part: str, error: type[BaseException], at: range) -> None:
        self.part, self.error, self.at = part, error, at
        self.taken: dict[str, list[int]] = {"records": [], "scalars": []}
        self.tries = self.closed = 0

    def take(self, part: str, step: int) -> None:
        self.tries += part == self.part
        if part == self.part and step in self.at:
            raise self.error("injected")
        self.taken[part].append(step)

    def __call__(self, record: StepRecord) -> None:
        self.take("records", record.step)

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        self.take("scalars", step)

    def close(self) -> None:
        self.closed += 1


def train(steps: int, **options: Any) -> list[str]:
    """Train with a watch, and close it; the warnings."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        w = watch(model, optimizer, rules=(), **options)
        for _ in range(steps):
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
        w.close()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("part", ["records", "scalars"])
@pytest.mark.parametrize("error", [MemoryError, ZeroDivisionError])
def test_an_error_that_passes_leaves_a_few_steps_out(
    part: str, error: type[Exception], tmp_path: Path
) -> None:
    sink = Fails(part, error, range(8, 9))
    told = train(20, sinks=[sink], out=tmp_path)
    assert f"failed: {error.__name__}: injected; it is called again at later steps" in told[0]
    assert "works again; calls that it missed: 2" in told[1]
    assert len(told) == 2
    (other,) = {"records", "scalars"} - {part}
    assert sink.taken[part] == [*range(8), *range(10, 20)]
    assert sink.taken[other] == [*range(20)]
    assert sink.closed == 1
    (why,) = open_run(tmp_path).coverage["failures"].values()
    assert why == f"{error.__name__}: injected; 2 calls missed; it works again"
