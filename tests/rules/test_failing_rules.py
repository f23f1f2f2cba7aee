"""Rules that fail, once or always, in each of their parts: the others are as before, nothing that
passes ends a rule, and what always fails is ended by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from support.samples import record_of

from hookstats.records.record import StepRecord
from hookstats.rules import Alert, History, Monitor, Rule
from hookstats.stats import retries

TRIES = 4
PARTS = ("check", "check_scalars")
MANY = 100


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "TRIES", TRIES)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 8)


@dataclass(frozen=True, kw_only=True)
class Seen(Rule):
    """Finds every second step, by its tensor and by its loss; `fails` says where and when not."""

    name = "seen"
    scope = "kind"
    every: int = 1
    part: str = ""
    error: type[BaseException] = MemoryError
    at: range = range(0)
    calls: list[str]

    def fail(self, part: str, step: int) -> None:
        if part == self.part:
            self.calls.append(part)
            if step in self.at:
                raise self.error("injected")

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        self.fail("check", record.step)
        if record.step % 2 == 0:
            yield self.alert(record, 0, "is seen", 1.0)

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterable[Alert]:
        self.fail("check_scalars", step)
        return [self.about(("loss", "scalar"), step, 0, "is seen", 1.0)] if step % 2 == 0 else []


class Other(Seen):
    """Never fails."""

    name = "other"


@cache
def first_record(sites: int) -> StepRecord:
    found = {(f"layer{i}", "output"): (torch.full((2, 3), 1.0), 1) for i in range(sites)}
    return replace(record_of(found), scalars={"loss": 1.0})


def record(step: int, sites: int = 1) -> StepRecord:
    return replace(first_record(sites), step=step)


def run_of(steps: int, **fails: Any) -> tuple[Monitor, list[str], list[str]]:
    """A monitor that saw so many steps, its warnings of failures, and the calls that may fail."""
    calls: list[str] = []
    monitor = Monitor([Seen(calls=calls, **fails), Other(calls=[])])
    return monitor, [str(one.message) for one in failures_of(monitor, steps)], calls


def failures_of(
    monitor: Monitor, steps: int, category: type[Warning] = RuntimeWarning
) -> list[warnings.WarningMessage]:
    """Have a monitor see so many steps; its warnings of a category."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            monitor(record(step))
    return [one for one in caught if one.category is category]


def steps_of(monitor: Monitor, rule: str, about: str = "layer0") -> list[int]:
    """The steps in which a rule found something, about a tensor or a scalar."""
    return [a.step for a in monitor.alerts if (a.rule, a.site) == (rule, about)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("error", [MemoryError, ZeroDivisionError])
def test_an_error_that_passes_leaves_a_few_steps_out(part: str, error: type[Exception]) -> None:
    monitor, told, _ = run_of(40, part=part, error=error, at=range(8, 11))
    assert steps_of(monitor, "other") == [*range(0, 40, 2)]
    about = "loss" if part == "check_scalars" else "layer0"
    missed = {*range(0, 40, 2)} - {*steps_of(monitor, "seen", about)}
    assert missed
    assert missed <= {8, 10, 12, 14, 16}
    assert told[0].startswith(f"hookstats: rule 'seen' failed: {error.__name__}: injected; it is c")
    assert told[1].startswith("hookstats: rule 'seen' works again; calls that it missed: ")
    assert len(told) == 2
    assert monitor.failures["rule 'seen'"].endswith("; it works again")


@pytest.mark.parametrize("part", PARTS)
def test_what_always_fails_is_ended_by_name(part: str) -> None:
    monitor, told, calls = run_of(MANY, part=part, error=ZeroDivisionError, at=range(MANY))
    assert len(calls) == TRIES
    assert len(told) == 2
    assert told[1] == (
        "hookstats: rule 'seen' failed: ZeroDivisionError: injected, 4 times in a row; the rule is "
        "disabled"
    )
    assert repr(monitor) == "Monitor(other)"
    assert steps_of(monitor, "other") == [*range(0, MANY, 2)]


def test_a_step_that_the_history_cannot_take_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor([Other(calls=[])])
    push = History.push

    def full(self: History, record: StepRecord) -> None:
        if record.step == 4:
            raise MemoryError("injected")
        push(self, record)

    monkeypatch.setattr(History, "push", full)
    assert [str(one.message) for one in failures_of(monitor, 20)] == [
        "hookstats: checking steps failed: MemoryError: injected; it is called again at later "
        "steps",
        "hookstats: checking steps works again; calls that it missed: 2",
    ]
    assert steps_of(monitor, "other") == [0, 2, *range(6, 20, 2)]
