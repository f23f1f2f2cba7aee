"""The rules about what goes into the loss, and about gradients that are not zeroed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.alerts import alerts
from torch import Tensor, nn
from torch.nn import functional

from hookstats.hooks.attach import select
from hookstats.rules import (
    Accumulation,
    Alert,
    Collapse,
    Dropout,
    Initialisation,
    LinearRange,
    Logits,
    Loss,
    Rule,
    Targets,
    UpdateSize,
)
from hookstats.watching.setup import setup_of
from hookstats.watching.watch import watch


def classifier(*last: nn.Module, classes: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes), *last)


def said(
    rule: type[Rule],
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    labels: Callable[[int], Tensor] = lambda step: torch.randint(5, (32,)),
    zeroes: Callable[[int], bool] = lambda step: True,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.01),
    steps: int = 8,
    samples: int = 32,
) -> list[Alert]:
    """What a rule says while a model trains; steps in which `zeroes` is false keep gradients."""
    torch.manual_seed(0)
    stepped = optimizer(model.parameters())
    with watch(model, stepped, rules=rule(action=lambda alert: None)) as w:
        for step in range(steps):
            if zeroes(step):
                stepped.zero_grad()
            found = loss(model(torch.randn(samples, 6)), labels(step))
            w.log(loss=found)
            found.backward()  # type: ignore[no-untyped-call]
            stepped.step()
    assert w.coverage().failures == {}
    return list(w.alerts)


@pytest.mark.parametrize("last", [nn.ReLU(), nn.Softmax(-1)])
def test_logits_that_something_changed(last: nn.Module) -> None:
    (alert,) = said(Logits, classifier(last))
    assert (alert.step, alert.site, alert.kind) == (1, "3", "output")
    assert f"comes from a {type(last).__name__}" in alert.message


def test_other_losses_take_what_they_like() -> None:
    def squares(x: Tensor, labels: Tensor) -> Tensor:
        return (x - functional.one_hot(labels, 5)).square().mean()

    def likelihood(x: Tensor, labels: Tensor) -> Tensor:
        return functional.nll_loss(x, labels)

    assert said(Logits, classifier()) == []
    assert said(Logits, classifier(nn.ReLU()), squares) == []
    assert said(Logits, classifier(nn.Softmax(-1)), squares) == []
    assert said(Logits, classifier(nn.LogSoftmax(-1)), likelihood) == []


def test_targets_of_one_class() -> None:
    (alert,) = said(Targets, classifier(), labels=lambda step: torch.full((32,), 3), steps=16)
    assert (alert.step, alert.site, alert.channel, alert.value) == (14, "2", 3, 32)
    assert "all 32 targets of the batch are of class 3" in alert.message
    (alert,) = said(
        Targets,
        classifier(),
        labels=lambda step: torch.randint(5, (32,)) if step < 18 else torch.full((32,), 1),
        steps=24,
    )
    assert (alert.step, alert.channel) == (20, 1)


def test_targets_of_one_class_that_the_model_is_soon_sure_of() -> None:
    """The gradients of a certain cross-entropy are rounded, and do not add up to zero."""
    (alert,) = said(
        Targets,
        classifier(),
        labels=lambda step: torch.full((16,), 3),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.1),
        steps=32,
        samples=16,
    )
    assert (alert.step, alert.channel, alert.value) == (26, 3, 16)


def test_targets_of_more_than_one_class_or_of_few_samples() -> None:
    two = torch.arange(32) % 2
    assert said(Targets, classifier(), labels=lambda step: two) == []
    assert said(Targets, classifier(classes=2), labels=lambda step: 0 * two) == []
    once = [0 * two, two, 0 * two, 0 * two]
    assert said(Targets, classifier(), labels=lambda step: once[step], steps=4) == []


@pytest.mark.parametrize(
    ("share", "classes", "ignored", "found"),
    [(0.9, 24, -100, 1), (0.6, 24, -100, 0), (0.9, 12, -100, 0), (0.9, 24, 0, 0)],
)
def test_targets_that_are_mostly_padding(
    share: float, classes: int, ignored: int, found: int
) -> None:
    def step() -> dict[tuple[str, str], Tensor]:
        logits = (0.3 * torch.randn(400, classes)).requires_grad_()
        targets = torch.randint(1, classes, (400,)) * (torch.rand(400) > share)
        functional.cross_entropy(logits, targets, ignore_index=ignored).backward()  # type: ignore[no-untyped-call]
        assert logits.grad is not None
        return {("head", "output"): logits.detach(), ("head", "grad_output"): logits.grad}

    torch.manual_seed(0)
    told = alerts(Targets(), [step() for _ in range(6)])
    assert [(a.step, a.severity, a.channel) for a in told] == [(2, "note", 0)] * found
    assert all(alert.value == pytest.approx(share, abs=0.05) for alert in told)


def flat(model: nn.Module, **kwargs: Any) -> Alert:
    """What is said of labels of which inputs tell nothing, and a loss that has little noise."""

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(0.1 * x, labels)

    (alert,) = said(Loss, model, loss, steps=61, **kwargs)
    assert (alert.step, alert.since, alert.severity) == (59, 0, "note")
    return alert


def test_a_loss_that_does_not_fall_says_what_was_ruled_out() -> None:
    alert = flat(classifier(nn.Dropout(0.1)))
    says, ruled_out = alert.message.split("; ruled out: ")
    assert "suspect" not in says
    assert ruled_out.startswith("a vanished learning rate (it is 0.01), missing gradients (4 of 4 ")
    for one in ("tiny steps", "eval mode", "a loss that is not of the outputs"):
        assert one in ruled_out
    assert "labels and data" in alert.advice


class Cut(nn.Module):
    """Trains its last layer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).detach())
        return out


