"""watch() with optimizers: several, none, in the backward, with a closure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.expected import assert_stats
from support.modules import network
from torch import Tensor, nn
from torch.optim import SGD, Adam

from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def test_several_optimizers_close_a_step_together() -> None:
    model = network()
    first, second = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)
    records: list[StepRecord] = []
    with watch(model, [first, second], kinds=("param_grad",), sinks=[records.append]) as w:
        for order in ((first, second), (second, first), (first, first, second)):
            model(torch.randn(2, 3)).sum().backward()
            for optimizer in order:
                optimizer.step()
        assert w.latest.step == 2
    observed = [dict(zip(r.keys(), r.observed.tolist(), strict=True)) for r in records]
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    assert observed[0] == observed[1] == {(name, "param_grad"): 1 for name in names}
    assert observed[2]["0.weight", "param_grad"] == 2
    assert observed[2]["2.weight", "param_grad"] == 1


@pytest.mark.parametrize("directly", [False, True])
def test_models_that_are_trained_one_after_the_other_have_their_steps(directly: bool) -> None:
    layers = [nn.Linear(3, 3) for _ in range(2)]
    optimizers = [SGD(layer.parameters(), lr=0.1) for layer in layers]
    records: list[StepRecord] = []
    with watch(layers, optimizers, sinks=[records.append]) as w:
        x = torch.randn(2, 3)
        for layer, optimizer in zip(layers, optimizers, strict=True):
            for _ in range(4):
                (layer.forward(x) if directly else layer(x)).square().sum().backward()
                optimizer.step()
            x = (layer.forward(x) if directly else layer(x)).detach()
        assert w.latest.step == 7
    for step, record in enumerate(records):
        found = zip(record.keys(), record.observed.tolist(), strict=True)
        gradients = {name: n for (name, kind), n in found if kind == "param_grad"}
        name = "01"[step // 4]
        assert gradients == {f"{name}.weight": 1, f"{name}.bias": 1}


@pytest.mark.parametrize("critics", [1, 5])
def test_models_that_train_each_other_close_a_step_together(critics: int) -> None:
    generator, critic = network(), nn.Linear(2, 1)
    first, second = SGD(critic.parameters(), lr=0.1), SGD(generator.parameters(), lr=0.1)
    with watch([generator, critic], [first, second]) as w:
        for _ in range(3):
            for _ in range(critics):
                fake = generator(torch.randn(4, 3)).detach()
                critic(fake).sum().backward()
                first.step()
            critic(generator(torch.randn(4, 3))).sum().backward()
            second.step()
        assert w.open_step == 3
        assert w.latest["1.weight", "param_grad"] is not None


@pytest.mark.parametrize("flat", [False, True])
def test_gradients_of_parameters_whose_masters_are_stepped(flat: bool) -> None:
    model = network().bfloat16()
    copies = [p.detach().float() for p in model.parameters()]
    copies = [torch.cat([copy.flatten() for copy in copies])] if flat else copies
    masters = [copy.requires_grad_() for copy in copies]
    optimizer = Adam(masters, lr=0.1)
    with watch(model, optimizer) as w:
        for _ in range(3):
            model(torch.randn(2, 3).bfloat16()).sum().backward()
            gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
            if flat:
                gradients = [torch.cat([gradient.flatten() for gradient in gradients])]
            for master, gradient in zip(masters, gradients, strict=True):
                master.grad = gradient
            optimizer.step()
            assert model[0].weight.grad is not None
            assert_stats(w.latest["0.weight", "param_grad"], [model[0].weight.grad], 0)
            model.zero_grad()
        assert w.coverage()["2.bias", "param_grad"].observed == 3
        assert not [alert for alert in w.alerts if "optimizer" in alert.message]


def test_an_optimizer_that_never_steps_is_named() -> None:
    model = network()
    first, second = SGD(model[0].parameters(), lr=0.1), Adam(model[2].parameters(), lr=0.1)
    with watch(model, [first, second], kinds=("param",), rules=()) as w:
        for _ in range(199):
            first.step()
        with pytest.warns(RuntimeWarning, match="step 0 is still open after 200 .* as Adam has"):
            first.step()
        for _ in range(300):  # once
            first.step()
        second.step()
        assert w.open_step == 1


def test_an_optimizer_that_stops_is_named() -> None:
    """Once it has not stepped for 10 times as long as ever before, and 20 steps of the other."""
    model = network()
    first, second = SGD(model[0].parameters(), lr=0.1), Adam(model[2].parameters(), lr=0.1)
    for usual, silent in ((1, 19), (5, 49)):
        with watch(model, [first, second], kinds=("param",), rules=()) as w:
            for _ in range(3):
                for _ in range(usual):
                    first.step()
                second.step()
            for _ in range(silent):
                first.step()
            message = f"step 3 is still open after {silent + 1} .* as Adam has"
            with pytest.warns(RuntimeWarning, match=message):
                first.step()
            for _ in range(300):  # once
                first.step()
            assert w.open_step == 3


def test_without_an_optimizer_step_observes_the_parameters() -> None:
    model = network()
    with watch(model, kinds=("param", "param_grad")) as w:
        model[2].weight.requires_grad_(False)
        model(torch.randn(2, 3)).sum().backward()
        w.step()
        assert model[0].weight.grad is not None
        assert_stats(w.latest["0.weight", "param_grad"], [model[0].weight.grad], 0)
        assert_stats(w.latest["2.weight", "param"], [model[2].weight], 0)
        row = w.coverage()["2.weight", "param_grad"]
        assert row.skipped == {"requires no gradient": 1}


def test_a_step_closed_by_hand_beside_an_optimizer() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=("output", "param")) as w:
        model(torch.randn(2, 3))
        w.step()
        assert [kind for _, kind in w.latest] == ["output"] * 3
        optimizer.step()
        assert [kind for _, kind in w.latest] == ["param"] * 4
        assert w.latest.step == 1


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("make", [lambda p: torch.optim.LBFGS(p, max_iter=2), Adam])
def test_an_optimizer_with_a_closure(
    make: Callable[[Any], torch.optim.Optimizer], by_name: bool
) -> None:
    model = network()
    optimizer: Any = make(model.parameters())
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss: Tensor = model(torch.randn(2, 3)).square().sum()
        loss.backward()
        return loss

    with watch(model, optimizer) as w:
        for step in range(3):
            calls = 0
            optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert w.latest.step == step
            observed = dict(zip(w.latest.keys(), w.latest.observed.tolist(), strict=True))
            assert observed["2", "output"] == observed["2", "grad_output"] == calls
            assert model[0].weight.grad is not None
            assert_stats(w.latest["0.weight", "param_grad"], [model[0].weight.grad], 0)
        optimizer.zero_grad()
        model(torch.randn(2, 3)).sum().backward()
        if isinstance(optimizer, Adam):
            optimizer.step(None)
            assert w.latest.step == 3
