"""The rules about numbers that training logs, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.samples import record_of
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.records.tensors import of_tensors
from hookstats.rules import (
    Alert,
    Clipping,
    LearningRate,
    Loss,
    LossScale,
    Monitor,
    NonFinite,
    Rule,
    RuleWarning,
    Setup,
    WeightDecay,
)
from hookstats.rules import monitor as monitor_module
from hookstats.rules.history import History
from hookstats.rules.rule import ScalarRule
from hookstats.rules.setup import Group
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch


def of_scalars(
    rule: Rule, values: Iterable[float], name: str = "loss", setup: Setup | None = None
) -> list[Alert]:
    """What a rule says of a number, step by step."""
    monitor = Monitor([rule], setup)
    for step, value in enumerate(values):
        monitor.examine_scalars(step, {name: value})
    assert monitor.failures == {}
    return monitor.alerts


def falling(n: int = 40, noise: float = 0.05) -> list[float]:
    """The losses of a sound run."""
    generator = torch.Generator().manual_seed(0)
    jitter = torch.randn(n, generator=generator).mul(noise).tolist()
    return [2.0 * 0.95**step + more for step, more in enumerate(jitter)]


def test_a_loss_that_falls_is_no_news() -> None:
    assert of_scalars(Loss(), falling()) == []
    assert of_scalars(Loss(), falling(noise=0.3)) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_error(value: float) -> None:
    (alert,) = of_scalars(Loss(), [1.0, 1.0, value, value])
    assert (alert.step, alert.severity, alert.kind) == (2, "error", "scalar")
    assert alert.message == f"loss: step 2: loss is {value}"


def test_a_loss_that_leaps() -> None:
    losses = falling()
    losses[30] += 2.0
    (alert,) = of_scalars(Loss(), losses)
    assert (alert.step, alert.severity) == (30, "warning")
    assert "leaps to" in alert.message
    assert of_scalars(Loss(), losses, "val/loss") == []
    assert of_scalars(Loss(), losses, "accuracy") == []


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("train_loss", "train/loss", "train_loss_step", "loss/train")),
        *((name, False) for name in ("val_loss", "validation_loss", "eval/loss", "loss/test")),
        *((name, False) for name in ("loss_scale", "loss_weight", "lossless", "dev_loss_step")),
    ],
)
def test_which_numbers_are_losses_of_the_training(name: str, is_one: bool) -> None:
    losses = falling()
    losses[30] += 2.0
    assert len(of_scalars(Loss(), losses, name)) == is_one


def test_a_loss_that_climbs_and_one_that_does_not_fall() -> None:
    (alert,) = of_scalars(Loss(), [1.0 * 1.04**step for step in range(16)])
    assert "climbs" in alert.message
    still = [2.3 + 0.05 * math.sin(7 * step) for step in range(40)]
    (alert,) = of_scalars(Loss(), still)
    assert (alert.step, "does not fall" in alert.message) == (29, True)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("g_loss", "d_loss"), []),  # of two players, none need fall
        (("loss", "aux_loss"), ["loss"]),
        (("train/loss_step", "kl_loss"), ["train/loss_step"]),
        (("mse_loss",), ["mse_loss"]),
    ],
)
def test_which_losses_have_to_fall(names: tuple[str, ...], found: list[str]) -> None:
    monitor = Monitor([Loss()])
    for step in range(40):
        monitor.examine_scalars(step, dict.fromkeys(names, 2.3 + 0.05 * (-1) ** step))
    assert [alert.site for alert in monitor.alerts] == found
    monitor.examine_scalars(40, dict.fromkeys(names, math.nan))
    assert [alert.site for alert in monitor.alerts[len(found) :]] == list(names)


def test_a_loss_that_does_not_fall_is_looked_for_within_what_is_kept() -> None:
    still = [2.3 + 0.05 * (-1) ** step for step in range(80)]
    (alert,) = of_scalars(Loss(steps=63), still)
    assert (alert.step, "does not fall" in alert.message) == (62, True)
    for steps in (23, 64):
        with pytest.raises(ValueError, match=f"steps = {steps}: expected an integer in 24\\.\\.63"):
            Loss(steps=steps)


@pytest.mark.parametrize(
    ("norms", "said"),
    [
        (lambda step: 1.0, 29),
        (lambda step: 1.05**step, None),  # training is about to leave the plateau
        (lambda step: 1.05 ** min(step, 20), 53),  # it was not: nothing grows any more
        (lambda step: math.nan, 29),
    ],
)
def test_a_plateau_whose_gradients_grow(norms: Callable[[int], float], said: int | None) -> None:
    monitor = Monitor([Loss()])
    for step in range(60):
        loss = 2.3 + 0.05 * (-1) ** step
        norm = norms(step) * (1 + 0.1 * math.sin(5 * step))
        monitor.examine_scalars(step, {"loss": loss, "grad_norm": norm})
    assert [alert.step for alert in monitor.alerts] == ([] if said is None else [said])


@pytest.mark.parametrize("form", [lambda record: record, of_tensors])
def test_a_loss_of_a_guess_needs_no_channels(form: Callable[[StepRecord], StepRecord]) -> None:
    monitor = Monitor([Loss()])
    for step in range(30):
        record = form(record_of({("head", "output"): (torch.ones(8, 10), 1)}, step))
        record.complete({"loss": 3.0 if step < 12 else math.log(10)})
        monitor.examine(record)
    (alert,) = monitor.alerts
    assert "that of a guess among 10 classes" in alert.message


@pytest.mark.parametrize(
    ("shape", "loss", "said"),
    [
        ((32, 1000), 6.93, False),  # one sample of each class
        ((32, 1000), 9.0, True),  # worse than a guess anyway
        ((2, 16, 1000), 6.908, True),  # tokens, which are not all as frequent
        ((800, 1000), 6.908, True),
    ],
)
def test_a_guess_among_more_classes_than_there_were_samples(
    shape: tuple[int, ...], loss: float, said: bool
) -> None:
    monitor = Monitor([Loss()])
    for step in range(60):
        record = record_of({("head", "output"): (torch.ones(shape), len(shape) - 1)}, step)
        record.complete({"loss": loss + 0.001 * (-1) ** step})
        monitor.examine(record)
    assert len(monitor.alerts) == said


def test_a_loss_in_a_warm_up_need_not_fall() -> None:
    monitor = Monitor([Loss()])
    for step in range(40):
        monitor.examine_scalars(step, {"lr/0": 1e-6 * step, "loss": 2.3})
    assert monitor.alerts == []


def test_a_learning_rate_that_jumps() -> None:
    rates = [0.1] * 12
    assert [a.step for a in of_scalars(LearningRate(), [*rates, 1.0], "lr/0")] == [12]
    assert [a.step for a in of_scalars(LearningRate(), [*rates, 0.0], "lr/0")] == [12]
    assert of_scalars(LearningRate(), [*rates, 0.01], "lr/0") == []  # a schedule
    assert of_scalars(LearningRate(), [1e-6 * (step + 1) for step in range(20)], "lr/0") == []
    cosine = [0.05 * (1 + math.cos(math.pi * step / 50)) for step in range(51)]
    assert of_scalars(LearningRate(), cosine, "lr/0") == []
    assert of_scalars(LearningRate(), 3 * cosine[:-1], "lr/0") == []  # warm restarts
    assert [a.step for a in of_scalars(LearningRate(), [*cosine[:-1], 0.5], "lr/0")] == [50]


@pytest.mark.parametrize(
    ("algorithm", "decay", "found"), [("AdamW", 50.0, 1), ("AdamW", 0.1, 0), ("Adam", 50.0, 0)]
)
def test_a_weight_decay_that_shrinks_the_weights_away(
    algorithm: str, decay: float, found: int
) -> None:
    setup = Setup({}, (), (Group(algorithm, 0.0, decay),))
    alerts = of_scalars(WeightDecay(), [1e-3] * 3, "lr/0", setup)
    assert len(alerts) == found


def test_gradients_that_are_no_longer_clipped() -> None:
    clipped = [1.0, 0.7] * 12
    (alert,) = of_scalars(Clipping(), [*clipped, 3.0], "grad_norm")
    assert alert.step == 24
    assert of_scalars(Clipping(), [*clipped, 1.0], "grad_norm") == []
    free = [1.0 + 0.01 * step for step in range(24)]
    assert of_scalars(Clipping(), [*free, 3.0], "grad_norm") == []


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.7, 1.0, 1.05, 3.0, math.nan, math.inf]), max_size=40))
def test_clipping_is_what_the_rule_says(norms: list[float]) -> None:
    rule, history = Clipping(), History()
    for step, norm in enumerate(norms):
        history.push_scalars({"grad_norm": norm})
        before = np.array(norms[max(0, step - 24) : step])
        expected = bool(
            len(before) >= 16
            and np.isfinite(before).all()
            and (before >= (1 - rule.tolerance) * before.max()).mean() >= rule.share
            and norm > rule.factor * before.max() > 0
        )
        assert bool(list(rule.check_scalars(step, {"grad_norm": norm}, history))) == expected


def test_rules_about_scalars_are_not_asked_about_records(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = (WeightDecay, LearningRate, Clipping, Loss)
    assert all(issubclass(rule, ScalarRule) for rule in rules)
    monkeypatch.setattr(ScalarRule, "check", None)  # a call fails
    monitor = Monitor([rule() for rule in rules])
    record = record_of({("a", "output"): (torch.ones(2, 2), 1)}, 0)
    record.complete({"loss": math.nan, "lr/0": 0.1, "grad_norm": 1.0})
    with pytest.warns(RuleWarning, match="loss"):
        monitor(record)
    assert monitor.failures == {}


def test_a_rule_about_scalars_that_checks_records_is_asked_about_them() -> None:
    class Both(Loss):
        def check(self, record: StepRecord, history: History) -> list[Alert]:
            return [self.alert(record, 0, "is looked at", 0.0)]

    got: list[Alert] = []
    monitor = Monitor([Both(action=got.append)])
    monitor(record_of({("a", "output"): (torch.ones(2, 2), 1)}, 0))
    assert [alert.site for alert in got] == ["a"]


def test_scalars_of_a_record_are_checked_once() -> None:
    monitor = Monitor([Loss()])
    record = record_of({("a", "output"): (torch.ones(2, 2), 1)}, 0)
    record.complete({"loss": 1.0})
    monitor(record)
    monitor.write_scalars(0, 0, {"loss": 1.0, "later_loss": 2.0})
    monitor.write_scalars(1, 0, {"loss": 3.0})
    assert dict(monitor._history.scalars) == {"loss": [1.0, 3.0], "later_loss": [2.0]}


def test_numbers_of_a_step_have_nobody_look_at_findings_about_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = Monitor([NonFinite(action=lambda alert: None), Loss()])
    record = record_of({("a", "output"): (torch.full((4, 3), math.nan), 1)}, 0)
    monitor(record)
    (alert,) = monitor.alerts
    looked: list[object] = []

    def look(finding: object) -> bool:
        looked.append(finding)
        return True

    monkeypatch.setattr(monitor_module._Finding, "is_live", property(look))
    monitor.examine_scalars(1, {"loss": 1.0, "lr/0": 0.1})
    assert looked == []
    monitor(replace(record, step=2))
    assert looked
    assert monitor.alerts == [alert]


def iterate(model: nn.Module, optimizer: torch.optim.Optimizer, w: Watch, closes: bool) -> None:
    """An iteration whose optimizer steps, or is skipped as by a loss scaler."""
    loss = model(torch.randn(4, 3)).square().mean()
    w.log(loss=loss)
    loss.backward()
    if closes:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_iterations_that_close_no_step(micro_batches: int) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    got: list[Alert] = []
    with watch(model, optimizer, rules=LossScale(action=got.append)) as w:
        for i in range(10 * micro_batches):
            iterate(model, optimizer, w, (i + 1) % micro_batches == 0)
        assert w.alerts == ()
        for _ in range(2 * micro_batches + 1):
            iterate(model, optimizer, w, closes=False)
        assert len(w.alerts) == 1
    assert [(alert.step, alert.site, alert.kind) for alert in got] == [(10, "loss", "scalar")]
    assert "iterations in a row closed none" in got[0].message


def test_micro_batches_that_an_epoch_leaves_over() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, rules=LossScale(action=lambda alert: None)) as w:
        for _ in range(6):  # epochs of ten batches: the last two are of the next epoch's first step
            for i in range(10):
                iterate(model, optimizer, w, (i + 1) % 4 == 0)
    assert w.alerts == ()


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        (["lr/0", "hookstats/seconds", "steps_per_second"], [WeightDecay, LearningRate]),
        (["lr/0", "train_loss"], [WeightDecay, LearningRate, Loss]),
        (["grad_norm"], [Clipping]),
        (["accuracy"], []),
    ],
)
def test_rules_are_called_with_numbers_that_they_look_at(
    names: list[str], asked: list[type[Rule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[type[Rule]] = []

    def note(rule: Rule, step: int, values: object, history: object) -> Iterable[Alert]:
        called.append(type(rule))
        return ()

    for rule in (WeightDecay, LearningRate, Clipping, LossScale, Loss):
        monkeypatch.setattr(rule, "check_scalars", note)
    monitor = Monitor()
    for step in range(2):
        monitor.write_scalars(step, 0, dict.fromkeys(names, 1.0))
    assert called == 2 * asked
    monitor.write_unclosed(2, {"accuracy": 1.0}, 1)
    assert called[2 * len(asked) :] == [WeightDecay, LearningRate, Clipping, LossScale, Loss]


_NUMBERS = st.dictionaries(
    st.sampled_from(["lr/0", "lr/1", "loss", "grad_norm", "accuracy"]),
    st.sampled_from([0.0, 0.1, 1.0, 1.05, 20.0, math.nan]),
    max_size=4,
)


@given(st.lists(st.tuples(_NUMBERS, st.integers(0, 8)), min_size=10, max_size=60))
def test_what_rules_do_not_look_at_changes_no_alert(
    steps: list[tuple[dict[str, float], int]],
) -> None:
    found = []
    for looks in (None, lambda rule, name: True):
        with pytest.MonkeyPatch.context() as patch:
            rules = [
                LearningRate(steps=2, every=1),
                WeightDecay(every=1),
                Clipping(every=1),
                LossScale(iterations=2, every=1),
                Loss(every=1),
            ]
            if looks is not None:
                for rule in rules:
                    patch.setattr(type(rule), "looks_at", looks)
            monitor = Monitor(rules, Setup({}, (), (Group("SGD", 0.0, 0.1),)))
            monitor._history.pushed = 8
            for step, (values, unclosed) in enumerate(steps):
                for iteration in range(1, unclosed - 5):
                    monitor.write_unclosed(step, values or {"loss": 1.0}, iteration)
                monitor.write_scalars(step, 0, values)
            assert monitor.failures == {}
            found.append(monitor.alerts)
    assert found[0] == found[1]
