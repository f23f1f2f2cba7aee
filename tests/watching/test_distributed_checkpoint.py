"""The state of a watch in torch.distributed.checkpoint, beside the model's and the optimizer's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.modules import network
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Adam, Optimizer

from hookstats.runs.run import open_run
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

pytestmark = [
    # Of torch, where there is no process group.
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    # Of torch 2.10's own writer of checkpoints.
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


class App:
    """Model and optimizer as one Stateful, as PyTorch's tutorial has them."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, object]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],  # type: ignore[arg-type]
            optim_state_dict=state["optimizer"],  # type: ignore[arg-type]
        )


def train(app: App, steps: int, w: Watch) -> None:
    for step in range(steps):
        app.optimizer.zero_grad()
        loss = app.model(torch.full((2, 3), step + 1.0)).square().mean()
        loss.backward()
        app.optimizer.step()
        w.log(loss=loss)


@pytest.mark.parametrize("kinds", [("output", "param_grad"), ("output", "update")])
def test_loading_into_a_fresh_optimizer_is_no_step(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    trained = fresh()
    with watch(trained.model, trained.optimizer) as w:
        train(trained, 2, w)
    checkpoint.save({"app": trained}, checkpoint_id=tmp_path)
    app = fresh()
    with watch(app.model, app.optimizer, kinds=kinds) as w:
        checkpoint.load({"app": app}, checkpoint_id=tmp_path)
        assert app.optimizer.state
        assert w.open_step == 0
        w.log(loaded=1.0)
        train(app, 1, w)
        assert w.open_step == 1
        assert w.latest.scalars["loaded"] == 1
        assert {row.forwards for row in w.coverage()} == {1}
        checkpoint.load({"app": app}, checkpoint_id=tmp_path)  # where the optimizer has its state
        assert w.open_step == 1


def fresh() -> App:
    torch.manual_seed(0)
    model = network()
    return App(model, Adam(model.parameters()))


def test_a_watch_is_saved_and_loaded_as_it_stands(tmp_path: Path) -> None:
    out, saved = tmp_path / "run", tmp_path / "checkpoint"
    first = fresh()
    with watch(first.model, first.optimizer, out=out) as w:
        train(first, 3, w)
        checkpoint.save({"app": first, "watch": w}, checkpoint_id=saved)
        train(first, 2, w)
    second = fresh()
    with watch(second.model, second.optimizer, out=out, append=True) as w:
        assert w.open_step == 5
        checkpoint.load({"app": second, "watch": w}, checkpoint_id=saved)
        assert w.open_step == 3
        train(second, 2, w)
    for mine, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    run = open_run(out)
    assert run.steps == [0, 1, 2, 3, 4]
    assert run._parts.index[0][3].part.number > run._parts.index[0][2].part.number
