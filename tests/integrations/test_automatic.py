"""What `hookstats run` finds of a script's training: models, steps, losses, norms, processes."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from hookstats.integrations.automatic import Automatic
from hookstats.integrations.loop import BEFORE_CLIPPING, LOSS
from hookstats.integrations.script import Recorder
from hookstats.rules import LossGraph
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

FUNCTIONS = torch.autograd.backward, torch.amp.GradScaler.scale, nn.utils.clip_grad_norm_


@pytest.fixture
def names() -> list[list[str]]:
    return []


@pytest.fixture
def automatic(names: list[list[str]]) -> Iterator[Automatic]:
    def begin(models: dict[str, nn.Module], optimizers: list[Optimizer]) -> Watch:
        names.append(list(models))
        return watch(models[""] if list(models) == [""] else models, optimizers, rules=())

    gc.collect()  # models of other tests are there until it runs
    with Automatic(begin) as automatic:
        yield automatic
    assert (
        torch.autograd.backward,
        torch.amp.GradScaler.scale,
        nn.utils.clip_grad_norm_,
    ) == FUNCTIONS


@pytest.mark.parametrize("scaled", [False, True])
def test_the_graph_of_the_loss_is_looked_at(scaled: bool) -> None:
    begun: list[Watch] = []

    def begin(models: dict[str, nn.Module], optimizers: list[Optimizer]) -> Watch:
        rule = LossGraph(action=lambda alert: None)
        begun.append(watch(models[""], optimizers, rules=rule))
        return begun[0]

    with Automatic(begin):
        model = network()
        optimizer = SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model(torch.randn(4, 3)) - torch.randn(4)).square().mean()
            scaler.scale(loss).backward()
            optimizer.step()
    (alert,) = begun[0].alerts
    assert alert.step == 0
    assert "compares [4, 1]" in alert.message


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def loss_of(model: Callable[[Tensor], Tensor], n: int = 4) -> Tensor:
    return model(torch.randn(n, 3)).square().mean()


@pytest.mark.parametrize("how", ["plain", "autograd.backward", "scaled", "closure"])
def test_the_loss_of_each_step_is_logged(automatic: Automatic, how: str) -> None:
    model = network()
    optimizer: Any = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        losses.append(loss.item())
        if how == "scaled":
            scaler.scale(loss).backward()
        elif how == "autograd.backward":
            torch.autograd.backward(loss)
        else:
            loss.backward()
        return loss

    for _ in range(3):
        if how == "closure":
            optimizer.step(closure)
        else:
            closure()
            scaler.step(optimizer) if how == "scaled" else optimizer.step()
            scaler.update() if how == "scaled" else None
        assert automatic.watches[0].latest.scalars[LOSS] == pytest.approx(losses[-1])


def test_where_a_step_has_several_backwards_none_is_the_loss(automatic: Automatic) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    for backwards in (2, 1, 2):
        for _ in range(backwards):
            loss_of(model).backward()
        optimizer.step()
        scalars = automatic.watches[0].latest.scalars
        assert (LOSS in scalars) is (backwards == 1)
    y = model(torch.randn(4, 3))
    y.backward(torch.ones_like(y))  # of no number
    optimizer.step()
    assert LOSS not in automatic.watches[0].latest.scalars


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_the_norm_before_clipping_is_logged(
    automatic: Automatic, clip: Callable[..., object]
) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (1e3 * loss_of(model)).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()  # type: ignore[union-attr]
        getattr(nn.utils, clip.__name__)(model.parameters(), 0.5)
        optimizer.step()
        scalars = automatic.watches[0].latest.scalars
        assert scalars[BEFORE_CLIPPING] == pytest.approx(norm.item())
        assert scalars["grad_norm"] < scalars[BEFORE_CLIPPING]


@pytest.mark.parametrize("how", ["add_", "data", "a function"])
def test_where_parameters_are_updated_by_hand_each_backward_is_a_step(
    automatic: Automatic, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network()
    for _ in range(6):
        model.zero_grad()
        loss = loss_of(model)
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            if how == "data":
                p.data = p.data - 0.1 * p.grad
            elif how == "add_":
                p.data.add_(p.grad, alpha=-0.1)
            else:
                with torch.no_grad():
                    p -= 0.1 * p.grad
        model.eval()
        with torch.no_grad():
            model(torch.full((2, 3), 1e6))
        model.train()
    (found,) = automatic.watches
    assert found.latest.step == 5
    assert found.latest["0", "output"].count.sum() == 16
    assert found.latest["0.weight", "param_grad"].count.sum() == 12
    assert found.latest.scalars[LOSS] == pytest.approx(loss.item())
    assert "each backward closes a step" in capsys.readouterr().err


def test_gradients_without_a_training_are_none(automatic: Automatic) -> None:
    model = network()
    for _ in range(200):  # such as saliency maps
        loss_of(model).backward()
    assert automatic.watches == []
    optimizer = SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    optimizer.step()
    assert automatic.watches[0].open_step == 1


class Average(nn.Module):
    """Keeps a moving average of a model, and the model, as ema_pytorch does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online_model, self.ema_model = model, copy.deepcopy(model)


