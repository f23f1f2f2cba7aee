"""What the first steps show, and what becomes of it: columns, zeros, idle experts, rates, decay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from support.modules import take_step
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hookstats.rules import (
    Alert,
    Clipping,
    Exploding,
    Fading,
    Initialisation,
    Inputs,
    LearningRate,
    Rule,
    SuddenShift,
    Untrained,
    UpdateSize,
    WeightDecay,
    default_rules,
)
from hookstats.watching.watch import watch


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def said(
    rule: type[Rule],
    model: nn.Module | None = None,
    change: Callable[[Tensor], Tensor] = lambda x: x,
    steps: int = 3,
    lr: float = 0.01,
    schedule: Callable[[int], float] = lambda step: 1.0,
    clip: float | None = None,
) -> list[Alert]:
    torch.manual_seed(0)
    model = network() if model is None else model
    optimizer = SGD(model.parameters(), lr)
    scheduler = LambdaLR(optimizer, schedule)
    with watch(model, optimizer, every=1, rules=rule(action=lambda alert: None)) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(change(torch.randn(30, 6))), TARGETS)
            w.log(loss=loss)
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
    assert w.coverage().failures == {}
    return list(w.alerts)


TARGETS = torch.arange(30) % 3
UNITS = torch.tensor([1.0, 1, 1, 1, 25, 1])


def test_a_column_that_dominates_is_named() -> None:
    (alert,) = said(Inputs, change=lambda x: x * UNITS)
    assert (alert.step, alert.channel, alert.site) == (0, 4, "")
    assert "channel 4 has an rms of" in alert.message
    assert alert.advice.startswith("standardise it")
    assert said(Inputs, change=lambda x: x * UNITS.sqrt()) == []
    assert said(Inputs, nn.Sequential(nn.BatchNorm1d(6), network()), lambda x: x * UNITS) == []


def test_a_column_that_dominates_causes_the_large_step() -> None:
    torch.manual_seed(0)
    model, units = network(), torch.where(UNITS > 1, 5000.0, 1.0)
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer, every=1, rules=[*default_rules(), lambda incident: None]) as w:
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.randn(30, 6) * units), TARGETS)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    (incident,) = (one for one in w.incidents if one.severity != "note")
    assert incident.cause.rule == "inputs"
    assert "update size" in {alert.rule for alert in incident.consequences}


def from_step(begins: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What changes inputs from a step on."""
    steps = count()
    return lambda x: x if next(steps) < begins else change(x)


def of_a_shard(x: Tensor) -> Tensor:
    """A batch in which a third of the rows lacks what scales column 4."""
    return torch.cat((x[:10] * UNITS, x[10:]))


@pytest.mark.parametrize(
    "change", [lambda x: x * UNITS, of_a_shard, lambda x: x + 40 * (UNITS > 1)]
)
def test_a_column_that_begins_to_dominate_is_named(change: Callable[[Tensor], Tensor]) -> None:
    (alert,) = said(Inputs, change=from_step(20, change), steps=60)
    assert (alert.step, alert.since, alert.channel, alert.site) == (22, 20, 4, "")
    assert "has a column that dominates, as it never did: channel 4 has an rms of" in alert.message
    model = nn.Sequential(nn.BatchNorm1d(6), network())
    assert said(Inputs, model, from_step(20, change), steps=30) == []


def rare(x: Tensor) -> Tensor:
    """A batch with a column that is large in one batch of 4, and another that never was before."""
    x = x.clone()
    x[:, 1] *= 40 if float(x[0, 0]) > 0.67 else 1
    x[:, 2] = 0
    return x


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        rare,
        from_step(20, lambda x: x * UNITS.sqrt()),
        from_step(20, lambda x: 3 * x),
    ],
)
def test_columns_that_vary_do_not_dominate(change: Callable[[Tensor], Tensor]) -> None:
    assert not [a for a in said(Inputs, change=change, steps=60) if "dominates" in a.message]


def test_a_shift_of_the_input_names_its_column() -> None:
    units = torch.where(UNITS > 1, 200.0, 1.0)
    alerts = said(SuddenShift, change=from_step(40, lambda x: x * units), steps=50, lr=0.0)
    (alert,) = (alert for alert in alerts if alert.kind == "input")
    assert (alert.site, alert.step, alert.since) == ("", 41, 40)
    assert "; channel 4 has" in alert.message
    assert alert.advice == "look at the batch of this step"


