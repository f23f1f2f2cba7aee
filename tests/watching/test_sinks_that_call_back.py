"""A sink that calls the watch that calls it: nobody waits for ever, and training keeps its bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.modules import take_step
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

STEPS = 12
pytestmark = pytest.mark.filterwarnings("ignore:hookstats:RuntimeWarning")


def train(out: Path | None, back: Callable[[Watch], object] | None) -> tuple[bytes, Watch | None]:
    """The weights after twelve steps; the sink calls back after the third one."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(3, 4)
    for weight in model.parameters():
        nn.init.normal_(weight, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = None
    called = threading.Event()

    def sink(record: StepRecord) -> None:
        if record.step == 2:
            try:
                back(w)
            finally:
                called.set()

    if back is not None:
        w = watch(model, optimizer, out=out, sinks=(sink,))
    for step in range(STEPS):
        take_step(optimizer, model(torch.randn(5, 3, generator=generator)).square().sum())
        if w is not None and step == 5:
            assert called.wait(20)
    if w is not None:
        w.close()
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters()), w


CALLS: dict[str, Callable[[Any], object]] = {
    "latest": lambda w: w.latest,
    "alerts": lambda w: w.alerts,
    "incidents": lambda w: w.incidents,
    "coverage": lambda w: w.coverage(),
    "repr": repr,
    "log": lambda w: w.log(odd=1.0),
    "pause": lambda w: (w.pause(), w.resume()),
    "state": lambda w: w.load_state_dict(w.state_dict()),
    "set_step": lambda w: w.set_step(w.open_step),
    "step": lambda w: w.step(),
    "close": lambda w: w.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_sink_may_call_anything(name: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    expected, _ = train(None, None)
    weights, w = train(tmp_path / "run", CALLS[name])
    assert weights == expected
    assert w is not None
    for row in w.coverage():
        assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
    assert set(threading.enumerate()) <= before
    run = open_run(tmp_path / "run")
    assert run.closed
    if name not in ("close", "set_step", "state", "pause"):
        assert run.steps == list(range(STEPS))
    else:
        assert run.steps[:3] == [0, 1, 2]