def test_a_wrapper_with_a_copy_of_the_model_is_not_the_model(automatic: Automatic) -> None:
    model = network()
    wrapper = Average(model)
    optimizer = Adam(model.parameters())
    for _ in range(2):
        loss_of(model).backward()
        optimizer.step()
        wrapper.ema_model(torch.full((2, 3), 1e6))
    latest = automatic.watches[0].latest
    assert {name for name, kind in latest if kind == "output"} == {"0", "1", "2"}
    assert ("", "input") in latest
    assert latest["0", "output"].count.sum() == 16


def test_a_model_whose_masters_are_stepped_is_watched(automatic: Automatic) -> None:
    model = network().bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = SGD(masters, lr=0.1)
    for _ in range(2):
        loss_of(lambda x: model(x.bfloat16()).float()).backward()
        for p, master in zip(model.parameters(), masters, strict=True):
            master.grad = p.grad.float() if p.grad is not None else None
        optimizer.step()
        model.zero_grad()
    latest = automatic.watches[0].latest
    assert latest.step == 1
    assert latest["0.weight", "param_grad"].count.sum() == 12


def test_models_are_named_in_the_order_of_their_optimizers(
    automatic: Automatic, names: list[list[str]]
) -> None:
    layers = [nn.Linear(3, 3 + i) for i in range(4)]
    optimizers = [SGD(layer.parameters(), lr=0.1) for layer in layers]
    sum(loss_of(layer) for layer in layers).backward()  # type: ignore[union-attr]
    for optimizer in optimizers:
        optimizer.step()
    assert names == [["linear", "linear_1", "linear_2", "linear_3"]]
    latest = automatic.watches[0].latest
    assert latest["linear_2", "output"].count.sum() == 20


def test_layers_trained_by_their_forward_alone_have_their_steps(automatic: Automatic) -> None:
    layers = [nn.Linear(3, 3) for _ in range(2)]
    optimizers = [SGD(layer.parameters(), lr=0.1) for layer in layers]
    for layer, optimizer in zip(layers, optimizers, strict=True):
        for _ in range(5):
            loss_of(layer.forward).backward()
            optimizer.step()
    (found,) = automatic.watches
    assert found.open_step == 10
    assert found.latest.step == 9
    assert {name for name, _ in found.latest} == {"linear_1.weight", "linear_1.bias"}


STARTS = BaseProcess.start


class Says(Recorder):
    """Sends a word from each process that it would watch, instead of watching."""

    def __init__(self, connection: Any) -> None:
        super().__init__({}, None, Path("runs"))
        self.connection = connection

    @contextmanager
    def watching(self, *, is_child: bool = False) -> Iterator[None]:
        assert is_child
        self.connection.send("watched")
        yield
        self.connection.send("over")


def says(connection: Any) -> None:
    connection.send("target")


class _WithRun:
    """A process whose class overrides `run`."""

    def __init__(self, connection: Any) -> None:
        super().__init__(target=len)  # type: ignore[call-arg]
        self.connection = connection

    def run(self) -> None:
        self.connection.send("run")


class Spawned(_WithRun, get_context("spawn").Process):  # type: ignore[misc]
    """By spawn."""


class Forked(_WithRun, get_context("fork").Process):  # type: ignore[misc]
    """By fork."""


@pytest.mark.check
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("overrides", [True, pytest.param(False, marks=pytest.mark.check)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_is_watched_whether_it_has_a_target_or_overrides_run(
    method: str, overrides: bool
) -> None:
    context: Any = get_context(method)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=says, args=(there,))
    if overrides:
        process = {"spawn": Spawned, "fork": Forked}[method](there)
    with Says(there)._watched_processes():
        process.start()
    there.close()  # so that a child that fails ends the wait
    found = [here.recv() for _ in range(3)]
    process.join(60)
    assert process.exitcode == 0
    assert found == ["watched", "run" if overrides else "target", "over"]
    assert "run" not in vars(process)
    assert BaseProcess.start is STARTS


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_are_left_alone() -> None:
    here, there = get_context("fork").Pipe(duplex=False)
    with Says(there)._watched_processes():
        loader: Any = torch.utils.data.DataLoader(range(3), num_workers=1)  # type: ignore[arg-type]
        assert [x.item() for x in loader] == [0, 1, 2]
        with get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
        with ProcessPoolExecutor(1) as executor:
            assert list(executor.map(abs, [-1])) == [1]
    assert not here.poll()
