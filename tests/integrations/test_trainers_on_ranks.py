"""Trainers on two ranks: losses keep their bits, ranks write one run, which is merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.programs import run_python
from support.ranks import Ranks
from support.trainers import Tracker

from hookstats.runs.run import Run, open_run

pytestmark = [
    pytest.mark.check,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="this build of torch has no gloo",
    ),
]


def train(trainer: str, folder: Path, *options: str) -> list[Any]:
    """What each rank left: its losses, and a digest of the weights."""
    folder.mkdir()
    run_python(folder, "-m", "support.trainers", trainer, str(folder), *options, ranks=2)
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in (0, 1)]


def compare(trainer: str, folder: Path, where: str, scale: float | None = 0.5) -> Run:
    """Train unwatched and watched; the results must be equal. Returns the run."""
    plain = train(trainer, folder / "plain")
    assert plain[0]["digest"] == plain[1]["digest"]
    assert len(plain[0]["losses"]) > 2
    assert train(trainer, folder / "watched", "watched") == plain
    runs = list((folder / "watched").rglob("hookstats*"))
    assert runs == [folder / "watched" / where]
    run = open_run(runs[0])
    assert run.closed
    assert run.ranks == [0, 1]
    assert run.header.get("grad_scale") == scale
    for rank in run.ranks:
        assert run.of_rank(rank).steps == run.steps
    return run


def total(run: Run | Any, step: int, name: str, kind: str) -> int:
    return int(run[step][name, kind].count.sum())


def test_transformers(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    run = compare("transformers", tmp_path, "hookstats")
    assert run.steps == [1, 2, 3, 4, 5, 6]
    for step in run.steps:  # two ranks with two micro-batches, and no evaluation
        assert total(run, step, "transformer.h.0.ln_1", "output") == 2 * 2 * 2 * 8 * 16
        assert total(run, step, "transformer.h.0.ln_1.weight", "param_grad") == 16
    for rank, parts in run._parts.index.items():
        assert parts[4].part.number > parts[3].part.number, f"rank {rank} was not resumed"
    assert run.scalars["eval_loss"].steps.tolist() == [3, 6]
    losses = json.loads((tmp_path / "watched" / "result-0").read_text())["losses"]
    assert run.scalars["loss"].steps.tolist() == [2, 4, 6]
    # A Trainer that is resumed after step 3 leaves that step out of the mean that it logs at 4.
    assert run.scalars["loss"].values[[0, 2]].tolist() == [losses[0], losses[2]]


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    run = compare("lightning", tmp_path, "lightning_logs/version_0/hookstats")
    assert run.steps == [0, 1]
    assert total(run, 1, "last", "output") == 2 * 2 * 4
    assert total(run, 1, "last.weight", "param_grad") == 8
    assert max(run[step]["first.0", "output"].amax.max() for step in run) < 100


@pytest.mark.parametrize(("how", "batches"), [("fsdp2", 2), ("tp", 1)])
def test_lightning_with_a_sharded_model(tmp_path: Path, how: str, batches: int) -> None:
    pytest.importorskip("lightning")
    scale = 0.5 if how == "fsdp2" else None
    run = compare(how, tmp_path, "lightning_logs/version_0/hookstats", scale)
    assert run.steps == list(range(4 // batches))
    assert total(run, 1, "last", "output") == batches * 2 * 4
    assert total(run, 1, "first.0", "output") == batches * 2 * 4 * 8
    assert total(run, 1, "first.0.weight", "param_grad") == 4 * 8
    assert total(run, 1, "last.weight", "param_grad") == 8
    assert max(run[step]["first.0", "output"].amax.max() for step in run) < 100


def log_to_trackers(rank: int, shards: bool) -> list[str]:
    """The names of what an accelerator's trackers get."""
    from accelerate import Accelerator

    from hookstats.integrations.accelerate import watch

    accelerator: Any = Accelerator(cpu=True)
    accelerator.log = tracker = Tracker()
    model = torch.nn.Linear(4, 2)
    if shards:
        torch.distributed.fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(accelerator, model, optimizer, log_every=1):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return sorted(tracker.logged[0])


def test_trackers_get_no_norm_of_parts(ranks: Ranks) -> None:
    pytest.importorskip("accelerate")
    whole, parts = (ranks(log_to_trackers, shards) for shards in (False, True))
    names = ("grad_norm", "lr/0", "update_ratio/0", "watch_seconds")
    assert whole[0] == [f"hookstats/{name}" for name in names]
    assert parts == [[name for name in names if "grad_norm" not in name] for names in whole]


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    run = compare("accelerate", tmp_path, "hookstats")
    assert run.steps == [0, 1]
    assert total(run, 1, "0", "output") == 2 * 2 * 2 * 8
    assert total(run, 1, "0.weight", "param_grad") == 4 * 8
