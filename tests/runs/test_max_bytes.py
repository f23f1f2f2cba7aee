"""max_bytes: a run directory never holds more, and says what it gave up for that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, assert_same, sample
from torch import nn

from hookstats import open_run, watch
from hookstats.records.alerts import Alert, Severity
from hookstats.records.record import StepRecord
from hookstats.rules import NonFinite
from hookstats.runs.alerts import AlertEntry
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}
SAMPLE = sample()


def record(step: int) -> StepRecord:
    """The same statistics in every step."""
    return replace(SAMPLE, step=step)


def size(out: Path) -> int:
    return sum(
        path.stat().st_size
        for folder in ("tensors", "channels")
        for path in (out / folder).iterdir()
    )


def writer_of(out: Path, max_bytes: int | None, **kwargs: Any) -> RunWriter:
    return RunWriter(out, HEADER, max_bytes=max_bytes, seconds_per_part=0, **kwargs)


@pytest.fixture(scope="module")
def part_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The size of a part with one step."""
    out = tmp_path_factory.mktemp("one")
    writer_of(out, None).write(record(0))
    return size(out)


def test_old_steps_are_thinned_evenly_and_new_ones_kept(tmp_path: Path, part_bytes: int) -> None:
    limit = int(32.5 * part_bytes)
    writer = writer_of(tmp_path, limit)
    run = open_run(tmp_path)
    for step in range(200):
        writer.write(record(step))
    assert size(tmp_path) <= limit
    steps = np.array(run.steps)
    assert 30 <= len(steps) <= 32
    assert steps[0] == 0
    assert steps[-8:].tolist() == list(range(192, 200))  # a quarter of 32
    # 192 older steps in 24 places: every eighth; nearest to now some of those to go next.
    gaps = np.diff(steps[steps < 192])
    assert set(gaps.tolist()) <= {4, 8, 16}
    assert run.thinned == 200 - len(steps)
    assert json.loads((tmp_path / "run-00000.json").read_text())["thinned"] == 200 - len(steps)
    writer.close()
    assert json.loads((tmp_path / "run-00000.json").read_text())["thinned"] == run.thinned
    assert run.table().column("step").unique().to_pylist() == run.steps
    assert run["whole", "*"].steps.tolist() == run.steps
    assert_same(run[199], record(199))


def test_what_is_said_names_the_run_as_people_type_it(
    tmp_path: Path,
    part_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    writer = writer_of(tmp_path / "runs" / "a", 8 * part_bytes, says=True)
    for step in range(20):
        writer.write(record(step))
    writer.close()
    takes, reached = capsys.readouterr().err.splitlines()
    assert takes.startswith("hookstats: runs/a takes about ")
    assert reached.startswith("hookstats: runs/a has reached ")


def told(step: int, severity: Severity = "error", cause: bool = True) -> AlertEntry:
    alert = Alert(step, 0, "whole", "param_grad", None, "non-finite", 1.0, "a message", severity)
    return AlertEntry(alert, 0, cause, {})


@pytest.mark.check
def test_steps_around_incidents_stay(tmp_path: Path, part_bytes: int) -> None:
    limit = int(64.5 * part_bytes)
    writer = writer_of(tmp_path, limit)
    for step in range(300):
        if step == 200:  # from here on another process goes on
            writer.close()
            writer = writer_of(tmp_path, limit, append=True)
        writer.write(record(step))
        if step in (50, 120):
            writer.write_alerts([told(step), told(step + 3, cause=False)])
        if step == 170:
            writer.write_alerts([told(step, "note")])
        assert size(tmp_path) <= limit
    steps = set(open_run(tmp_path).steps)
    assert steps >= set(range(110, 131))
    # Of the incident before, what half of the limit holds: 30 parts (scalars have some) less 21.
    assert steps >= set(range(46, 55))
    assert not steps >= set(range(40, 61))
    assert not steps >= set(range(165, 176))
    assert steps >= set(range(286, 300))


def test_a_watch_keeps_the_steps_around_what_its_rules_find(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    rules = [NonFinite(action=lambda alert: None)]
    settings: dict[str, Any] = {"kinds": ["output"], "bins": None, "rules": rules, "every": 1}
    with watch(model, out=tmp_path, max_bytes=400_000, **settings) as w:
        for step in range(120):
            x = torch.randn(2, 3)
            model(x * torch.nan if step == 40 else x)
            w.step()
            w._recorder.drain()  # a part a step
    run = open_run(tmp_path)
    assert size(tmp_path) <= 400_000
    assert run.thinned > 0
    assert set(run.steps) >= set(range(30, 51))
    assert [incident.step for incident in run.incidents] == [40]


@pytest.mark.parametrize("before", [None, 20 << 30])
def test_a_continued_run_keeps_its_wider_limit(tmp_path: Path, before: int | None) -> None:
    """So that nothing is deleted that was recorded to stay."""

    def limit_of(**settings: Any) -> Any:
        settings |= {"kinds": ["output"], "rules": (), "append": True}
        watch(nn.Linear(3, 4), out=tmp_path, **settings).close()
        return json.loads((tmp_path / "run-00000.json").read_text())["max_bytes"]

    assert limit_of(max_bytes=before) == before
    assert limit_of() == before
    assert limit_of(max_bytes=1 << 20) == 1 << 20
    assert limit_of() == 10 << 30


def test_a_continued_run_goes_on_counting(tmp_path: Path, part_bytes: int) -> None:
    for first in (0, 20, 40):
        writer = writer_of(tmp_path, 8 * part_bytes, append=True)
        for step in range(first, first + 20):
            writer.write(record(step))
        assert size(tmp_path) <= 8 * part_bytes
    run = open_run(tmp_path)
    assert run.thinned + len(run) == 60
    assert json.loads((tmp_path / "run-00000.json").read_text())["thinned"] == 60 - len(run)


@pytest.mark.check
def test_what_was_void_stays_void_when_it_is_thinned(tmp_path: Path, part_bytes: int) -> None:
    writer = writer_of(tmp_path, 10 * part_bytes)
    for step in (*range(40), *range(33, 60)):
        writer.write(record(step))
        steps = open_run(tmp_path).steps
        assert steps == sorted(set(steps))
        assert steps[-1] == step
    writer.close()
    assert open_run(tmp_path).steps[0] == 0


def test_each_rank_has_its_own(tmp_path: Path, part_bytes: int) -> None:
    for rank, limit in ((0, None), (1, 4 * part_bytes)):
        writer = writer_of(tmp_path, limit, rank=rank)
        for step in range(10):
            writer.write(replace(SAMPLE, step=step, rank=rank))
        writer.close()
    run = open_run(tmp_path)
    assert (run.of_rank(0).thinned, len(run)) == (0, 10)
    assert run.of_rank(1).thinned == 10 - len(run.of_rank(1).steps) >= 6


def test_a_reader_beside_sees_steps_go(tmp_path: Path, part_bytes: int) -> None:
    writer = writer_of(tmp_path, int(6.5 * part_bytes))
    for step in range(6):
        writer.write(record(step))
    run = open_run(tmp_path)
    assert run.steps == [0, 1, 2, 3, 4, 5]
    batches = run.batches()
    next(batches)
    for step in range(6, 20):
        writer.write(record(step))
    with pytest.raises(KeyError, match=r"step 1: .* has 6 steps"):
        run[1]
    assert [batch["step"][0].as_py() for batch in batches] == [4]  # of those it knew, what is left
    assert run[19].step == 19