def test_inputs_that_were_scaled_twice() -> None:
    (alert,) = said(Inputs, change=lambda x: x / 255)
    assert (alert.step, alert.site) == (0, "")
    assert "is small throughout" in alert.message
    assert said(Inputs, change=lambda x: x / 50) == []


def test_weights_that_all_begin_with_zeros() -> None:
    model = network()
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    assert said(Initialisation, model) == []
    for weight in (model[0].weight, model[2].weight):
        nn.init.zeros_(weight)  # type: ignore[arg-type]
    (alert,) = said(Initialisation, model)
    assert (alert.site, alert.severity) == ("0.weight", "error")
    assert "and so do all 2 weights" in alert.message


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.copy_(torch.arange(w.numel()).view_as(w)),
        lambda w: w.fill_(0.4),
        lambda w: w[0].zero_(),
        lambda w: w.mul_(1e-6),
    ],
    ids=["numbers", "constant", "a row of zeros", "tiny"],
)
def test_frozen_weights_are_as_somebody_wanted_them(
    change: Callable[[Tensor], Tensor], frozen: bool
) -> None:
    """As the numbers of bins by which a detector's head takes the mean of a distribution."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    with torch.no_grad():
        change(model[2].weight)
    model[2].weight.requires_grad_(not frozen)
    assert [alert.site for alert in said(Initialisation, model)] == ["2.weight"] * (not frozen)


def test_the_bias_of_a_module_called_embedding_is_no_embedding() -> None:
    class EmbeddingOfNumbers(nn.Linear):
        """Numbers are multiplied, and get a bias."""

    numbers = EmbeddingOfNumbers(6, 8)
    nn.init.constant_(numbers.bias, 5.0)
    assert not said(Initialisation, nn.Sequential(numbers, nn.ReLU(), nn.Linear(8, 3)))


def test_first_outputs_of_hundreds() -> None:
    (alert,) = said(Exploding, change=lambda x: 1000 * x.abs())
    assert (alert.step, alert.site, alert.severity) == (0, "0", "warning")
    assert "in the first step, where 1 is usual" in alert.message


def test_values_that_explode_slowly() -> None:
    size = iter([1.3**step for step in range(60)])
    alerts = said(Exploding, nn.Linear(6, 3), lambda x: x * next(size), steps=60, lr=0.0)
    (alert,) = (alert for alert in alerts if alert.site == "" and alert.kind == "output")
    assert alert.severity == "error"
    assert "times what it began with" in alert.message


class Experts(nn.Module):
    """Three experts, the last of which runs only in some steps."""

    def __init__(self, name: str, every: int) -> None:
        super().__init__()
        self.add_module(name, nn.ModuleList(nn.Linear(6, 3) for _ in range(3)))
        self.name, self.every, self.calls = name, every, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        several = list(self.get_submodule(self.name).children())
        chosen = several if self.calls % self.every == 0 else several[:2]
        return torch.stack([one(x) for one in chosen]).sum(0)


@pytest.mark.check
@pytest.mark.parametrize(("name", "severity"), [("experts", "warning"), ("heads", "note")])
def test_experts_that_never_run(name: str, severity: str) -> None:
    (alert,) = said(Untrained, Experts(name, 1000), steps=52)
    assert (alert.site, alert.step, alert.severity) == (f"{name}.2", 49, severity)
    assert said(Untrained, Experts(name, 20), steps=52) == []


@pytest.mark.parametrize(
    ("optimizer", "decay", "found"),
    [(Adam, 10.0, 1), (Adam, 0.01, 0), (AdamW, 10.0, 0)],
)
def test_a_decay_that_adam_adds_to_the_gradient(
    optimizer: type[Optimizer], decay: float, found: int
) -> None:
    torch.manual_seed(0)
    model = network()
    steps = optimizer(model.parameters(), lr=1e-4, weight_decay=decay)  # type: ignore[call-arg]
    with watch(model, steps, every=1, rules=WeightDecay(action=lambda alert: None)) as w:
        for _ in range(12):
            steps.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(30, 6)), TARGETS).backward()  # type: ignore[no-untyped-call]
            steps.step()
    assert [(alert.step, alert.site) for alert in w.alerts] == [(9, "0.weight")] * found
    assert all("AdamW" in alert.advice for alert in w.alerts)


@pytest.mark.parametrize("every", [1, 10])
def test_nan_that_spread_before_a_step_was_recorded(every: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    optimizer = SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=every, rules="non-finite") as w:
        for step in range(31):
            if step == 23:
                with torch.no_grad():
                    model[2].weight[0, 0] = torch.nan  # type: ignore[index,operator]
            loss = model(torch.randn(16, 8)).square().mean()
            w.log(loss=loss)
            take_step(optimizer, loss)
    first, *_ = w.alerts
    expected = (23, "2") if every == 1 else (30, "0")
    assert (first.step, first.site) == expected
    assert ("a loss was not finite before" in first.message) == (every == 10)
    assert ("need not be where it began" in first.advice) == (every == 10)


class Coded(nn.Module):
    """Draws a code as a variational autoencoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.mu, self.logvar, self.out = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.mu(x), self.logvar(x)
        return self.out(mu + (0.5 * logvar).exp() * torch.randn_like(mu)), mu, logvar


