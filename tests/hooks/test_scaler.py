"""Gradients under a GradScaler: divided by its scale where the optimizer would divide them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support.expected import assert_reconciles
from support.parameters import GRADIENTS, Idle, assert_gradients, batch, gradients, tanh_network
from support.samples import slots
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def train(
    make: Callable[[Iterable[Tensor]], Optimizer],
    scaler: GradScaler | None,
    *,
    clip: bool = False,
    kinds: tuple[str, ...] = ("param", "param_grad"),
) -> tuple[list[StepRecord], nn.Module]:
    """The records of four steps, and the model after them."""
    model = tanh_network()
    optimizer = make(model.parameters())
    records: list[StepRecord] = []
    with watch(model, optimizer, kinds=kinds, sinks=[records.append]):
        for step in range(4):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            if scaler is None:
                loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    return records, model


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "SGD foreach": lambda params: SGD(params, lr=0.1, foreach=True),
    "SGD fused": lambda params: SGD(params, lr=0.1, fused=True),
    "Adam": lambda params: Adam(params, lr=0.1),
    "Adam foreach": lambda params: Adam(params, lr=0.1, foreach=True),
    "Adam fused": lambda params: Adam(params, lr=0.1, fused=True),
    "AdamW fused": lambda params: AdamW(params, lr=0.1, fused=True),
    "Adagrad fused": lambda params: Adagrad(params, lr=0.1, fused=True),
}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("SGD", "Adam fused") else pytest.param(name, marks=pytest.mark.full)
        for name in OPTIMIZERS
    ],
)
def test_under_a_scaler_gradients_are_those_without(name: str, clip: bool) -> None:
    """To the last bit, since the scale is a power of two; clipped or not, so unscaled by hand."""
    plain, plain_model = train(OPTIMIZERS[name], None, clip=clip)
    # It grows every second step, so that each scale must be the one of its step.
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    scaled, model = train(OPTIMIZERS[name], scaler, clip=clip)
    assert scaler.get_scale() == 2.0**12
    for p, q in zip(model.parameters(), plain_model.parameters(), strict=True):
        assert torch.equal(p, q)
    for got, expected in zip(scaled, plain, strict=True):
        assert set(got) == set(expected)
        for key in expected:
            assert torch.equal(got[key].moments, expected[key].moments)
            assert torch.equal(got[key].tallies, expected[key].tallies)
            assert (slots(got[key].tensor_hist) == slots(expected[key].tensor_hist)).all()


@pytest.mark.parametrize("name", ["SGD", "SGD fused"])
def test_a_scale_that_is_no_power_of_two(name: str) -> None:
    plain, _ = train(OPTIMIZERS[name], None)
    scaled, _ = train(OPTIMIZERS[name], GradScaler("cpu", init_scale=1000.0, growth_interval=9))
    for got, expected in zip(scaled, plain, strict=True):
        for key in expected:
            torch.testing.assert_close(
                got[key].moments, expected[key].moments, rtol=1e-4, atol=1e-6
            )
            assert torch.equal(got[key].count, expected[key].count)


def test_fused_optimizers_are_called_when_gradients_are_not_finite() -> None:
    """The step is recorded, unscaled, and what is not finite is counted."""
    model = tanh_network()
    optimizer = SGD(model.parameters(), lr=0.1, fused=True)
    scaler = GradScaler("cpu", init_scale=8.0)
    weight = model[0].weight
    with watch(model, optimizer) as w:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(model(batch(step)).square().mean()).backward()
            assert weight.grad is not None
            if step == 1:
                weight.grad[0, 0] = torch.inf
                weight.grad[1, 1] = torch.nan
            expected = {name: g / scaler.get_scale() for name, g in gradients(model).items()}
            before = weight.clone()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(weight, before) == (step == 1)
            assert w.latest.step == step
            assert_gradients(w.latest, expected)
            stats = w.latest["0.weight", "param_grad"]
            assert (stats.posinf.sum(), stats.nan.sum()) == ((1, 1) if step == 1 else (0, 0))
            assert w.latest["0", "output"].count.unique().tolist() == [5]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_step_that_the_scaler_skips(by_hand: bool) -> None:
    """Nobody calls the optimizer: the step stays open for the next, or is closed by hand."""
    model = tanh_network()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0)
    records: list[StepRecord] = []
    with watch(model, optimizer, sinks=[records.append]) as w:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(model(batch(step)).square().mean()).backward()
            if step == 1:
                assert model[0].weight.grad is not None
                model[0].weight.grad[0, 0] = torch.inf
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if by_hand and scaler.get_scale() < scale:
                w.step()
        assert w.latest.step == (2 if by_hand else 1)
        assert_reconciles(w)
        assert w.coverage()["0.weight", "param_grad"].forwards == 2
    observed = [dict(zip(r.keys(), r.observed.tolist(), strict=True)) for r in records]
    outputs = [o["0", "output"] for o in observed]
    grads = [o.get(("0.weight", "param_grad"), 0) for o in observed]
    assert (outputs, grads) == (([1, 1, 1], [1, 0, 1]) if by_hand else ([1, 2], [1, 1]))


def test_several_optimizers_under_one_scaler() -> None:
    """One that unscales by itself, one whose gradients are unscaled before."""
    model = tanh_network()
    first = SGD(model[0].parameters(), lr=0.1, fused=True)
    second = SGD(model[2].parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with watch(model, [first, second], kinds=GRADIENTS) as w:
        for step in range(3):
            model.zero_grad()
            scaler.scale(model(batch(step)).square().mean()).backward()
            expected = {name: g / scaler.get_scale() for name, g in gradients(model).items()}
            scaler.step(first)
            scaler.step(second)
            scaler.update()
            assert w.latest.step == step
            assert_gradients(w.latest, expected)
        assert all(row.observed == row.forwards == 3 for row in w.coverage())


@pytest.mark.parametrize("scale", [torch.ones(2), "8"])
def test_a_scale_that_cannot_be_used_does_not_touch_the_training(scale: object) -> None:
    model = tanh_network()
    optimizer: Any = Idle(model.parameters())
    with watch(model, optimizer, kinds=("param", "param_grad")) as w:
        model(batch(0)).sum().backward()
        optimizer.grad_scale = scale
        with pytest.warns(RuntimeWarning, match="no longer records param_grad of"):
            optimizer.step()
        optimizer.step()
        assert [kind for _, kind in w.latest] == ["param"] * 4
        assert w.coverage()["0.weight", "param_grad"].skipped == {"disabled": 2}
        assert_reconciles(w)
