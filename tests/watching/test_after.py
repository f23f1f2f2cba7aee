"""watch(every=): what rules find wrong has the next steps recorded one by one."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from support.modules import network
from torch.optim import SGD

from hookstats.records.record import StepRecord
from hookstats.rules import Loss, NonFinite
from hookstats.watching import schedule
from hookstats.watching.watch import watch


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
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            w._recorder.drain(disk=False)
    assert [record.step for record in records] == [10]
