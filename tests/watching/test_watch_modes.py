"""Evaluation between steps; several models; optimizers that come later; steps by number."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiled import needs_gradients
from support.modules import network, take_step
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

from hookstats.runs.run import open_run
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def train(model: Any, optimizer: Optimizer) -> None:
    take_step(optimizer, model(torch.ones(2, 3)).square().sum())


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=[needs_gradients, pytest.mark.check])]
)
def test_an_evaluation_is_skipped_and_counted(off: Any, compiled: bool) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=("input", "output", "grad_output")) as w:
        call = torch.compile(model, backend="aot_eager") if compiled else model
        for _ in range(2):
            train(call, optimizer)
            model.eval()
            with off():
                for _ in range(3):
                    call(torch.full((2, 3), 1e6))
            model.train()
            w.log(evaluated=1)  # of the step just closed
            assert w.latest.scalars["evaluated"] == 1
            assert w.latest["0", "output"].count.sum() == 8
            assert w.latest["0", "input"].amax.max() == 1
        coverage = w.coverage()
        for kind in ("input", "output"):
            row = coverage["0", kind]
            assert row.skipped == {"evaluation": 6}
            assert (row.forwards, row.observed) == (8, 2)
        assert coverage["2", "grad_output"].skipped == {"evaluation": 6}
        assert coverage["2", "grad_output"].observed == 2


def test_what_is_no_evaluation_counts() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=("output",)) as w:
        model.eval()
        train(model, optimizer)  # fine-tuning in eval mode
        assert w.latest["0", "output"].count.sum() == 8
        model.train()
        model[0].eval()
        with torch.no_grad():  # a frozen part
            hidden = model[0](torch.ones(2, 3))
        model[2](hidden).sum().backward()
        optimizer.step()
        assert w.latest["0", "output"].count.sum() == 8
        assert w.coverage()["0", "output"].skipped == {}
    with watch(model, kinds=("output",)) as w:  # no optimizer closes the steps
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 3))
        w.step()
        assert w.latest["0", "output"].count.sum() == 8


@pytest.mark.parametrize("how", ["no_grad in training mode", "gradients in eval mode"])
def test_an_evaluation_that_modes_do_not_tell_is_left_out_and_said(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        for _ in range(3):
            train(model, optimizer)
            w.log(loss=1)
            model.train(how == "no_grad in training mode")
            with torch.set_grad_enabled(how == "gradients in eval mode"):
                model(torch.full((2, 3), 1e6))
            w.log(evaluated=2)  # of the step just closed
            model.train()
            assert w.latest["0", "output"].count.sum() == 8
            assert w.latest["", "input"].amax.max() == 1
            assert w.latest.scalars["evaluated"] == 2
        with w.phase("evaluation"), torch.no_grad():
            model(torch.full((2, 3), 1e6))
        train(model, optimizer)
        assert w.latest["0", "evaluation:output"].count.sum() == 8
        coverage = w.coverage()
    assert coverage.evaluations == 3
    assert coverage["0", "output"].observed == coverage["0", "output"].forwards == 4
    assert capsys.readouterr().err.count("are taken for an evaluation") == 1


@pytest.mark.parametrize("how", ["in eval mode", "without gradients"])
def test_a_training_in_the_modes_of_an_evaluation_is_one_from_its_second_step(how: str) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        if how == "in eval mode":  # as where batch norms are frozen after a while
            train(model, optimizer)
            model.eval()
        for _ in range(3):
            if how == "in eval mode":
                train(model, optimizer)
            else:  # evolution strategies
                with torch.no_grad():
                    model(torch.ones(2, 3))
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
            last = w.latest
        assert last["0", "output"].count.sum() == 8
        assert w.coverage().evaluations == 1


def test_a_model_that_is_one_checkpoint_is_trained_from_its_first_step() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            checkpoint(model, x, use_reentrant=True).sum().backward()
            optimizer.step()
            assert w.latest["0", "output"].count.sum() == 8
            with torch.no_grad():  # an evaluation
                model(x)
        assert w.coverage().evaluations == 2


def test_a_call_of_an_evaluation_that_raises_ends(tmp_path: Path) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        train(model, optimizer)
        with torch.no_grad(), pytest.raises(RuntimeError, match="shape"):
            model(torch.ones(2, 4))
        train(model, optimizer)
        assert w.latest["0", "output"].count.sum() == 8


def test_several_models_have_names(tmp_path: Path) -> None:
    models = {"generator": network(), "critic": network()}
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models.values()]
    for given in (models, list(models.values())):
        names = list(models) if given is models else ["0", "1"]
        out = tmp_path / names[0]
        with watch(given, optimizers, out=out, exclude="*.1") as w:
            fake = models["generator"](torch.ones(2, 3))
            models["critic"](torch.cat([fake, fake], 1)[:, :3]).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            w.log(loss=1)
            names = [f"{name}.{part}" for name in names for part in ("0", "2")]
            assert {name for name, kind in w.latest if kind == "output"} == set(names)
            assert (names[0] + ".weight", "param_grad") in w.latest
            models["generator"].eval()  # the critic trains on
            with torch.no_grad():
                models["generator"](torch.ones(2, 3))
            assert w.coverage()[names[0], "output"].skipped == {}
        header = open_run(out).header
        assert header["model"] == "Sequential, Sequential"
        assert set(header["models"].values()) == {"Sequential"}
        assert open_run(out).scalars["loss"].values.tolist() == [1]
        assert not any(model._forward_pre_hooks for model in models.values())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ([], r"model = \[\]: expected one or more"),
        ({"a.b": nn.ReLU()}, "model has the name 'a.b': expected one without dots"),
        ([nn.ReLU(), 3], "model = 3: expected a"),
        ([nn.ReLU()] * 2, "model: the same one twice"),
    ],
)
def test_what_cannot_be_several_models(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        watch(model)


class Wrapper(Optimizer):
    """As Accelerate wraps optimizers: a subclass that is never initialised as an Optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        if name == "param_groups":
            return self.optimizer.param_groups
        raise AttributeError(name)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)


