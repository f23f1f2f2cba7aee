"""Rules: what each finds in records, what each refuses, and the history that they look at."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.alerts import alerts
from support.samples import record_of, sample
from torch import Tensor, nn

from hookstats.records.record import StepRecord
from hookstats.rules import (
    Alert,
    DeadChannels,
    Exploding,
    History,
    Monitor,
    NonFinite,
    Rule,
    SuddenShift,
    Vanishing,
    as_rules,
    default_rules,
)
from hookstats.rules.history import WINDOW
from hookstats.rules.setup import Setup
from hookstats.watching.watch import watch

NAN, INF = torch.nan, torch.inf


def normal(scale: float = 1.0, shape: tuple[int, ...] = (16, 4)) -> Tensor:
    return scale * torch.randn(shape)


# The rules, one by one


def test_non_finite_names_the_first_tensor_and_its_channel() -> None:
    broken = normal()
    broken[3, 2], broken[4, 2], broken[0, 3] = NAN, NAN, -INF
    healthy = {("a", "output"): normal(), ("b", "output"): normal(), ("b", "grad_output"): normal()}
    sick = healthy | {("b", "output"): broken, ("b", "grad_output"): broken}
    (alert,) = alerts(NonFinite(), [healthy, healthy, sick, sick])
    assert alert == Alert(
        step=2,
        rank=0,
        site="b",
        kind="output",
        channel=2,
        rule="non-finite",
        value=3.0,
        message="non-finite: step 2: output of 'b' has 2 NaN and 1 -inf, first in channel 2; "
        "1 of the tensors after it is non-finite, too",
        severity="error",
    )
    (alert,) = alerts(NonFinite(), [healthy, {("b", "grad_output"): broken}], rank=3)
    assert alert.severity == "warning"  # a loss scaler does this now and then
    assert alert.message.startswith("non-finite: step 1, rank 3: grad_output of 'b' has 2 NaN")


def test_exploding_is_far_above_its_past_and_large() -> None:
    def steps(*scales: float, kind: str = "output") -> list[dict[tuple[str, str], Tensor]]:
        return [{("a", kind): normal(), ("b", kind): normal(scale)} for scale in scales]

    (alert,) = alerts(Exploding(), steps(1, 2, 1, 1e4, 1e5))
    assert (alert.step, alert.site, alert.kind, alert.severity) == (3, "b", "output", "error")
    assert alert.value == pytest.approx(1e4, rel=0.5)
    assert "output of 'b' has an rms of " in alert.message
    assert f"with the greatest magnitude in channel {alert.channel}" in alert.message
    assert not alerts(Exploding(), steps(1e-4, 1e-4, 1.0))  # of values, 1 is not large
    assert not alerts(Exploding(), steps(1e-4, 1e-4, 3.0, 3.0, kind="grad_output"))
    assert not alerts(Exploding(), steps(1e-4, 1e-4, 1e-4, 3.0, kind="param_grad"))  # once
    (alert,) = alerts(Exploding(), steps(1e-4, 1e-4, 1e-4, 3.0, 3.0, kind="param_grad"))
    assert alert.step == 4
    assert not alerts(Exploding(), steps(200, 500, 2000, 9000))  # grows, but not so fast
    assert alerts(Exploding(growth=10), steps(200, 500, 2000, 9000))
    assert not alerts(Exploding(), steps(0, 0, 50, 40))  # zeros, then something
    (alert,) = alerts(Exploding(), steps(1e9))  # whatever was before
    assert "times" not in alert.message


def test_logits_of_attention_that_grow_are_a_note() -> None:
    """Of heads; beside entropies, and whatever the layer is called."""

    def steps(*sizes: float) -> list[dict[tuple[str, str], Tensor]]:
        heads = torch.tensor([1.0, 1.5, 1.0]).expand(64, 3)
        names = "attention.entropy", "attention.largest_logit"
        return [{("a", names[0]): heads, ("a", names[1]): size * heads} for size in sizes]

    (alert,) = alerts(Exploding(), steps(5, 5, 5, 5, 60, 160, 170))
    assert (alert.step, alert.site, alert.kind) == (5, "a", "attention.largest_logit")
    assert (alert.channel, alert.severity) == (1, "note")
    assert "clip their products" in alert.advice
    assert not alerts(Exploding(), steps(120, 120, 120, 120, 200))


def test_exploding_names_the_first_of_a_kind_and_its_greatest_channel() -> None:
    large = normal(1e4)
    large[5, 3] = -1e6
    now = {("a", "output"): normal(), ("b", "output[1]"): large, ("c", "output"): large}
    (alert,) = alerts(Exploding(), [dict.fromkeys(now, normal()), now])
    assert (alert.site, alert.kind, alert.channel) == ("b", "output[1]", 3)
    assert alert.message.endswith("the same is true of 1 more tensor of this kind")


def test_vanishing_is_next_to_nothing_beside_what_is_nearer_to_the_loss() -> None:
    backward = {
        ("c", "grad_output"): normal(1e-3),
        ("b", "grad_output"): normal(1e-10),
        ("a.weight", "param_grad"): normal(1e-12),
        ("a.bias", "param_grad"): torch.zeros(4),
        ("c.weight", "param_grad"): normal(),
    }
    got = alerts(Vanishing(), [backward] * 12)
    assert [(a.step, a.site, a.kind) for a in got] == [
        (9, "b", "grad_output"),
        (9, "a.weight", "param_grad"),
    ]
    norms = [backward[key].double().norm() for key in list(backward)[:2]]
    assert got[0].value == pytest.approx((norms[1] / norms[0]).item(), rel=1e-5)
    assert got[0].message.endswith("times that of 'c'")
    assert not alerts(Vanishing(), [backward] * 9)  # not yet
    passed = {**backward, ("a", "grad_output"): normal(1e-4)}  # further from the loss
    assert {a.site for a in alerts(Vanishing(), [passed] * 12)} == {"a.weight"}
    none = {**passed, ("b", "grad_output"): torch.zeros(16, 4)}
    message = alerts(Vanishing(), [none] * 12)[0].message
    assert "grad_output of 'b' is exactly zero, while that of 'c' has an l2 norm of " in message
    # Gradients that explode on the way make nobody else's vanish.
    exploded = {("c", "grad_output"): normal(), ("b", "grad_output"): normal(1e9)}
    assert not alerts(Vanishing(), [exploded] * 12)
    nan = torch.full((2, 2), NAN)  # no values, which is not zero
    unknown = {("c", "grad_output"): nan, ("b", "grad_output"): normal(), ("a", "grad_output"): nan}
    assert not alerts(Vanishing(), [unknown] * 12)


def dead(share: int, n: int = 128) -> Tensor:
    """[n, 8], in which so many channels from the second on are zero."""
    x = normal(shape=(n, 8))
    x[:, 1 : 1 + share] = 0
    return x


def test_dead_channels_stay_zero() -> None:
    def layers(*outputs: Tensor) -> list[dict[tuple[str, str], Tensor]]:
        gradient = normal(shape=(128, 8))
        return [{("a", "output"): x, ("a", "grad_output"): gradient} for x in outputs]

    alive = layers(*[dead(0)] * 5)
    (alert,) = alerts(DeadChannels(), [*alive, *layers(*[dead(4)] * 30)])
    assert (alert.step, alert.since, alert.site, alert.severity) == (14, 5, "a", "warning")
    assert (alert.channel, alert.value) == (1, 0.5)
    assert "dead channels: step 14, since step 5: " in alert.message
    assert "has 4 dead channels of 8, the first is channel 1: all their values" in alert.message
    assert not alerts(DeadChannels(), [*alive, *layers(*[dead(3)] * 30)])
    # What never lived may have been unlucky, and what dies one by one is usual.
    (alert,) = alerts(DeadChannels(), layers(*[dead(6)] * 30))
    assert (alert.step, alert.since, alert.severity) == (9, 0, "warning")
    (alert,) = alerts(DeadChannels(), layers(*[dead(5)] * 30))
    assert alert.severity == "note"
    slow = [dead(min(7, i // 5)) for i in range(60)]
    assert {alert.severity for alert in alerts(DeadChannels(), layers(*slow))} == {"note"}
    # Nor is a sparse code, whose other channels are nearly always zero, too.
    code = dead(4)
    code[5:] = 0
    (alert,) = alerts(DeadChannels(), [*alive, *layers(*[code] * 30)])
    assert alert.severity == "note"
    # Small batches: it takes as many values.
    (alert,) = alerts(DeadChannels(), [*alive, *layers(*[dead(4, 32)] * 40)])
    assert alert.step == 36
    # Other channels every time are not dead ones, and one that comes back to life is not.
    assert not alerts(DeadChannels(), layers(*(dead(4).roll(step, 1) for step in range(30))))
    back = [dead(0 if step % 9 == 8 else 4) for step in range(40)]
    assert not alerts(DeadChannels(), layers(*back))
    # The message counts the channels that are dead in the step, however long they have been so.
    found = [dead(5 if step == 9 else 4) for step in range(20)]
    (alert,) = alerts(DeadChannels(), [*alive, *layers(*found)])
    assert (alert.step, alert.value) == (14, 0.5)
    assert "has 5 dead channels of 8, the first is channel 1: " in alert.message
    assert "all the values of 4 of them have been zero" in alert.message


@pytest.mark.parametrize(
    ("first", "type_", "severity"),
    [("alive", "Masked", "note"), ("alive", "ReLU", "warning"), ("blocked", "Masked", "warning")],
)
def test_a_branch_that_was_never_on(first: str, type_: str, severity: str) -> None:
    """Where what runs before it gets a gradient, the loss has another way there."""
    x, off = normal(shape=(128, 8)), torch.zeros(128, 8)
    now = {("a", "output"): x, ("b", "output"): off, ("b", "grad_output"): x}
    now["a", "grad_output"] = x if first == "alive" else off
    monitor = Monitor([DeadChannels()], setup=Setup({"a": "Linear", "b": type_}, (), ()))
    for step in range(20):
        monitor.examine(record_of({key: (x, 1) for key, x in now.items()}, step))
    assert [alert.severity for alert in monitor.alerts] == [severity]


def test_outputs_without_a_gradient_may_have_constant_zeros() -> None:
    inputs = {("flatten", "output"): dead(7), ("fc", "output"): normal(shape=(128, 8))}
    gradients = {("fc", "grad_output"): normal(shape=(128, 8))}
    assert not alerts(DeadChannels(), [inputs | gradients] * 30)
    assert len(alerts(DeadChannels(), [inputs] * 30)) == 1  # not known to be inputs
    parameters = {("embedding", "param_grad"): dead(6), ("a", "input"): dead(6)}
    assert not alerts(DeadChannels(), [parameters | gradients] * 30)


def test_sudden_shift_is_beyond_what_is_usual() -> None:
    def steps(
        *last: float, spread: float = 1.1, n: int = 25, kind: str = "output"
    ) -> list[dict[tuple[str, str], Tensor]]:
        scales = [spread ** (-1) ** step for step in range(n)]
        return [{("a", kind): normal(shape=(64, 64)) * scale} for scale in [*scales, *last]]

    (alert,) = alerts(SuddenShift(), steps(40.0, 40.0))
    assert (alert.step, alert.since, alert.site) == (26, 25, "a")
    assert alert.value == pytest.approx(math.log2(40), abs=0.2)
    (alert,) = alerts(SuddenShift(), steps(1 / 40, 1 / 40))
    assert alert.value == pytest.approx(-math.log2(40), abs=0.2)
    assert not alerts(SuddenShift(), steps(40.0, 1.0))  # it does not stay
    assert not alerts(SuddenShift(), steps(7.0, 7.0))  # not 3 octaves
    assert not alerts(SuddenShift(), steps(40.0, 40.0, spread=3.0))  # usual
    assert not alerts(SuddenShift(), steps(40.0, 40.0, n=19))  # too little is known
    assert alerts(SuddenShift(), steps(0.0, 0.0))  # nothing comes out any more
    assert not alerts(SuddenShift(), steps(0.0, 0.0, kind="param_grad"))
    assert alerts(SuddenShift(), steps(40.0, 40.0, kind="param_grad"))
    assert not alerts(SuddenShift(), steps(1 / 40, 1 / 40, kind="param_grad"))  # converges
    assert not alerts(SuddenShift(), steps(40.0, 40.0, kind="grad_output"))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([*range(40), 41, 42], [42]),
        ([*range(0, 1280, 32), 1280, 1312], [1312]),
        ([*range(40), 72, 104], []),  # a trend of 32 steps looks like this
        ([*range(40), 72, *range(104, 400, 32), 400, 432], []),
        ([*range(35), 64, 96, 128, 160, 192, 224, 256], []),  # few such ways came before
        ([*range(28), *range(32, 416, 32), 416, 448], [448]),
    ],
    ids=[
        "each step",
        "every 32nd",
        "a longer way",
        "of which the shift is the first",
        "after three such ways",
        "after twelve",
    ],
)
def test_a_shift_is_sudden_where_steps_are_recorded_as_before(
    steps: list[int], expected: list[int]
) -> None:
    monitor = Monitor([SuddenShift()])
    for i, step in enumerate(steps):
        scale = 40.0 if i >= 40 else 1.0
        monitor.examine(record_of({("a", "output"): (normal(shape=(64, 64)) * scale, 1)}, step))
    assert [alert.step for alert in monitor.alerts] == expected


@pytest.mark.parametrize(
    ("then", "expected"),
    [(1.9, []), (2.25, [41]), (2.8, [41])],
    ids=["leaves its plateau", "stays", "rises"],
)
def test_a_shift_while_the_loss_falls_as_never_before_is_progress(
    then: float, expected: list[int]
) -> None:
    monitor = Monitor([SuddenShift()])
    for step in range(42):
        scale, loss = (40.0, then) if step >= 40 else (1.0, 2.3 + 0.05 * (step % 2))
        site = {("a", "output"): (normal(shape=(64, 64)) * scale, 1)}
        monitor.examine(replace(record_of(site, step), scalars={"loss": loss}))
    assert [alert.step for alert in monitor.alerts] == expected


@cache
def odd_records() -> list[StepRecord]:
    odd = [sample(step) for step in range(15)]
    return [*odd, record_of({}, step=15), sample(16, bins=None, channel_bins=None)]


@pytest.mark.parametrize("rule", default_rules(), ids=lambda rule: rule.name)
def test_rules_take_odd_records(rule: Rule) -> None:
    history = History()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        for record in odd_records():
            history.push(record)
            first = list(rule.check(record, history))
            assert list(rule.check(record, history)) == first  # it changes nothing
            for alert in first:
                assert (alert.site, alert.kind) in record
                assert alert.rule == rule.name
                whose = repr(alert.site) if alert.site else "the model"
                assert f"step {record.step}: {alert.kind} of {whose} " in alert.message


# Thresholds and arguments


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: NonFinite(action="log"), 'action = \'log\': expected "warn", "raise" or'),
        (lambda: NonFinite(patience=0), "patience = 0: expected an integer, 1 or more"),
        (lambda: NonFinite(every=True), "every = True: expected an integer, 1 or more"),
        (lambda: Exploding(growth=0.5), "growth = 0.5: expected 1 or more"),
        (lambda: Exploding(limit=NAN), "limit = nan: expected 1 or more"),
        (lambda: Vanishing(ratio=2), "ratio = 2: expected a fraction above 0, up to 1"),
        (lambda: DeadChannels(share=0), "share = 0: expected a fraction above 0, up to 1"),
        (lambda: DeadChannels(steps=0), "steps = 0: expected 1 or more"),
        (lambda: SuddenShift(octaves=-1), "octaves = -1: expected 0 or more"),
        (lambda: Monitor("defualt"), "rules = 'defualt': .*; did you mean 'default'?"),
        (
            lambda: Monitor(["nonfinite"]),
            r"rules = .*; did you mean 'non-finite'?",
        ),
        (lambda: Monitor("explodng"), "rules = 'explodng': .*; did you mean 'Exploding'?"),
        (lambda: Monitor([int]), 'expected "default", or rules such as NonFinite'),
        (lambda: watch(nn.Linear(1, 1), rules=None), 'expected "default", rules, or False'),
    ],
)
def test_what_is_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


# History


def test_history_keeps_what_was_observed() -> None:
    history = History()
    seen: list[float] = []
    for step in range(WINDOW + 5):
        x = normal(1.0 + step)
        sites = {("a", "output"): (x, 1)}
        if step % 2:  # a site that comes and goes, and not in one place
            sites = {("z", "output"): (normal(), 1), **sites}
        history.push(record_of(sites, step, bins=None, channel_bins=None))
        row = step % 2
        past = history.past_rms[row]
        assert history.past_rms.shape == (1 + step % 2, WINDOW)
        assert past[~np.isnan(past)].tolist() == seen[-WINDOW:]
        assert np.isnan(past[: max(WINDOW - len(seen), 0)]).all()
        expected = x.double().square().mean().sqrt().item()
        assert history.rms[row] == pytest.approx(expected, rel=1e-6)
        seen.append(history.rms[row])


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ("loss", ["loss"]),
        (["Exploding", "loss"], ["exploding", "loss"]),
        (NonFinite, ["non-finite"]),
        ([NonFinite, SuddenShift()], ["non-finite", "sudden shift"]),
        (NonFinite(), ["non-finite"]),
        (False, []),
        ((), []),
    ],
)
def test_what_stands_for_rules(rules: Any, names: list[str]) -> None:
    assert [rule.name for rule in as_rules(rules)] == names


@pytest.mark.parametrize("rules", ["default", "all", True])
def test_what_stands_for_all_rules(rules: Any) -> None:
    assert as_rules(rules) == default_rules()
