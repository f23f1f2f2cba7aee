"""Watches that are dropped, and not closed."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from support.modules import network, take_step
from torch import nn
from torch.optim import SGD, Optimizer

import hookstats as hs
from hookstats.records.record import StepRecord

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


def iterate(model: nn.Module, optimizer: Optimizer) -> None:
    take_step(optimizer, model(torch.randn(2, 3)).sum())


def threads() -> set[threading.Thread]:
    """Those that are there, but that of tqdm, whose first bar may be another test's."""
    return {thread for thread in threading.enumerate() if type(thread).__name__ != "TMonitor"}


def threads_are(expected: set[threading.Thread]) -> bool:
    """Whether, within some seconds, these are the threads."""
    deadline = time.monotonic() + 20
    while threads() != expected and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    return threads() == expected


def in_use() -> int:
    """The objects of hookstats that are alive."""
    gc.collect()
    return sum(str(type(one).__module__).startswith("hookstats") for one in gc.get_objects())


def at_most(objects: int) -> bool:
    """Whether, within some seconds, no more are alive: a thread that ends has some until then."""
    deadline = time.monotonic() + 20
    while in_use() > objects and time.monotonic() < deadline:
        time.sleep(0.05)
    return in_use() <= objects


@pytest.mark.parametrize("steps_by_hand", [False, True])
def test_dropped_watches_leave_no_thread_and_no_memory(steps_by_hand: bool) -> None:
    def cell() -> None:
        model = network()
        optimizer = SGD(model.parameters(), lr=0.1)
        w = hs.watch(model, None if steps_by_hand else optimizer, rules=())
        for _ in range(2):
            iterate(model, optimizer)
            if steps_by_hand:
                w.step()
        assert w.latest.step == 1

    before = threads()
    for _ in range(3):
        cell()
    assert threads_are(before)
    objects = in_use()
    for _ in range(20):
        cell()
    assert threads_are(before)
    assert at_most(objects + 15)


def test_a_dropped_watch_that_nobody_can_read_takes_its_hooks_along() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    watch = weakref.ref(hs.watch(model, optimizer, rules=()))
    gc.collect()
    assert watch() is None
    iterate(model, optimizer)
    assert not any(module._forward_hooks for module in model.modules())
    assert not optimizer._optimizer_step_pre_hooks


def test_a_dropped_watch_records_for_its_sinks_as_long_as_there_are_steps() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    records: list[StepRecord] = []
    before = threads()
    hs.watch(model, optimizer, sinks=(records.append,))
    for _ in range(3):
        iterate(model, optimizer)
        gc.collect()
    del model, optimizer
    assert threads_are(before)
    assert [record.step for record in records] == [0, 1, 2]
    assert all(("0", "output") in record for record in records)


def test_a_dropped_watch_ends_its_run_directory(tmp_path: Path) -> None:
    def cell() -> None:
        model = network()
        optimizer = SGD(model.parameters(), lr=0.1)
        hs.watch(model, optimizer, out=tmp_path)
        for _ in range(5):
            iterate(model, optimizer)

    before = threads()
    cell()
    assert threads_are(before)
    run = hs.open_run(tmp_path)
    assert run.steps == [0, 1, 2, 3, 4]
    assert run.coverage is not None
    assert run.coverage["steps"] == 5
