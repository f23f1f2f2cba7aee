"""watch(every=, budget=): which steps are recorded, and what the coverage says of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.modules import network, take_step
from support.ranks import Ranks
from torch import nn
from torch.optim import SGD

import hookstats as hs
from hookstats.records.record import StepRecord
from hookstats.rules import Loss, NonFinite
from hookstats.watching import schedule
from hookstats.watching import schedule as schedules
from hookstats.watching.schedule import AFTER, BURST, FIRST, IDLE, Schedule
from hookstats.watching.watch import watch

BEGUN = FIRST + IDLE


class Simulated:
    """A training whose steps take a second, and `cost(step)` more if they are recorded."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        cost: Callable[[int], float],
        background: float = 0.0,
        every: int | str = "auto",
    ) -> None:
        """background: the seconds of the background threads for each recorded step."""
        self.cost = cost
        self.now = self.spent = 0.0
        self.monitor = SimpleNamespace(urgent=0)
        self.rates = {"lr/0": 0.1}
        self._background = background
        patch.setattr(schedules, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.schedule = Schedule(
            *(every, 0.03, self.monitor, SimpleNamespace(devices={})),  # type: ignore[arg-type]
            *(lambda: self.spent, lambda: None),
        )

    def run(self, steps: range) -> list[int]:
        """The recorded ones of these steps."""
        recorded = []
        for step in steps:
            if due := self.schedule.is_due(step):
                recorded.append(step)
                self.now += self.cost(step)
                self.spent += self._background
            self.now += 1.0
            self.schedule.close(step, due, self.rates)
        return recorded

    @property
    def choices(self) -> list[int]:
        return [choice["every"] for choice in self.schedule.choices]


@pytest.mark.parametrize(
    ("cost", "background", "every"),
    [
        (0.0, 0.0, 1),
        (0.029, 0.0, 1),
        (0.05, 0.0, 2),
        (0.0, 0.05, 2),
        (0.05, 0.05, 4),
        (2.0, 0.0, 128),
        (1e6, 0.0, 1024),
    ],
)
def test_the_least_power_of_two_that_keeps_to_the_budget(
    monkeypatch: pytest.MonkeyPatch, cost: float, background: float, every: int
) -> None:
    training = Simulated(monkeypatch, lambda step: cost, background)
    found = training.run(range(1000))
    assert found == [*range(FIRST), *(step for step in range(BEGUN, 1000) if step % every == 0)]
    (choice,) = training.schedule.choices
    takes = pytest.approx((cost + background) / every)
    assert choice == {"step": BEGUN, "every": every, "takes": takes}
    assert training.schedule.is_seldom is (every >= 4)


def test_it_measures_again_and_changes_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "PERIOD", 512)
    training = Simulated(monkeypatch, lambda step: 0.1 if step < 1000 else 0.5)
    assert training.run(range(513))[-BURST:] == [*range(512 - 4 * (BURST - 1), 513, 4)]
    assert training.run(range(513, 540)) == [*range(513, 512 + BURST), 528, 532, 536]
    training.run(range(540, 4000))
    assert training.choices == [4, 8, 16]  # 0.5 / 16 is above the budget by less than a fifth


def test_it_never_goes_back_and_forth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "PERIOD", 256)
    training = Simulated(monkeypatch, lambda step: 0.02 if step // 256 % 8 < 4 else 0.4)
    training.run(range(256 * 200))
    choices = training.choices
    assert all(max(a, b) == 2 * min(a, b) for a, b in pairwise(choices))
    assert len(choices) < 16
    later = [choice for choice in training.schedule.choices if choice["step"] > 256 * 100]
    assert later == []


@pytest.mark.parametrize("every", ["auto", 50])
def test_ten_steps_after_an_incident_lie_outside_of_the_budget(
    monkeypatch: pytest.MonkeyPatch, every: int | str
) -> None:
    training = Simulated(monkeypatch, lambda step: 1.0, every=every)
    training.run(range(130))
    training.monitor.urgent += 1
    assert training.run(range(130, 149)) == [*range(130, 130 + AFTER)]


def test_ten_steps_after_a_leap_of_a_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Simulated(monkeypatch, lambda step: 1000.0)
    training.run(range(200))
    for rate in (0.06, 0.04):
        training.rates = {"lr/0": rate}
        assert training.run(range(200, 210)) == []
    training.rates = {"lr/0": 0.01}
    assert training.run(range(210, 240)) == [*range(211, 211 + AFTER)]


def test_ten_steps_where_training_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Simulated(monkeypatch, lambda step: 1000.0)
    training.run(range(200))
    training.schedule.renumber(150)
    assert training.run(range(150, 200)) == [*range(150, 150 + AFTER)]


def clock(patch: pytest.MonkeyPatch, cost: float) -> None:
    """Have steps take a second, and recording `cost`."""

    def measured(schedule: Schedule, recorded: bool) -> Iterator[tuple[bool, float]]:
        yield recorded, 1.0 + cost * recorded

    patch.setattr(Schedule, "_measured", measured)


def train(w: hs.Watch, model: nn.Module, optimizer: SGD, steps: int) -> None:
    for _ in range(steps):
        take_step(optimizer, model(torch.ones(2, 3)).sum())
        w._recorder.drain(disk=False)


def test_records_have_exact_steps_and_coverage_says_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, hooks_in: str
) -> None:
    clock(monkeypatch, 1.0)
    model, records = network(), list[StepRecord]()
    optimizer = SGD(model.parameters(), lr=0.0)
    with hs.watch(model, optimizer, budget=0.3, rules=(), sinks=[records.append]) as w:
        assert w.coverage().budget == {"share": 0.3, "choices": []}
        train(w, model, optimizer, 110)
    assert [record.step for record in records] == [*range(64), 96, 100, 104, 108]
    found = w.coverage().budget
    assert found is not None
    (choice,) = found["choices"]
    assert (choice["step"], choice["every"]) == (96, 4)
    assert choice["takes"] >= 0.25  # and what the background thread takes
    assert "budget 30.00%: every=4 from step 96 on, which takes 2" in str(w.coverage())
    assert w.coverage().to_dict()["budget"] == found
    for record in records:
        assert record["0", "output"].count.sum() == 8


