"""channels="incidents": which steps keep their channels on the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, assert_same, sample
from torch import nn

from hookstats import open_run, watch
from hookstats.records.alerts import Alert, Severity
from hookstats.rules import NonFinite, replay
from hookstats.runs import kept_channels
from hookstats.runs.alerts import AlertEntry
from hookstats.runs.writer import RunWriter
from hookstats.show.overview import overview
from hookstats.show.sampled import sampled

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS, "channels": "incidents"}
RECORD = sample()


def told(step: int, severity: Severity = "error", cause: bool = True) -> AlertEntry:
    alert = Alert(step, 0, "whole", "param_grad", None, "non-finite", 1.0, "a message", severity)
    return AlertEntry(alert, 0, cause, {})


def kept(out: Path, steps: range, incidents: dict[int, AlertEntry], late: int = 0) -> list[int]:
    """The steps with channels; rules tell of an incident `late` steps after it."""
    writer = RunWriter(out, HEADER, seconds_per_part=0)
    for step in steps:
        writer.write(replace(RECORD, step=step))
        found = incidents.get(step - late * steps.step)
        if found is not None:
            writer.write_alerts([found])
    writer.close()
    run = open_run(out)
    assert run.steps == list(steps)
    for step in run:
        with_channels = step in run.steps_with_channels
        expected = RECORD if with_channels else RECORD.without_channels()
        assert_same(run[step], replace(expected, step=step))
        assert run[step].dead.tolist() == RECORD.dead.tolist()
    return run.steps_with_channels


def test_the_first_and_one_of_sixteen(tmp_path: Path) -> None:
    assert kept(tmp_path / "a", range(40), {}) == [*range(8), 16, 32]
    assert kept(tmp_path / "b", range(0, 400, 10), {}) == [*range(0, 80, 10), 160, 320]


@pytest.mark.parametrize("late", [0, 7, pytest.param(1, marks=pytest.mark.check)])
def test_the_steps_around_an_incident(tmp_path: Path, late: int) -> None:
    around = [*range(8), 16, *range(36, 51), 64]
    found = kept(tmp_path, range(70), {40: told(40)}, late)
    assert sorted({*found, 32, 48}) == sorted({*around, 32, 48})


def test_notes_and_consequences_are_no_incidents(tmp_path: Path) -> None:
    quiet = {20: told(20, "note"), 24: told(24, cause=False)}
    assert kept(tmp_path, range(40), quiet) == [*range(8), 16, 32]


def test_what_waits_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RECORD.channels is not None
    monkeypatch.setattr(kept_channels, "MOST_BYTES", 2 * RECORD.channels.nbytes)
    found = kept(tmp_path, range(70), {40: told(40)})
    assert [step for step in found if 32 < step <= 40] == [39, 40]


@pytest.mark.parametrize(("channels", "steps"), [("always", [0, 1, 2]), ("never", [])])
def test_always_and_never(tmp_path: Path, channels: str, steps: list[int]) -> None:
    model = nn.Linear(2, 2)
    with watch(model, out=tmp_path, channels=channels) as w:
        for _ in range(3):
            model(torch.ones(1, 2))
            w.step()
    run = open_run(tmp_path)
    assert run.steps_with_channels == steps
    assert run.table(channels=True).num_rows == len(steps) * sum(s.channels for s in run[0].sites)
    view = overview(run)
    assert (view.dead >= 0).all()
    assert len(sampled(run, view).steps) == 3


def test_a_step_back_does_not_bring_channels_of_before(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=3600)
    for step in (*range(30), *range(20, 40)):
        writer.write(replace(RECORD, step=step))
    writer.write_alerts([told(21)])
    writer.close()
    found = open_run(tmp_path).steps_with_channels
    assert [step for step in found if step > 8] == [16, *range(20, 32), 32]


def test_a_wrong_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="channels = 'some': expected 'incidents', 'always', 'nev"):
        watch(nn.Linear(2, 2), channels="some")


def test_rules_see_all_channels_and_a_run_has_those_around_what_they_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    rules = [NonFinite(action=lambda alert: None)]
    with watch(model, out=tmp_path, kinds=["output"], rules=rules) as w:
        for step in range(60):
            x = torch.randn(4, 3)
            model(x * torch.nan if step == 40 else x)
            w.step()
    run = open_run(tmp_path)
    found = run.steps_with_channels
    assert set(found) >= {*range(36, 51)}
    assert [alert.step for alert in run.alerts] == [40]
    replayed = replay(run, rules=[NonFinite(action=lambda alert: None)])
    assert [alert.step for alert in replayed] == [40]
    site = run["1", "output"]["1", "output"]
    assert site.channels.steps.tolist() == found
    assert site.channels.mean.shape == (len(found), 4)
