"""One warning where training goes on, and nothing of it is recorded; none where all is well."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.modules import network, take_step
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer

import hookstats as hs

GIVEN = "an optimizer of this model that the watch was not given"


def loss_of(model: nn.Module) -> Tensor:
    loss: Tensor = model(torch.randn(4, 3)).square().mean()
    return loss


def train(model: nn.Module, optimizer: Optimizer, steps: int = 30) -> None:
    for _ in range(steps):
        loss = loss_of(model)
        take_step(optimizer, loss)


@contextmanager
def told(expected: str | None) -> Iterator[None]:
    """Exactly one warning that matches, or none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = [str(one.message) for one in caught]
    if expected is None:
        assert said == []
    else:
        assert len(said) == 1, said
        assert expected in said[0]
        assert "hookstats: " in said[0]


def test_an_optimizer_that_was_forgotten() -> None:
    model = network()
    with told(f"20 steps of SGD, {GIVEN}"):
        w = hs.watch(model, rules=())
        train(model, SGD(model.parameters(), lr=0.1), 50)
        w.close()


def test_no_rule_explains_a_loss_whose_step_stays_open() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with told(f"20 steps of SGD, {GIVEN}"), hs.watch(model) as w:
        for _ in range(50):
            loss = loss_of(model)
            w.log(loss=loss)
            take_step(optimizer, loss)
    assert w.alerts == ()


def test_an_optimizer_that_was_made_anew() -> None:
    model = network()
    first = SGD(model.parameters(), lr=0.1)
    w = hs.watch(model, first, rules=())
    train(model, first)
    with told(f"20 steps of Adam, {GIVEN}"):
        second = Adam(model.parameters())
        train(model, second)
    with told(None):
        w.add_optimizer(second)
        w.close()


def test_a_new_head_has_an_optimizer_of_its_own() -> None:
    """With modules that the watch does not know, and no parameter that it does."""
    model = network()
    w = hs.watch(model, SGD(model.parameters(), lr=0.1), rules=())
    model[2] = nn.Linear(4, 2)
    model[0].requires_grad_(False)
    with told(f"20 steps of Adam, {GIVEN}"):
        train(model, Adam(model[2].parameters()))
    w.close()


@pytest.mark.parametrize("zero", ["before", "after"])
def test_a_loop_without_an_optimizer(zero: str) -> None:
    model = network()
    with told("20 calls of the model, with backwards, and no step was closed"):
        w = hs.watch(model, rules=())
        for _ in range(60):
            if zero == "before":
                model.zero_grad()
            loss_of(model).backward()
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
            if zero == "after":
                model.zero_grad()
        w.close()


def test_an_optimizer_that_never_steps() -> None:
    """As where a loss scaler skips each step."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    expected = "so that none is recorded; no optimizer of the watch stepped: see whether a loss sc"
    with told(expected), hs.watch(model, optimizer, rules=()):
        for _ in range(30):
            optimizer.zero_grad()
            loss_of(model).backward()


def test_a_run_that_ends_without_a_step(tmp_path: Any) -> None:
    model = network()

    def run(then: Callable[[], object]) -> None:
        with hs.watch(model, out=tmp_path / "run", rules=(), overwrite=True):
            for _ in range(3):
                loss_of(model).backward()
            then()

    with told("3 calls of the model, and no step was closed, so that none is recorded; give"):
        run(lambda: None)
    with pytest.raises(ZeroDivisionError), told(None):  # which says enough
        run(lambda: 1 / 0)


class SAM(Optimizer):
    """By davda54: two steps around a second backward."""

    def __init__(self, parameters: Any, base: type[Optimizer], **of_base: Any) -> None:
        super().__init__(parameters, {"rho": 0.05, **of_base})
        self.base_optimizer = base(self.param_groups, **of_base)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        with torch.enable_grad():
            self.first_step()
            value = closure()
        self.second_step()
        return value


class Lookahead(Optimizer):
    """As timm has it."""

    def __init__(self, base: Optimizer) -> None:
        self._base_optimizer = base
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._base_optimizer.step(closure)


class ScheduleFree:
    """As schedulefree has it: no Optimizer."""

    def __init__(self, base: Optimizer) -> None:
        self.base = base

    def step(self) -> None:
        self.base.step()


def test_wrappers_close_steps() -> None:
    for way in ("two steps", "closure", "lookahead", "schedule-free"):
        model = network()
        with told(None):
            optimizer: Any = SAM(model.parameters(), SGD, lr=0.1)
            if way in ("lookahead", "schedule-free"):
                wrap = Lookahead if way == "lookahead" else ScheduleFree
                optimizer = wrap(SGD(model.parameters(), lr=0.1))
            w = hs.watch(model, optimizer, rules=())
            for _ in range(25):
                loss_of(model).backward()
                if way == "two steps":
                    optimizer.first_step()
                    loss_of(model).backward()
                    optimizer.second_step()
                elif way == "closure":

                    def closure(model: nn.Module = model) -> float:
                        loss = loss_of(model)
                        loss.backward()
                        return loss.item()

                    optimizer.step(closure)
                else:
                    optimizer.step()
                    model.zero_grad()
            assert w.open_step == 25
            w.close()


def test_a_model_that_is_watched_twice() -> None:
    model = network()
    first = hs.watch(model, rules=())
    with told("the model is watched already"):
        second = hs.watch({"a": network(), "b": model}, rules=())
    first.close()
    second.close()
    with told(None):
        third = hs.watch(model, rules=())
        del third
        gc.collect()
        hs.watch(model, rules=()).close()


def test_modules_that_come_later_are_named() -> None:
    """A LoRA adapter; not layers that the model had, and that are thawed."""
    model = network()
    optimizer = SGD(model[2].parameters(), lr=0.1)
    with told(None):
        w = hs.watch(model, optimizer, rules=())
        train(model, optimizer, 3)
        optimizer.add_param_group({"params": model[0].parameters()})
        train(model, optimizer, 3)
    with told("the optimizer trains '1.0.weight' and 1 more parameters of modules that came"):
        model[1] = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        optimizer.add_param_group({"params": model[1].parameters()})
        train(model, optimizer, 3)
        w.close()


def test_what_is_well_is_passed_over() -> None:
    """Accumulated batches, many evaluations of a closure, another model's optimizer, evaluation,
    steps closed by hand."""
    model, other = network(), network()
    with told(None):
        optimizer = SGD(model.parameters(), lr=0.1)
        with hs.watch(model, optimizer, rules=()) as w:
            for _ in range(70):
                loss_of(model).backward()
            optimizer.step()
            train(other, Adam(other.parameters()))
            with torch.no_grad():
                for _ in range(50):
                    model.eval()(torch.randn(2, 3))
            train(model.train(), optimizer, 3)
            assert w.open_step == 4
        lbfgs = LBFGS(
            model.parameters(), lr=0.01, max_iter=50, tolerance_change=0, tolerance_grad=0
        )

        def closure() -> Tensor:
            lbfgs.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        with hs.watch(model, lbfgs, rules=()):
            for _ in range(2):
                lbfgs.step(closure)
        with hs.watch(model, rules=()) as w:
            for _ in range(50):
                train(model, optimizer, 1)
                w.step()
        with hs.watch(model.eval(), rules=()) as w, torch.no_grad():
            for _ in range(50):
                model(torch.randn(2, 3))
            w.step()