def test_a_loss_that_does_not_fall_says_what_looks_wrong() -> None:
    slow = flat(classifier(), optimizer=lambda p: torch.optim.SGD(p, lr=1e-6))
    assert "; suspect: steps that change weights by" in slow.message
    assert "tiny steps" not in slow.message
    assert slow.advice == "multiply the learning rate by ten"
    dead = flat(classifier(nn.Threshold(1e3, 0.0)))
    assert "suspect: gradients that are exactly zero, those of 2 of 2 weights;" in dead.message
    assert "the learning rate" not in dead.advice
    cut = flat(Cut())
    assert "; suspect: gradients that reach 2 of 4 parameters; ruled out: " in cut.message
    assert "cuts the graph" in cut.advice
    asleep = flat(classifier(nn.Dropout(0.1)).eval())
    assert "; suspect: modules in eval mode; " in asleep.message
    assert asleep.advice.startswith("call model.train()")


def test_gradients_that_are_not_zeroed() -> None:
    (alert,) = said(Accumulation, classifier(), zeroes=lambda step: step < 3)
    assert (alert.step, alert.site, alert.kind) == (4, "0.bias", "param_grad")
    assert alert.value == pytest.approx(1, rel=1e-4)
    assert "gradients are not zeroed" in alert.message


def test_gradients_that_are_zeroed_clipped_or_accumulated_over_micro_batches() -> None:
    assert said(Accumulation, classifier()) == []
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, rules=Accumulation(action=lambda alert: None)) as w:
        for _ in range(6):
            for _ in range(3):
                x, labels = torch.randn(32, 6), torch.randint(5, (32,))
                functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    assert w.alerts == ()


def test_what_one_player_adds_to_the_other_ones_gradients_is_no_accumulation() -> None:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    judge = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    optimizers = [
        torch.optim.Adam(one.parameters(), 2e-4, betas=(0.5, 0.999)) for one in (maker, judge)
    ]
    loss = functional.binary_cross_entropy_with_logits
    one, zero = torch.ones(64, 1), torch.zeros(64, 1)
    with watch([maker, judge], optimizers, rules=Accumulation(action=lambda alert: None)) as w:
        for _ in range(30):
            real, made = torch.randn(64, 2) + 3, maker(torch.randn(64, 8))
            optimizers[1].zero_grad()
            (loss(judge(real), one) + loss(judge(made.detach()), zero)).backward()  # type: ignore[no-untyped-call]
            optimizers[1].step()
            optimizers[0].zero_grad()
            loss(judge(made), one).backward()  # type: ignore[no-untyped-call]
            optimizers[0].step()
    assert w.alerts == ()


def test_a_dropout_that_keeps_what_it_should_drop() -> None:
    (alert,) = said(Dropout, classifier(nn.Dropout(0.9), classes=64))
    assert (alert.step, alert.site, alert.value) == (0, "3", 0.9)
    assert said(Dropout, classifier(nn.Dropout(0.5), classes=64)) == []
    # What a ReLU made zero was not dropped.
    behind = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 5))
    with torch.no_grad():
        behind[0].bias.fill_(-1.0)
    assert said(Dropout, behind) == []


def test_activations_in_their_linear_range() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))
    assert said(LinearRange, model) == []
    with torch.no_grad():
        model[0].weight.mul_(0.01)
        model[0].bias.mul_(0.01)
    (alert,) = said(LinearRange, model)
    assert (alert.step, alert.site, alert.value < 0.03) == (2, "1", True)
    rectified = nn.Sequential(model[0], nn.ReLU(), model[2])  # bent at zero, at any size
    assert said(LinearRange, rectified) == []