def test_wrapped_optimizers_are_unwrapped() -> None:
    model = network()
    inner = SGD(model.parameters(), lr=0.1)
    wrapper = Wrapper(Wrapper(inner))
    with watch(model, wrapper, kinds=("param_grad",)) as w:
        model(torch.ones(2, 3)).sum().backward()
        wrapper.step()
        assert w.latest.step == 0
        with pytest.raises(ValueError, match="the watch has it already"):
            w.add_optimizer(inner)
    with pytest.raises(ValueError, match="optimizer has 'sgd': expected a"):
        watch(model, "sgd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the same one twice"):
        watch(model, [inner, wrapper])


def test_an_optimizer_may_come_later(tmp_path: Path) -> None:
    model = network()
    w = watch(model, out=tmp_path)
    optimizer = SGD(model.parameters(), lr=0.1)
    w.add_optimizer(optimizer)
    train(model, optimizer)
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 3))
    assert w.latest.step == 0
    assert ("0.weight", "param_grad") in w.latest
    assert w.coverage()["0", "output"].skipped == {"evaluation": 1}
    w.close()
    with pytest.raises(ValueError, match="the watch is closed"):
        w.add_optimizer(SGD(model.parameters(), lr=0.1))


def test_an_optimizer_that_is_gone_is_not_waited_for() -> None:
    model = network()
    first: Optimizer | None = SGD(model[0].parameters(), lr=0.1)
    second = SGD(model.parameters(), lr=0.1)
    with watch(model, [first, second], kinds=("output",)) as w:
        first = None
        gc.collect()
        for step in range(2):
            train(model, second)
            assert w.latest.step == step


def test_the_training_may_number_its_steps(tmp_path: Path) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, out=tmp_path, every=10) as w:
        for step in (100, 105, 110, 120, 110):
            w.set_step(step)
            train(model, optimizer)
            w.log(loss=step)
        assert w.latest.step == 110
        for wrong in (-1, 1.5, "1"):
            with pytest.raises(ValueError, match="step = "):
                w.set_step(wrong)  # type: ignore[arg-type]
    run = open_run(tmp_path)
    assert run.steps == [100, 110]
    assert run.scalars["loss"].values.tolist() == [100, 105, 110]