@pytest.mark.parametrize("budget", [0, 1, -0.1, math.nan, "1%", None])
def test_budget_is_checked(budget: object) -> None:
    with pytest.raises(ValueError, match=r"budget = .*: expected a share, above 0 and below 1"):
        hs.watch(network(), budget=budget)  # type: ignore[arg-type]


def agreed(rank: int) -> tuple[list[int], list[int]]:
    """The steps that were recorded and those that were merged; recording is dear on one rank."""
    with pytest.MonkeyPatch.context() as patch:
        clock(patch, 20.0 if rank == 1 else 0.0)
        torch.manual_seed(0)
        model, merged, due = nn.Linear(3, 2), list[int](), list[int]()
        optimizer = SGD(model.parameters(), lr=0.0)
        ask = Schedule.is_due

        def is_due(self: Schedule, step: int) -> bool:
            found = ask(self, step)
            due.extend([step] if found else [])
            return found

        patch.setattr(Schedule, "is_due", is_due)
        reduce = hs.Reduce(timeout=60)
        sinks = [lambda record: merged.append(record.step)]
        arguments: dict[str, Any] = {"reduce": reduce, "sinks": sinks, "rules": ()}
        with hs.watch(model, optimizer, budget=0.9, **arguments) as w:
            train(w, model, optimizer, 140)
        assert w.coverage().failures == {}
    return due, merged


@pytest.mark.check
def test_ranks_that_merge_agree(ranks: Ranks) -> None:
    answers = ranks(agreed)
    due, merged = answers[0]
    assert all(answer == answers[0] for answer in answers)
    assert merged == [step for step in due if step < 140]
    assert due[:FIRST] == [*range(FIRST)]
    # All record each step until what one of them wants since step 96 is known.
    assert due[FIRST : FIRST + 2] == [96, 97]
    assert [step for step in due if step > 110] == [128]


def recorded(after: int, bad: int, what: str, hooks_in: str) -> list[int]:
    """The recorded steps of 30, of which one is bad; every seventh is recorded anyway, and `after`
    steps in a row after an incident."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    rules = [NonFinite(action=lambda alert: None), Loss(action=lambda alert: None)]
    records: list[StepRecord] = []
    with (
        patch.object(schedule, "AFTER", after),
        watch(model, optimizer, every=7, sinks=[records.append], rules=rules) as w,
    ):
        for step in range(30):
            x = torch.ones(2, 3)
            loss = 1.0 - 0.01 * step
            if step == bad:
                x = x * torch.nan if what == "input" else x
                loss = {"input": loss, "spike": 50.0, "nan": torch.nan}[what]
            model(x).sum().backward()
            w.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            w._log.end()  # so that nothing depends on how fast the other thread is
            w._recorder.drain(disk=False)
    return [record.step for record in records]


def test_steps_after_an_error_are_recorded_one_by_one(hooks_in: str) -> None:
    # The alert of step 14 comes when step 15 has begun unrecorded, but where the thread that closes
    # the step is slow.
    found = recorded(4, 14, "input", hooks_in)
    first = 15 if 15 in found else 16
    assert found == [0, 7, 14, *range(first, first + 4), 21, 28]


@pytest.mark.parametrize("what", ["spike", "nan"])
def test_a_loss_that_leaps_in_a_step_without_a_record(what: str, hooks_in: str) -> None:
    found = recorded(4, 24, what, hooks_in)
    assert found == [0, 7, 14, 21, 26, 27, 28, 29]


def test_nothing_happens_where_nothing_is_bad(hooks_in: str) -> None:
    assert recorded(4, 100, "nan", hooks_in) == [0, 7, 14, 21, 28]


def test_what_an_error_adds_ends_where_training_goes_back() -> None:
    model, records = network(), list[StepRecord]()
    optimizer = SGD(model.parameters(), lr=0.0)
    rules = NonFinite(action=lambda alert: None)
    with watch(model, optimizer, every=10, rules=rules, sinks=[records.append]) as w:
        for step in range(37):
            if step == 25:
                w.set_step(5)
                records.clear()
            x = torch.full((2, 3), torch.nan if step == 20 else 1.0)
            take_step(optimizer, model(x).sum())
            w._recorder.drain(disk=False)
    assert [record.step for record in records] == [10]


def _calls_of_an_idle_step(layers: int) -> int:
    """How many functions of hookstats a step calls that is not recorded."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    optimizer, x = SGD(model.parameters(), 1e-4), torch.randn(8, 4)
    home = str(Path(hs.__file__).parent)
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(home)

    with watch(model, optimizer, every=1000, rules=[Loss()]):
        for step in range(FIRST + 3):
            sys.setprofile(count if step == FIRST + 2 else None)
            take_step(optimizer, model(x).square().mean())
            sys.setprofile(None)
    return calls


def test_a_step_that_is_not_recorded_calls_nothing_for_each_layer() -> None:
    calls = [_calls_of_an_idle_step(layers) for layers in (2, 30)]
    assert calls[0] == calls[1]
    assert 0 < calls[0] < 50  # each takes some microseconds, cold as it is