class Adapted(nn.Linear):
    """A layer with a low-rank adapter, which begins at zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)
        nn.init.normal_(self.up.weight, 0.0, 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up(self.down(x))


def test_what_enters_an_activation_may_be_more_than_the_output_before_it() -> None:
    assert said(LinearRange, nn.Sequential(Adapted(6, 8), nn.GELU(), nn.Linear(8, 5))) == []


def test_rows_of_few_values_are_of_any_size() -> None:
    for inputs, found in ((2, []), (16, ["0.weight"])):
        model = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 5))
        with torch.no_grad():
            model[0].weight[7] *= 0.01
        setup = setup_of(select(model, ("param_grad",), None, None, "watch"), [])
        assert [w.name for w in setup.weights if w.rows is not None] == found


def test_a_norm_that_begins_unlike_its_peers() -> None:
    def normed() -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(4)))

    assert said(Initialisation, normed()) == []
    model = normed()
    with torch.no_grad():
        model[2][1].weight.fill_(40.0)
        model[1][1].weight.fill_(0.0)  # as residual branches may begin
    (alert,) = said(Initialisation, model, steps=1)
    assert (alert.site, alert.value) == ("2.1.weight", 40.0)


@pytest.mark.parametrize(
    ("gains", "biases", "found"),
    [(0.0, 0.0, ["0.weight"]), (0.1, 0.0, ["0.weight"]), (0.1, 0.1, [])],
)
def test_weights_that_were_trained_before_do_not_begin(
    gains: float, biases: float, found: list[str]
) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    with torch.no_grad():
        model[0].weight[3] = 0.0  # a filter that died
    nn.init.normal_(model[1].weight, 1.0, gains)  # some begin with such norms
    nn.init.normal_(model[1].bias, 0.0, biases)
    assert [alert.site for alert in said(Initialisation, model, steps=1)] == found


def test_heads_may_begin_small() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 16)
            self.policy = nn.Linear(16, 5)
            self.value = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.body(x).tanh()
            return self.policy(hidden).softmax(-1) * self.value(hidden)

    model = Agent()
    with torch.no_grad():
        model.policy.weight.mul_(0.01)
    assert said(Initialisation, model, steps=1) == []
    with torch.no_grad():
        model.body.weight.mul_(0.01)
    assert [alert.site for alert in said(Initialisation, model, steps=1)] == ["body.weight"]


def test_the_last_output_may_hardly_depend_on_the_sample() -> None:
    small = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 10), nn.Softmax(-1))
    with torch.no_grad():
        small[2].weight.mul_(0.01)
        small[2].bias.zero_()
    assert said(Collapse, small) == []
    behind = nn.Sequential(*small, nn.Linear(10, 5))
    assert [alert.site for alert in said(Collapse, behind, steps=12)] == ["3"]


@pytest.mark.parametrize("last", [nn.Identity, nn.Sigmoid])
def test_a_head_beside_another_may_hardly_depend_on_the_sample(last: type[nn.Module]) -> None:
    """Detectors begin with the bias of a rare class ("Focal loss", Lin et al., 2017)."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.classes = nn.Linear(6, 16), nn.Linear(16, 10)
            self.last, self.box = last(), nn.Linear(16, 5)
            nn.init.normal_(self.classes.weight, std=0.001)
            nn.init.constant_(self.classes.bias, -4.6)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.body(x).relu()
            rare = self.last(self.classes(hidden))
            return self.box(hidden) + 1e-3 * rare[:, :5]

    assert said(Collapse, Detector(), steps=12) == []


class Conv1D(nn.Module):
    """A linear layer as GPT-2 of transformers has it, whose weight is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * gain / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_the_gain_of_a_transposed_weight_is_that_of_its_inputs() -> None:
    assert said(Initialisation, nn.Sequential(Conv1D(6, 600, 2.0), nn.Linear(600, 5))) == []
    (alert,) = said(Initialisation, nn.Sequential(Conv1D(6, 600, 8.0), nn.Linear(600, 5)), steps=1)
    assert alert.value == pytest.approx(8.0, rel=0.1)


def test_an_epsilon_that_swallows_the_steps() -> None:
    def adam(epsilon: float) -> Callable[[Any], torch.optim.Optimizer]:
        return lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=epsilon)

    assert said(UpdateSize, classifier(), optimizer=adam(1e-8), steps=12) == []
    (alert,) = said(UpdateSize, classifier(), optimizer=adam(1e5), steps=12)
    assert alert.rule == "update size"
