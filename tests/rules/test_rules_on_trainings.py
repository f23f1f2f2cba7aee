"""The default rules on real training runs: silent about sound runs, exact about planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hookstats.cli.training import BAD_LAYER, DigitsNet, load_digits, plant_fault
from hookstats.rules import Alert, Monitor
from hookstats.watching.watch import watch

pytestmark = pytest.mark.check

KINDS = ("output", "grad_output", "param", "param_grad")


@cache
def images() -> Tensor:
    return load_digits()[0]


@cache
def labels() -> Tensor:
    return load_digits()[1]


def train(
    model: nn.Module, optimizer: Optimizer, loss_of: Callable[[int], Tensor], steps: int
) -> tuple[list[Alert], list[float]]:
    """Train; the alerts, and the losses."""
    monitor, losses = Monitor("default"), []

    def examine(record: Any) -> None:  # without the warnings
        monitor.examine(record)

    with watch(model, optimizer, kinds=KINDS, sinks=[examine]) as w:
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(step)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    assert w.coverage().failures == monitor.failures == {}
    return monitor.alerts, losses


def digits(
    model: nn.Module, optimizer: Optimizer, steps: int = 100, batch: int = 64
) -> tuple[list[Alert], list[float]]:
    """Train on the digits."""

    def loss_of(step: int) -> Tensor:
        chosen = torch.randint(len(images()), (batch,))
        return nn.functional.cross_entropy(model(images()[chosen]), labels()[chosen])

    return train(model, optimizer, loss_of, steps)


def mlp(activation: type[nn.Module], hidden: int = 3, width: int = 64) -> nn.Sequential:
    """Flatten, hidden layers "1", "3", ... with activations "2", "4", ..., and a linear head."""
    layers: list[nn.Module] = [nn.Flatten()]
    for i in range(hidden):
        layers += [nn.Linear(64 if i == 0 else width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def found(alerts: list[Alert], rule: str) -> list[tuple[str, str]]:
    """The site and kind of each alert of the rule."""
    return [(alert.site, alert.kind) for alert in alerts if alert.rule == rule]


def assert_quiet(alerts: list[Alert]) -> None:
    """A healthy training may be told of few things, and is warned of nothing."""
    assert [alert for alert in alerts if alert.severity != "note"] == []
    assert len(alerts) <= 3


# Healthy


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh])
@pytest.mark.parametrize(("batch", "lr"), [(64, 1e-3), (64, 1e-2), (4, 1e-3)])
def test_a_healthy_mlp(activation: type[nn.Module], batch: int, lr: float) -> None:
    model = mlp(activation)
    alerts, losses = digits(model, Adam(model.parameters(), lr=lr), 150, batch)
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20])
    assert_quiet(alerts)


def test_a_healthy_cnn() -> None:
    model = DigitsNet()
    alerts, losses = digits(model, Adam(model.parameters(), lr=3e-3))
    assert losses[-1] < 0.5 < losses[0]
    assert_quiet(alerts)


def test_a_healthy_training_with_momentum() -> None:
    model = mlp(nn.ReLU)
    alerts, losses = digits(model, SGD(model.parameters(), lr=0.1, momentum=0.9), 200)
    assert losses[-1] < 0.5 < losses[0]
    assert_quiet(alerts)


def tokens(
    step: int, shape: tuple[int, int] = (8, 32), vocabulary: int = 500
) -> tuple[Tensor, Tensor]:
    """Arithmetic sequences, and what they go up by, 0..3 for 1..4."""
    start = torch.randint(vocabulary, (shape[0], 1))
    rise = torch.randint(1, 5, (shape[0], 1))
    return (start + rise * torch.arange(shape[1])) % vocabulary, rise.squeeze(1) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_gpt2(dtype: torch.dtype) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=64,
        n_head=4,
        vocab_size=500,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).to(dtype)

    def loss_of(step: int) -> Tensor:
        x, _ = tokens(step)
        loss: Tensor = model(x, labels=x).loss
        return loss

    alerts, losses = train(model, AdamW(model.parameters(), lr=3e-3), loss_of, 50)
    assert losses[-1] < 0.9 * losses[0]
    assert_quiet(alerts)


def test_a_healthy_bert() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=500,
        num_labels=4,
    )
    model = transformers.BertForSequenceClassification(config)

    def loss_of(step: int) -> Tensor:
        x, labels = tokens(step)
        loss: Tensor = model(x, labels=labels).loss
        return loss

    alerts, losses = train(model, AdamW(model.parameters(), lr=1e-4), loss_of, 30)
    assert all(map(math.isfinite, losses))
    assert_quiet(alerts)


def test_a_healthy_resnet() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[32, 64, 128, 256], embedding_size=16, num_labels=10
    )
    model = transformers.ResNetForImageClassification(config)

    def loss_of(step: int) -> Tensor:
        chosen = torch.randint(len(images()), (16,))
        x = nn.functional.interpolate(images()[chosen], size=32).expand(-1, 3, -1, -1)
        loss: Tensor = model(x, labels=labels()[chosen]).loss
        return loss

    alerts, losses = train(model, AdamW(model.parameters(), lr=1e-3), loss_of, 30)
    assert losses[-1] < losses[0]
    assert_quiet(alerts)


# One fault each


def test_dead_channels_of_the_demo() -> None:
    model = DigitsNet()
    plant_fault(model)
    alerts, _ = digits(model, Adam(model.parameters(), lr=3e-3), 20)
    assert found(alerts, "dead channels") == [(BAD_LAYER.replace("conv", "relu"), "output")]
    for alert in alerts:
        assert (alert.channel, alert.value) == (0, 0.75)
        assert "has 24 dead channels of 32, the first is channel 0" in alert.message


@pytest.mark.parametrize(("optimizer", "lr", "at_most"), [(SGD, 100.0, 5), (Adam, 10.0, 2)])
def test_an_exploding_learning_rate(
    optimizer: Callable[..., Optimizer], lr: float, at_most: int
) -> None:
    model = mlp(nn.ReLU)
    alerts, _ = digits(model, optimizer(model.parameters(), lr=lr), 40)
    first = alerts[0]
    assert (first.rule, first.severity) == ("exploding", "error")
    assert first.step <= at_most
    assert f"of {first.site!r} has an rms of" in first.message
    assert "output" in [alert.kind for alert in alerts if alert.rule == "exploding"]


def test_nan_in_one_channel() -> None:
    model = mlp(nn.ReLU)
    optimizer = Adam(model.parameters())

    def poison(step: int) -> Tensor:
        if step == 7:
            with torch.no_grad():
                model[3].bias[5] = torch.nan
        return nn.functional.cross_entropy(model(images()[:64]), labels()[:64])

    alerts, _ = train(model, optimizer, poison, 12)
    first = alerts[0]
    assert (first.rule, first.step) == ("non-finite", 7)
    assert (first.site, first.kind, first.channel) == ("3", "output", 5)
    assert first.value == 64
    assert "step 7: output of '3' has 64 NaN, first in channel 5" in first.message
    assert len(found(alerts, "non-finite")) == 1


def test_a_deep_sigmoid_network_vanishes() -> None:
    model = mlp(nn.Sigmoid, hidden=10)
    alerts, _ = digits(model, Adam(model.parameters(), lr=1e-3), 20)
    assert {alert.rule for alert in alerts} == {"depth", "collapse", "vanishing"}
    # The first layers, and not the last.
    vanished = found(alerts, "vanishing")
    assert ("1", "grad_output") in vanished
    assert ("1.weight", "param_grad") in vanished
    assert {site for site, _ in vanished}.isdisjoint({"17", "18", "19", "20", "21"})


def test_a_sudden_shift_of_the_data() -> None:
    model = mlp(nn.ReLU)

    def loss_of(step: int) -> Tensor:
        chosen = torch.randint(len(images()), (64,))
        x = images()[chosen] * (50 if step >= 30 else 1)  # not normalised any more
        return nn.functional.cross_entropy(model(x), labels()[chosen])

    alerts, _ = train(model, Adam(model.parameters(), lr=1e-4), loss_of, 34)
    shift = next(alert for alert in alerts if alert.rule == "sudden shift")
    assert (shift.step, shift.since, shift.site, shift.kind) == (31, 30, "0", "output")
    assert shift.value == pytest.approx(math.log2(50), abs=0.5)
