"""The kind "update": what an optimizer changed, in the record of its step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.expected import assert_stats
from support.modules import network, take_step
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from hookstats import insight
from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("foreach", [False, True])
def test_the_update_of_a_step_is_in_its_record(foreach: bool) -> None:
    torch.manual_seed(0)
    model, records = network(), list[StepRecord]()
    optimizer = Adam(model.parameters(), lr=0.1, foreach=foreach)
    kinds = ("output", "param", "param_grad", "update")
    with watch(model, optimizer, kinds=kinds, every=2, sinks=[records.append]) as w:
        for step in range(4):
            before = values(model)
            optimizer.zero_grad()
            model(torch.randn(2, 3)).square().sum().backward()
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
            optimizer.step()
            w.log(loss=step)
            assert w.latest.step == step // 2 * 2
            if step % 2:
                assert not w._observers.after_step._kept
                continue
            assert w.latest.scalars["loss"] == step
            for name, after in values(model).items():
                assert_stats(w.latest[name, "update"], [after - before[name]], 0)
                assert_stats(w.latest[name, "param"], [before[name]], 0)
                assert_stats(w.latest[name, "param_grad"], [gradients[name]], 0)
            ratio = insight.update_to_weight(w.latest)
            assert ratio.keys() == before.keys()
            changed = values(model)["0.weight"] - before["0.weight"]
            expected = (changed.norm() / before["0.weight"].norm()).item()
            assert ratio["0.weight"] == pytest.approx(expected, rel=1e-5)
        row = w.coverage()["0.weight", "update"]
        assert (row.forwards, row.observed, row.error) == (2, 2, None)
    assert [record.step for record in records] == [0, 2]
    assert insight.update_to_weight(records[0]).keys() == before.keys()


def test_closures_and_several_optimizers() -> None:
    model = network()
    first, second = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)

    def loss() -> Tensor:
        model.zero_grad()
        total: Tensor = model(torch.ones(2, 3)).square().sum()
        total.backward()
        return total

    with watch(model, [first, second], kinds=("param_grad", "update")) as w:
        for step in range(2):
            before = values(model)
            first.step(loss)
            second.step()
            assert w.latest.step == step
            assert len(w.latest) == 8
            for name, after in values(model).items():
                assert_stats(w.latest[name, "update"], [after - before[name]], 0)


def train(kinds: tuple[str, ...] | None, make: Callable[[Any], Optimizer]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = network()
    optimizer = make(model.parameters())
    w = None if kinds is None else watch(model, optimizer, kinds=kinds)
    for _ in range(5):
        take_step(optimizer, model(torch.randn(2, 3)).square().sum())
    if w is not None:
        w.close()
    return values(model)


def test_without_an_optimizer_there_are_no_updates(tmp_path: Path) -> None:
    model = network()
    with watch(model, kinds=("param", "update"), out=tmp_path) as w:
        w.step()
        assert {kind for _, kind in w.latest} == {"param"}


def test_a_parameter_that_cannot_be_copied_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=("update",)) as w:
        clone, largest = Tensor.clone, model[0].weight.shape

        def refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if tensor.shape == largest:
                raise torch.OutOfMemoryError("no memory")
            return clone(tensor, *args, **kwargs)

        monkeypatch.setattr(Tensor, "clone", refuse)
        model(torch.randn(2, 3)).sum().backward()
        with pytest.warns(RuntimeWarning, match="no longer records update of '0.weight'"):
            optimizer.step()
        optimizer.step()
        assert {name for name, _ in w.latest} == {"0.bias", "2.weight", "2.bias"}


def test_the_states_of_an_optimizer_are_sites() -> None:
    model = network()
    optimizer = Adam(model.parameters(), lr=0.1, amsgrad=True)
    with watch(model, optimizer, kinds=("optimizer_state", "param_grad"), include="0*") as w:
        for step in range(2):
            take_step(optimizer, model(torch.randn(2, 3)).square().sum())
            assert w.latest.step == step
            names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
            expected = {f"optimizer_state.{name}" for name in names} | {"param_grad"}
            for parameter in ("weight", "bias"):
                kinds = {kind for name, kind in w.latest if name == f"0.{parameter}"}
                assert kinds == expected
                state = optimizer.state[getattr(model[0], parameter)]
                for name in names:
                    found = w.latest[f"0.{parameter}", f"optimizer_state.{name}"]
                    assert_stats(found, [state[name]], 0)
        assert w.coverage()["0.bias", "optimizer_state.exp_avg"].observed == 2
    plain = train(None, Adam)
    watched = train(("optimizer_state", "update"), Adam)
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_a_momentum_that_comes_later_and_an_optimizer_without_states() -> None:
    model = network()
    first = SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    second = SGD(model[2].parameters(), lr=0.1)
    with watch(model, [first, second], kinds=("optimizer_state", "param")) as w:
        for _ in range(2):
            model(torch.randn(2, 3)).sum().backward()
            first.step()
            second.step()
            states = [key for key in w.latest if key[1] != "param"]
            assert states == [
                (f"0.{name}", "optimizer_state.momentum_buffer") for name in ("weight", "bias")
            ]
