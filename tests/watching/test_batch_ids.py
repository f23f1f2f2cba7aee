"""Watch.log_batch: which samples steps had, in runs, `show` and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import call
from support.payloads import payload_of
from torch import nn
from torch.optim import SGD

import hookstats as hs
from hookstats.runs.writer import RunWriter
from hookstats.show.page import render


def train(out: Path, batches: list[list[Any]], bad: int = -1) -> hs.Run:
    """A training whose steps have these ids, by micro-batch."""
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, out=out) as w:
        for step, micro_batches in enumerate(batches):
            for ids in micro_batches:
                w.log_batch(ids)
                x = torch.randn(4, 4) * (torch.nan if step == bad else 1.0)
                model(x).square().mean().backward()
            optimizer.step()
            w.log(loss=1.0)
            optimizer.zero_grad()
    return hs.open_run(out)


def test_a_step_has_the_ids_of_its_micro_batches(tmp_path: Path) -> None:
    batches = [
        [torch.tensor([3, 1]), [np.int64(4), torch.tensor(5)]],
        ["shard-0.tar", Path("a/b.npz")],
        [],
        [np.arange(4).reshape(2, 2), 9, ("x", 10)],
    ]
    run = train(tmp_path, batches)
    expected = {0: [3, 1, 4, 5], 1: ["shard-0.tar", "a/b.npz"], 3: [0, 1, 2, 3, 9, "x", 10]}
    assert run.scalars.samples() == expected
    assert "samples" not in run.scalars
    assert run.scalars["loss"].steps.tolist() == [0, 1, 2, 3]
    assert call("merge", str(tmp_path), "-o", str(tmp_path / "merged")).code == 0
    assert hs.open_run(tmp_path / "merged").scalars.samples() == expected


def test_show_and_the_page_name_the_samples_of_an_incident(tmp_path: Path) -> None:
    with pytest.warns(hs.rules.RuleWarning):
        run = train(tmp_path, [[[step, "<b>"]] for step in range(4)], bad=2)
    assert "; samples of step 2: 2, <b>" in call("show", str(tmp_path)).out
    (incident,) = payload_of(render(run))["incidents"]
    assert incident["samples"] == "samples of step 2: 2, <b>"


def test_ids_are_bounded(tmp_path: Path) -> None:
    *some, last = train(tmp_path, [[range(100_000)]]).scalars.samples()[0]
    assert some == list(range(len(some)))
    assert last == f"and {100_000 - len(some)} more"
    assert len("".join(map(str, some))) < 4096


def test_ids_of_ranks_come_together(tmp_path: Path) -> None:
    for rank in range(2):
        writer = RunWriter(tmp_path, {}, rank=rank)
        writer.write_scalars(0, 0.0, {"loss": 1.0}, [rank, "a"])
        writer.close()
    assert hs.open_run(tmp_path).scalars.samples() == {0: [0, "a", 1, "a"]}


@pytest.mark.parametrize(
    "ids", [None, 0.5, [1.5], [[1]], torch.ones(2), torch.ones(2, device="meta")]
)
def test_other_ids_are_refused(ids: Any) -> None:
    with hs.watch(nn.Linear(4, 2)) as w, pytest.raises(ValueError, match="ids = "):
        w.log_batch(ids)


@pytest.mark.parametrize("late", [True, False])
def test_ids_that_come_after_their_step_are_said(
    late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        for step in range(3):
            if not late:
                w.log_batch(step)
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            if late:
                w.log_batch(step)
    assert caplog.text.count("log_batch: step 0 was closed without samples") == late
