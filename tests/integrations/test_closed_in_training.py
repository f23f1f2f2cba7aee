"""A watch that the user closes in the middle of the training: the trainer goes on without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainers import fit_accelerate, fit_lightning, fit_transformers
from torch import Tensor, nn

from hookstats.integrations.shared import Numbering
from hookstats.runs.run import open_run
from hookstats.watching.watch import watch


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_steps_of_a_closed_watch_get_no_numbers() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, optimizer, rules=())
    assert not w.closed
    numbering = Numbering(w, optimizer)
    numbering.begin(5)
    assert w.open_step == 5
    w.close()
    assert w.closed
    numbering.begin(6)
    numbering.end(7)
    assert w.open_step == 5


@pytest.mark.check
@pytest.mark.filterwarnings("default")
def test_transformers(tmp_path: Path) -> None:
    plain = fit_transformers(tmp_path / "plain", [])
    from transformers import TrainerCallback

    from hookstats.integrations.transformers import WatchCallback

    ours = WatchCallback(out=tmp_path / "run")

    class Closes(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 2:
                assert ours.watch is not None
                ours.watch.close()

    watched = fit_transformers(tmp_path / "watched", [ours, Closes()])
    assert same(plain.model.state_dict(), watched.model.state_dict())
    run = open_run(tmp_path / "run")
    assert run.closed
    assert run.steps == [1, 2]
    logged = [entry for entry in watched.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 6]
    assert "hookstats/alerts" not in logged[-1]


@pytest.mark.check
@pytest.mark.filterwarnings("default")
def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    _, plain = fit_lightning(tmp_path / "plain", [])
    from hookstats.integrations.lightning import WatchCallback

    ours = WatchCallback(out=tmp_path / "run")

    class Closes(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if trainer.global_step == 2:
                assert ours.watch is not None
                ours.watch.close()

    _, watched = fit_lightning(tmp_path, [ours, Closes()])
    assert same(plain.state_dict(), watched.state_dict())
    run = open_run(tmp_path / "run")
    assert run.closed
    assert run.steps == [0, 1]


@pytest.mark.check
@pytest.mark.filterwarnings("default")
def test_an_accelerator_loads_a_checkpoint_once_the_watch_is_closed(tmp_path: Path) -> None:
    plain, _ = fit_accelerate(tmp_path, watched=False)
    closed, _ = fit_accelerate(tmp_path, watched=True, loads=True)
    assert same(plain.state_dict(), closed.state_dict())
    assert open_run(tmp_path / "hookstats").steps == [0, 1, 2, 3]
