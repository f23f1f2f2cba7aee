"""Rules that look at a stored run: its records, and what was logged between them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from support.commands import call
from support.payloads import payload_of
from support.samples import BINS, record_of
from torch import nn

import hookstats as hs
from hookstats.records.record import StepRecord
from hookstats.rules import Loss, replay
from hookstats.rules.replaying import Replay
from hookstats.runs.writer import RunWriter
from hookstats.show import page
from hookstats.show.overview import overview


def record(step: int) -> StepRecord:
    return record_of({("a", "output"): (torch.ones(2, 2), 1)}, step, channel_bins=None)


def test_a_loss_between_recorded_steps_is_found_by_all_that_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rules = Loss(action=lambda alert: None)
    out = tmp_path / "run"
    with hs.watch(model, optimizer, every=10, out=out, rules=rules) as w:
        for step in range(64):
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
            w.log(loss=math.nan if step == 57 else 1 / (step + 1))
    run = hs.open_run(out)
    assert 57 not in run.steps
    (alert,) = run.alerts
    assert (alert.step, alert.site) == (57, "loss")
    assert [one.message for one in replay(run, "loss")] == [alert.message]
    for steps, many in ((None, 1), ((50, 57), 1), ((50, 56), 0)):
        packed = payload_of(page.render(run, "loss", steps))
        assert [one["step"] for one in packed["alerts"]] == [57] * many
        assert packed["alerts"] == payload_of(page.render(run, None, steps))["alerts"]
    # The step after it stands for it, and is not merged.
    monkeypatch.setattr(page, "overview", partial(overview, cells=2))
    spans = payload_of(page.render(run))["spans"]
    after = min(step for step in run.steps if step > 57)
    assert [after, after, 1] in spans
    assert len(spans) < len(run.steps)
    assert alert.message in call("top", out, "--rules", "loss").out
    assert alert.message in call("show", out, "--rules", "loss").out


def test_scalars_count_once_in_a_run_that_grows(tmp_path: Path) -> None:
    """They are stored after the record of their step, before it, and without one."""
    header = {"bins": BINS, "channel_bins": None}
    writer = RunWriter(tmp_path / "run", header, seconds_per_part=0)
    run = hs.open_run(tmp_path / "run")
    found = Replay(run, "loss")
    losses = found.monitor._history.scalars

    def go_on(*steps: int) -> list[float]:
        found.look()
        for step in steps:
            found.examine(run[step])
        found.finish()
        return losses["loss"]

    writer.write(record(0))
    assert go_on(0) == []
    for step in (0, 1, 2):
        writer.write_scalars(step, 0.0, {"loss": float(step)})
    assert go_on() == [0, 1, 2]
    for step in (2, 4):
        writer.write(record(step))
    for step in (3, 4):
        writer.write_scalars(step, 0.0, {"loss": float(step)})
    assert go_on(2, 4) == go_on() == [0, 1, 2, 3, 4]
    writer.close()


def test_a_replay_that_begins_late_leaves_out_what_was_before(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {"bins": BINS, "channel_bins": None})
    for step in range(6):
        if step % 2:
            writer.write(record(step))
        writer.write_scalars(step, 0.0, {"loss": math.nan if step in (2, 4) else 1.0})
    writer.close()
    run = hs.open_run(tmp_path / "run")
    assert [alert.step for alert in replay(run, Loss(every=1))] == [2, 4]
    found = Replay(run, Loss(every=1))
    found.skip(3)
    found.look()
    found.examine(run[5])
    found.finish()
    assert [alert.step for alert in found.monitor.alerts] == [4]
