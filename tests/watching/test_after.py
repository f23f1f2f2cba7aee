"""watch(every=, after=): what rules find wrong has the next steps recorded one by one."""

from __future__ import annotations

import pytest
import torch
from support.modules import network
from torch.optim import SGD

from hookstats.records.record import StepRecord
from hookstats.rules import Loss, NonFinite
from hookstats.watching.watch import watch


def recorded(after: int, bad: int, what: str, hooks_in: str) -> list[int]:
    """The recorded steps of 30, of which one is bad; every seventh is recorded anyway."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    rules = [NonFinite(action=lambda alert: None), Loss(action=lambda alert: None)]
    records: list[StepRecord] = []
    with watch(model, optimizer, every=7, after=after, sinks=[records.append], rules=rules) as w:
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
            w._flusher.drain(disk=False)
    return [record.step for record in records]


def test_steps_after_an_error_are_recorded_one_by_one(hooks_in: str) -> None:
    # The alert of step 14 comes when step 15 has begun unrecorded, but where the thread that closes
    # the step is slow.
    found = recorded(4, 14, "input", hooks_in)
    first = 15 if 15 in found else 16
    assert found == [0, 7, 14, *range(first, first + 4), 21, 28]


@pytest.mark.parametrize("what", ["spike", "nan"])
def test_a_loss_that_leaps_in_a_step_without_a_record(what: str, hooks_in: str) -> None:
    found = recorded(4, 17, what, hooks_in)
    assert found == [0, 7, 14, 19, 20, 21, 22, 28]


def test_a_leap_that_follows_from_something_else_has_its_next_steps_recorded() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    rules = [NonFinite(action=lambda alert: None), Loss(action=lambda alert: None)]
    records: list[StepRecord] = []
    with watch(model, optimizer, every=7, after=2, sinks=[records.append], rules=rules) as w:
        for step in range(30):
            x = torch.ones(2, 3) * (torch.nan if step == 7 else 1)
            model(x).sum().backward()
            w.log(loss=50.0 if step == 17 else 1.0)
            optimizer.step()
            optimizer.zero_grad()
            w._log.end()
            w._flusher.drain(disk=False)
    assert len(w.incidents) == 1
    assert [record.step for record in records] == [0, 7, 9, 10, 14, 19, 20, 21, 28]


def test_nothing_happens_where_it_is_not_wanted(hooks_in: str) -> None:
    assert recorded(0, 14, "input", hooks_in) == [0, 7, 14, 21, 28]
    assert recorded(4, 100, "nan", hooks_in) == [0, 7, 14, 21, 28]


def test_after_is_checked() -> None:
    with pytest.raises(ValueError, match="after = -1: expected"):
        watch(network(), after=-1)
