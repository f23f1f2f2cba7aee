"""What a run keeps of the rules' alerts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookstats.records.alerts import Alert
from hookstats.rules import NonFinite, RuleWarning
from hookstats.runs.alerts import AlertEntry, AlertFile, read_alerts
from hookstats.runs.files import RunDirectory
from hookstats.runs.run import open_run
from hookstats.watching.watch import watch

ALERT = Alert(3, 0, "a", "output", 2, "peers", 1.5, "peers: step 3: output of 'a'", "warning")


def told(step: int, **changes: Any) -> AlertEntry:
    """An alert of a step."""
    return AlertEntry(
        Alert(**{**ALERT.__dict__, "step": step, **changes}), 0, True, {"octaves": 4.0}
    )


def test_alerts_come_back_as_they_were(tmp_path: Path) -> None:
    file = AlertFile(RunDirectory(tmp_path), 0)
    file.write([told(3), told(4, channel=None, value=float("inf"))])
    first, second = read_alerts(tmp_path, 0)
    assert first == ALERT
    assert (second.channel, second.step) == (None, 4)
    entry = json.loads((tmp_path / "alerts-00000.jsonl").read_text().splitlines()[0])
    assert entry["thresholds"] == {"octaves": 4.0}
    assert (entry["incident"], entry["cause"], entry["channels"]) == (0, True, [2])
    assert "rank" not in entry
    assert read_alerts(tmp_path, 1) == []
    AlertFile(RunDirectory(tmp_path), 1).write(
        [told(3), told(3, rank=None)]
    )  # of others than rank 1
    assert [alert.rank for alert in read_alerts(tmp_path, 1)] == [0, None]


def test_an_unfinished_line_is_left_out_and_then_cut_off(tmp_path: Path) -> None:
    AlertFile(RunDirectory(tmp_path), 0).write([told(3)])
    path = tmp_path / "alerts-00000.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 4, "ru')
    assert [alert.step for alert in read_alerts(tmp_path, 0)] == [3]
    AlertFile(RunDirectory(tmp_path), 0).write([told(5)])
    assert [alert.step for alert in read_alerts(tmp_path, 0)] == [3, 5]


def test_alerts_of_steps_that_are_void_are_void(tmp_path: Path) -> None:
    file = AlertFile(RunDirectory(tmp_path), 0)
    for step in (3, 4):
        file.at(step)
        file.write([told(step)])
    file.at(4)
    assert [alert.step for alert in read_alerts(tmp_path, 0)] == [3]
    continued = AlertFile(RunDirectory(tmp_path), 0)
    continued.at(2)
    continued.write([told(2)])
    assert [alert.step for alert in read_alerts(tmp_path, 0)] == [2]


def test_alerts_before_the_first_step_is_recorded_are_kept(tmp_path: Path) -> None:
    """Those about the graph of a loss come while the step is open."""
    for first, kept in ((0, [0]), (5, [0, 5]), (3, [0, 3])):
        file = AlertFile(RunDirectory(tmp_path), 0)
        file.write([told(first)])
        file.at(first)
        assert [alert.step for alert in read_alerts(tmp_path, 0)] == kept
    file.at(1)
    assert [alert.step for alert in read_alerts(tmp_path, 0)] == [0]


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    file = AlertFile(RunDirectory(gone), 0)
    gone.rename(tmp_path / "away")
    with pytest.raises(OSError, match="gone"):
        file.write([told(3)])
    (tmp_path / "away").rename(gone)
    file.write([told(4)])
    assert [alert.step for alert in read_alerts(gone, 0)] == [3, 4]


@pytest.mark.parametrize("line", ["[1]", "{", '{"step": 1}'])
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "alerts-00000.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"alerts-00000\.jsonl: damaged"):
        read_alerts(tmp_path, 0)


def test_a_run_has_the_alerts_of_its_rules(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, optimizer, out=tmp_path / "run", rules=NonFinite(every=7))
    for step in range(4):
        loss = model(torch.full((2, 3), torch.nan if step == 2 else 1.0)).square().mean()
        w.log(loss=loss)
        loss.backward()
        optimizer.step()
    with pytest.warns(RuleWarning, match="step 2: input of the model has 6 NaN"):
        w.close()
    run = open_run(tmp_path / "run")
    assert tuple(run.alerts) == w.alerts
    assert run.incidents == w.incidents
    assert [(one.step, one.severity) for one in run.incidents] == [(2, "error")]
    lines = (tmp_path / "run" / "alerts-00000.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["thresholds"] == {"patience": 1, "every": 7}


def test_alerts_of_several_ranks_are_of_one_incident(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), out=tmp_path):
        pass
    header = json.loads((tmp_path / "run-00000.json").read_text())
    (tmp_path / "run-00001.json").write_text(json.dumps({**header, "rank": 1}))
    AlertFile(RunDirectory(tmp_path), 0).write([told(7)])
    AlertFile(RunDirectory(tmp_path), 1).write([told(5, rank=1), told(6, rank=1)])
    run = open_run(tmp_path)
    assert [(alert.step, alert.rank) for alert in run.alerts] == [(5, 1), (6, 1), (7, 0)]
    (one,) = run.incidents
    assert [(alert.step, alert.rank) for alert in one.alerts] == [(5, 1), (6, 1)]  # once a tensor
    assert [alert.step for alert in run.of_rank(1).alerts] == [5, 6]
    # Of the whole model, where the ranks merge while they train: every rank has it.
    for rank in (0, 1):
        AlertFile(RunDirectory(tmp_path), rank).write([told(8, rank=None, value=float("nan"))])
    assert [(alert.step, alert.rank) for alert in run.alerts[3:]] == [(8, None)]


def test_the_rank_whose_input_is_bad_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        rules = NonFinite(action=lambda alert: None)
        with watch(model, optimizer, out=tmp_path, rules=rules):
            for step in range(8):
                x = torch.randn(4, 3)
                x[1, 2] = torch.nan if rank == 1 and step == 5 else 0.0
                model(x).sum().backward()
                if step == 5:  # as data parallelism adds the gradients of the ranks up
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.grad.fill_(torch.nan)
                optimizer.step()
                optimizer.zero_grad()
    run = open_run(tmp_path)
    assert run.ranks == [0, 1]
    (incident,) = run.incidents
    cause = incident.cause
    assert (cause.step, cause.rank, cause.site, cause.kind) == (5, 1, "", "input")
    assert cause.message.startswith("non-finite: step 5, rank 1: input of the model has 1 NaN")
    assert [(a.rank, a.kind) for a in incident.consequences] == [(0, "param_grad")]