@pytest.mark.check
@pytest.mark.parametrize(("weight", "found"), [(3.0, 1), (1e-4, 0)])
def test_a_posterior_that_collapses(weight: float, found: int) -> None:
    torch.manual_seed(0)
    model = Coded()
    steps = Adam(model.parameters(), lr=0.02)
    with watch(model, steps, every=1, rules=Fading(action=lambda alert: None)) as w:
        for _ in range(120):
            x = torch.randn(64, 6)
            out, mu, logvar = model(x)
            divergence = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum()
            loss = (out - x).square().mean() + weight * divergence / len(x)
            w.log(loss=loss)
            take_step(steps, loss)
    assert [(alert.site, alert.severity) for alert in w.alerts] == [("mu", "warning")] * found
    assert all("the posterior has collapsed" in alert.message for alert in w.alerts)


def test_an_output_that_fades_is_a_note() -> None:
    size = iter([0.9**step for step in range(60)])
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3))
    (alert,) = said(Fading, model, lambda x: x * next(size), steps=60, lr=0.0)
    assert (alert.site, alert.severity) == ("0", "note")
    assert "has faded to 0.0" in alert.message
    assert said(Fading, steps=60) == []


def test_a_rate_that_fades_before_the_loss_falls() -> None:
    (alert,) = said(LearningRate, steps=60, lr=0.001, schedule=lambda step: 0.7**step)
    assert alert.site == "lr/0"
    assert "has fallen from 0.001 to" in alert.message
    assert "once per epoch" in alert.advice


def test_a_rate_may_fade_at_the_end() -> None:
    def cosine(step: int) -> float:
        return float(0.5 * (1 + torch.cos(torch.tensor(torch.pi * min(step, 60) / 60))))

    assert said(LearningRate, steps=60, lr=0.001, schedule=cosine) == []


def test_gradients_that_are_always_clipped() -> None:
    (alert,) = said(Clipping, steps=44, clip=1e-3)
    assert (alert.step, alert.severity) == (39, "note")
    assert "is 0.001 in each step" in alert.message
    assert said(Clipping, steps=40, clip=100.0) == []
    assert said(Clipping, change=from_step(20, lambda x: x * torch.nan), steps=44, clip=1e-3) == []


def test_a_clip_that_stops_the_weights_is_the_remedy() -> None:
    (alert,) = said(UpdateSize, steps=20, clip=1e-5)
    assert alert.advice.startswith("raise max_norm: every step clips gradients to 1e-05")
    (alert,) = said(UpdateSize, steps=20, lr=1e-9)
    assert alert.advice.startswith("try a rate near 0.0")


@pytest.mark.parametrize(
    ("lr", "advice"),
    [(0.0, "raise the learning rate: it is 0"), (1e-9, "try a rate near")],
)
def test_gradients_of_one_batch_are_not_clipped(lr: float, advice: str) -> None:
    batch = torch.randn(30, 6)
    (alert,) = said(UpdateSize, change=lambda x: batch, steps=20, lr=lr)
    assert alert.advice.startswith(advice)
    assert said(Clipping, change=lambda x: batch, steps=44, lr=lr) == []
