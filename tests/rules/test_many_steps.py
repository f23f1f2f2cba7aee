"""Rules that get many steps at once: the same alerts as step by step, fewer looks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.samples import record_of
from torch import Tensor

from hookstats.records.alerts import Alert
from hookstats.records.record import StepRecord
from hookstats.rules import Monitor, NonFinite, Rule, Vanishing, beginnings, default_rules
from hookstats.rules.defaults import _DEFAULT
from hookstats.rules.history import History
from hookstats.rules.setup import Group, Setup, Weight
from hookstats.rules.steps import Flags, Sites, Steps

SETUP = Setup(
    {"h.0": "Linear", "h.1": "Linear", "h.2": "Linear", "gate": "Softmax"},
    tuple(Weight(f"h.{i}.weight", (8, 8), "float32", True, 0, 0.1, False, None) for i in range(3)),
    (Group("SGD", 0.0, 0.1),),
)
FAULTS = ("nan", "explodes", "dead", "vanishes", "saturates", "collapses", "same", "constant")


def tensors(step: int, fault: str) -> dict[tuple[str, str], tuple[Tensor, int | None]]:
    """What a step of a small network saw; with the fault, in its second layer."""
    torch.manual_seed(0 if fault == "same" else step)
    found: dict[tuple[str, str], tuple[Tensor, int | None]] = {}
    found["", "input"] = torch.randn(16, 8), 1
    for i in range(3):
        found[f"h.{i}", "output"] = torch.randn(16, 8), 1
        found[f"h.{i}", "grad_output"] = 1e-3 * torch.randn(16, 8), 1
        found[f"h.{i}.weight", "param_grad"] = 1e-2 * torch.randn(8, 8), 0
    x = found["h.1", "output"][0]
    if fault == "nan":
        x[2, 3] = torch.nan
    elif fault == "explodes":
        x *= 1e5
    elif fault == "dead":
        x[:, 2:] = 0
    elif fault == "vanishes":
        found["h.1.weight", "param_grad"][0].mul_(1e-12)
        found["h.1", "grad_output"][0].mul_(1e-12)
    elif fault == "saturates":
        x.mul_(50).tanh_()
    elif fault == "collapses":
        x.mul_(1e-3).add_(torch.arange(8))
    elif fault == "constant":
        found["h.0", "output"] = torch.arange(8.0).expand(16, 8), 1
    return found


def training(seed: int) -> Iterator[StepRecord]:
    """Sound steps, and stretches with faults; sites come and go, and training goes back once."""
    chance = random.Random(seed)
    step, fault, left = 0, "", 40
    for i in range(260):
        if left == 0:
            fault = chance.choice(FAULTS) if not fault else ""
            left = chance.choice((1, 2, 5, 14, 40))
        left -= 1
        seen = tensors(step, fault)
        if chance.random() < 0.04:
            del seen["h.2.weight", "param_grad"]
        if i == 200:
            step -= 30
        losses = 5.0 if chance.random() < 0.03 else 2.0 - i / 1000 + chance.random() / 10
        scalars = {"lr/0": 0.1 if i != 90 else 1.0, "loss": losses}
        yield replace(record_of(seen, step, channel_bins=None), scalars=scalars)
        step += 1


def given(monitor: Monitor, batches: Sequence[Sequence[StepRecord]]) -> list[Alert]:
    for batch in batches:
        monitor.write_records(batch)
        for record in batch:
            monitor.write_scalars(record.step, 0, {"late": 1.0})
    return monitor.alerts


def quiet_rules() -> list[Rule]:
    return [replace(rule, action=lambda alert: None) for rule in default_rules()]


@pytest.mark.parametrize("seed", range(4))
def test_alerts_are_those_of_rules_that_see_every_step(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = list(training(seed))
    batches, chance = [], random.Random(seed)
    rest = records
    while rest:
        n = chance.choice((1, 2, 7, 32, 64))
        batches.append(rest[:n])
        rest = rest[n:]
    found = given(Monitor(quiet_rules(), SETUP), batches)
    for rule in _DEFAULT:
        monkeypatch.setattr(rule, "suspects", Rule.suspects)
        monkeypatch.setattr(rule, "by_site", Rule.by_site)
    everything = given(Monitor(quiet_rules(), SETUP), [[record] for record in records])
    assert found == everything
    assert len({alert.rule for alert in found}) >= 8


def test_rules_without_suspicion_are_not_asked() -> None:
    seen: list[int] = []

    class Odd(NonFinite):
        def suspects(self, steps: Steps) -> Flags:
            return np.array([record.step % 2 == 1 for record in steps.records])

        def check(self, record: StepRecord, history: object) -> Iterator[Alert]:
            seen.append(record.step)
            yield from ()

    Monitor(Odd()).write_records(list(training(0))[:9])
    assert seen == [1, 3, 5, 7]


def test_what_lasts_is_looked_at_until_it_was_reported() -> None:
    seen: list[int] = []

    class Counted(Vanishing):
        def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
            seen.append(record.step)
            yield from super().check(record, history)

    faults = ["vanishes"] * 10 + [""] * 2 + ["vanishes"] * 6
    monitor = Monitor(Counted(patience=3, every=5, action=lambda alert: None))
    monitor.write_records(
        [record_of(tensors(step, fault), step) for step, fault in enumerate(faults)]
    )
    assert seen == [0, 1, 2, 12, 13, 14]
    assert {alert.step for alert in monitor.alerts} == {2, 14}


@pytest.mark.filterwarnings("ignore:hookstats. rule 'non-finite' failed")
def test_a_rule_that_cannot_look_at_many_steps_misses_them() -> None:
    class Broken(NonFinite):
        def suspects(self, steps: Steps) -> Flags:
            raise ArithmeticError("broken")

    monitor = Monitor(Broken())
    monitor.write_records(list(training(0))[:2])
    assert monitor.failures == {"rule 'non-finite'": "ArithmeticError: broken; 1 call missed"}


def test_what_follows_from_sites_alone_is_found_once_while_they_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = 0
    init = Sites.__init__

    def counted(self: Sites, *arguments: Any) -> None:
        nonlocal made
        made += 1
        init(self, *arguments)

    monkeypatch.setattr(Sites, "__init__", counted)
    looks: list[Sites] = []

    class Looking(NonFinite):
        def suspects(self, steps: Steps) -> Flags:
            found: Flags = steps.sites.once(self.look) & steps.all
            return found

        @staticmethod
        def look(sites: Sites) -> bool:
            looks.append(sites)
            return True

    monitor = Monitor((Looking(),), SETUP)
    made = 0
    for step in range(6):
        monitor.examine(record_of(tensors(step, ""), step))
    assert (made, len(looks)) == (1, 1)
    monitor.examine(record_of({("h.0", "output"): tensors(0, "")["h.0", "output"]}, 6))
    assert (made, len(looks)) == (2, 2)


def test_weights_are_compared_with_their_peers_without_a_look_at_each_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"h.{i}" for i in range(200)]
    gains = [30.0 if name == "h.7" else 0.35 for name in names]
    setup = Setup(
        dict.fromkeys(names, "Linear"),
        tuple(
            Weight(f"{name}.weight", (8, 8), "float32", True, 0, gain / 8**0.5, False, None)
            for name, gain in zip(names, gains, strict=True)
        ),
        (),
    )
    looks = 0

    def role(name: str) -> str:
        nonlocal looks
        looks += 1
        return "h.#.weight"

    monkeypatch.setattr(beginnings, "role", role)
    rule = beginnings.Initialisation(most=100.0)
    (alert,) = Monitor((rule,), setup).examine(record_of(tensors(0, "")))
    assert alert.site == "h.7.weight"
    assert "the nearest of its peers with 0.35" in alert.message
    assert looks <= 2 * len(names)
