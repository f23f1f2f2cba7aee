"""watch(budget=): which steps are recorded, and what the coverage says of it."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.modules import network
from support.ranks import Ranks
from torch import nn
from torch.optim import SGD

import hookstats as hs
from hookstats.arena.arena import Arena
from hookstats.records.record import StepRecord
from hookstats.rules import NonFinite
from hookstats.watching import meter as meters
from hookstats.watching.budget import Measured
from hookstats.watching.cost import Cost
from hookstats.watching.mailbox import Mailbox
from hookstats.watching.meter import Meter
from hookstats.watching.schedule import Schedule


def clock(monkeypatch: pytest.MonkeyPatch, cost: float, idle: float = 0.0) -> None:
    """Have steps take a second, and watching `cost` if they are recorded, `idle` if not."""

    def close(meter: Meter, recorded: bool) -> Iterator[Measured]:
        took = cost if recorded else idle
        yield Measured(recorded, 1.0 + took, took)

    monkeypatch.setattr(Meter, "close", close)


def train(w: hs.Watch, model: nn.Module, optimizer: SGD, steps: int, bad: int = -1) -> None:
    for step in range(steps):
        model(torch.full((2, 3), math.nan if step == bad else 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        w._flusher.drain(disk=False)


def test_records_have_exact_steps_and_coverage_says_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, hooks_in: str
) -> None:
    clock(monkeypatch, 0.05)
    model, records = network(), list[StepRecord]()
    optimizer = SGD(model.parameters(), lr=0.0)
    with hs.watch(model, optimizer, budget=0.01, rules=(), sinks=[records.append]) as w:
        assert w.coverage().budget == {
            "share": 0.01,
            "every": 1,
            "takes": None,
            "is_out_of_reach": False,
            "is_sampled": False,
        }
        assert "budget 1.00%: every=1 not measured yet" in str(w.coverage())
        train(w, model, optimizer, 20)
    # To compare, the first ones alternate.
    assert [record.step for record in records] == [0, 2, 4, 6, 8, 16]
    found = w.coverage().budget
    assert found is not None
    assert found["every"] == 8
    assert "budget 1.00%: every=8 takes" in str(w.coverage())
    assert w.coverage().to_dict()["budget"] == found


@pytest.mark.parametrize("compiled", [False, True])
def test_histograms_are_sampled_once_that_is_too_much(
    monkeypatch: pytest.MonkeyPatch, hooks_in: str, compiled: bool
) -> None:
    """Those of tensors that "auto" samples."""
    clock(monkeypatch, 0.05)
    model, x = nn.ReLU(), torch.randn(2, 100_000)
    records: list[StepRecord] = []
    settings: dict[str, Any] = {"kinds": ("output",), "rules": (), "sinks": [records.append]}
    with hs.watch(model, budget=0.01, **settings) as w:
        called = torch.compile(model, backend="aot_eager") if compiled else model
        for _ in range(18):
            called(x)
            w.step()
            w._flusher.drain(disk=False)
    hists = {record.step: record["", "output"].tensor_hist for record in records}
    assert {int(hist.count) for hist in hists.values() if hist is not None} == {200_000}
    counted = {step: int(hist.counted) for step, hist in hists.items() if hist is not None}
    # "auto" counts one of three units.
    whole, sampled = dict.fromkeys(range(0, 10, 2), 200_000), pytest.approx(200_000 / 3, abs=16)
    assert counted == {**whole, 16: sampled}


def test_a_run_says_whether_a_budget_may_have_sampled(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    model, settings = nn.ReLU(), {"kinds": ("output",), "rules": (), "out": tmp_path}
    for budget, sample in ((None, 1), (0.01, "auto"), (None, "auto")):
        with hs.watch(model, budget=budget, append=True, **settings) as w:  # type: ignore[arg-type]
            model(torch.ones(2, 3))
            w.step()
        run = hs.open_run(tmp_path)
        assert run.bins is not None
        assert run.bins.sample == sample
        requires = json.loads((tmp_path / "run-00000.json").read_text()).get("requires", [])
        assert requires == ["sampled"] * (sample == "auto")
    counted = [run[step]["", "output"].tensor_hist for step in run.steps]
    assert [int(hist.counted) for hist in counted if hist is not None] == [6, 6, 6]


def test_steps_after_an_error_lie_outside_of_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock(monkeypatch, 0.08)
    model, records = network(), list[StepRecord]()
    optimizer = SGD(model.parameters(), lr=0.0)
    rules = NonFinite(action=lambda alert: None)
    arguments = {"after": 3, "rules": rules, "sinks": [records.append]}
    with hs.watch(model, optimizer, budget=0.01, **arguments) as w:
        train(w, model, optimizer, 30, bad=16)
    # The alert of step 16 comes when step 17 has begun, as a rule, unrecorded.
    steps = [record.step for record in records]
    assert steps in ([0, 2, 4, 6, 8, 16, first, first + 1, first + 2, 24] for first in (17, 18))


def test_what_an_error_adds_ends_where_training_goes_back() -> None:
    model, records = network(), list[StepRecord]()
    optimizer = SGD(model.parameters(), lr=0.0)
    rules = NonFinite(action=lambda alert: None)
    arguments = {"after": 3, "rules": rules, "sinks": [records.append]}
    with hs.watch(model, optimizer, every=10, **arguments) as w:
        train(w, model, optimizer, 25, bad=20)
        w.set_step(5)
        records.clear()
        train(w, model, optimizer, 12)
    assert [record.step for record in records] == [10]


def test_a_budget_out_of_reach_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 0.5, idle=0.1)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    w = hs.watch(model, optimizer, budget=0.01, rules=())
    with pytest.warns(RuntimeWarning, match=r"keeping to budget = 0\.01 failed: watching") as said:
        train(w, model, optimizer, 300)
    assert len(said) == 1
    w.close()
    assert "keeping to budget = 0.01" in w.coverage().failures
    assert "budget 1.00%, out of reach" in str(w.coverage())


def test_training_goes_on_where_nothing_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(meter: Meter, recorded: bool) -> Iterator[Measured]:
        raise RuntimeError("no clock")

    monkeypatch.setattr(Meter, "close", close)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    w = hs.watch(model, optimizer, budget=0.01, rules=())
    with pytest.warns(RuntimeWarning, match=r"no clock; every = 1 stays") as said:
        train(w, model, optimizer, 3)
    assert len(said) == 1
    w.close()


@pytest.mark.parametrize("budget", [0, 1, -0.1, math.nan, "1%"])
def test_budget_is_checked(budget: object) -> None:
    with pytest.raises(ValueError, match=r"budget = .*: expected a share, above 0 and below 1"):
        hs.watch(network(), budget=budget)  # type: ignore[arg-type]


def test_a_run_may_be_continued_with_another_budget(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for budget in (0.9, 0.8):
        model = network()
        optimizer = SGD(model.parameters(), lr=0.0)
        w = hs.watch(model, optimizer, budget=budget, out=tmp_path, append=True, rules=())
        with w:
            train(w, model, optimizer, 2)
    run = hs.open_run(tmp_path)
    assert run.header["budget"] == 0.8
    assert run.coverage is not None
    assert run.coverage["budget"]["share"] == 0.8


def test_what_is_measured_on_the_host(hooks_in: str) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    with hs.watch(model, optimizer, rules=()) as w:
        meter = Meter(w._arena, w._cost, w._flusher.mailbox)
        train(w, model, optimizer, 1)
        assert list(meter.close(True)) == []
        train(w, model, optimizer, 3)
        (found,) = meter.close(True)
    assert found.recorded
    assert found.seconds > 0
    if hooks_in == "c++":
        assert found.cost is not None
        assert 0 < found.cost < found.seconds
    else:
        assert found.cost is None


class Event:
    """An event of a device that is `behind` seconds late."""

    now = 0.0

    def __init__(self, behind: float) -> None:
        self.at = Event.now + behind

    def query(self) -> bool:
        return Event.now >= self.at

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at - self.at)


def test_a_device_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(None, None)
    arena.shelves[torch.device("cuda", 0)] = None  # type: ignore[assignment]
    monkeypatch.setattr(meters, "event", lambda device, timed: Event(3.0))
    meter = Meter(arena, Cost(arena), Mailbox())
    found: list[list[Measured]] = []
    for step in range(8):
        Event.now = float(step)
        found.append(list(meter.close(step % 2 == 0)))
    # Step s ends at s + 3 on the device; its beginning is the end of the step before.
    assert found[:4] == [[], [], [], []]
    assert found[4:] == [[Measured((step - 3) % 2 == 0, 1.0, None)] for step in range(4, 8)]
    monkeypatch.setattr(meters, "event", lambda device, timed: Event(math.inf))
    for _ in range(200):
        assert list(meter.close(True)) == []


def agreed(rank: int) -> tuple[list[int], list[int]]:
    """The steps that were recorded and those that were merged; recording is dear on one rank."""
    with pytest.MonkeyPatch.context() as patch:
        clock(patch, 0.16 if rank else 0.001)
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
        arguments = {"budget": 0.01, "reduce": reduce, "sinks": sinks, "rules": ()}
        with hs.watch(model, optimizer, **arguments) as w:
            train(w, model, optimizer, 40)
        assert w.coverage().failures == {}
    return due, merged


def test_what_ranks_agreed_on_is_forgotten_where_training_goes_back() -> None:
    with hs.watch(network(), budget=0.01, rules=()) as w:
        exchange = SimpleNamespace(agreed=deque([(1000, 8)]), wanted=1)
        w._when._exchange = lambda: exchange  # type: ignore[assignment, return-value]
        w.set_step(5)
        exchange.agreed.append((5, 4))
        w.set_step(7)
    assert w._when.every == 4


@pytest.mark.check
def test_ranks_that_merge_agree(ranks: Ranks) -> None:
    pytest.importorskip("pyarrow")
    answers = ranks(agreed)
    due, merged = answers[0]
    assert all(answer == answers[0] for answer in answers)
    assert merged == [step for step in due if step < 40]
    assert due[:7] == [0, 1, 2, 4, 6, 8, 10]
    # What is wanted since step 8 is in the exchange of that step, or in that of the next one.
    assert due[7:] in ([16, 32], [12, 16, 32])
