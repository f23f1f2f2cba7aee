"""An interrupt or an error at any line of hookstats: the steps that follow are whole, and every
number stands under the name of the tensor that has it."""

from __future__ import annotations

import math
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.interrupts import FullMemory, Interrupt, Line
from support.modules import Lambda
from torch import nn

from hookstats._torch import is_torch_function_enabled
from hookstats.records.record import StepRecord
from hookstats.stats.bins import LinearBins
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("one_thread", "frozen")

ITERATIONS = 5
MOMENTS = {"first": 0, "later": 2, "ahead": 2}
"""The iterations that are disturbed: that which makes the sites, a later one, and one in which the
training itself reads the step before, as the flush thread is busy."""


class Training:
    """A training run whose iterations differ in their inputs alone: the weights stay."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(ITERATIONS, 6, 3, generator=generator)
        self.model = nn.Sequential(
            nn.Linear(3, 4),
            Lambda(lambda x: {"a": x * 2, "b": x.flatten(1)}),
        )
        for weight in self.model.parameters():  # torch.manual_seed takes a millisecond
            nn.init.normal_(weight, generator=generator)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0)
        self.optimizer = optimizer
        self.records: list[StepRecord] = []
        self._go_on = threading.Event()
        self._go_on.set()
        self._came = threading.Event()
        # Rules run on the flush thread, where no interrupt comes.
        self.watch: Watch = watch(
            self.model,
            optimizer,
            ("input", "output", "grad_output", "param_grad"),
            bins=LinearBins(8, -1, 1),
            channel_bins=LinearBins(4, -1, 1),
            sinks=(self._record,),
            rules=(),
        )
        # Nothing is done because time has passed: the lines of all runs are alike.
        self.watch._log._handed_on = math.inf

    def _record(self, record: StepRecord) -> None:
        self.records.append(record)
        self._came.set()
        self._go_on.wait()

    def prepare(self, moment: str) -> int:
        """Train until an iteration of MOMENTS is the next one; returns its number."""
        during = MOMENTS[moment]
        for i in range(during):
            if moment == "ahead" and i == 0:
                self._go_on.clear()
            self.iterate(i)
            if moment == "ahead":
                assert self._came.wait(20)  # the thread is in the sink, of the first step
        if moment != "ahead":
            assert self.watch.alerts == ()  # the thread has nothing to do: all runs are alike
        return during

    def go_on(self) -> None:
        """Let the thread do what waits for it."""
        self._go_on.set()

    def iterate(self, i: int) -> None:
        self.optimizer.zero_grad()
        sum(t.square().sum() for t in self.model(self.inputs[i]).values()).backward()
        self.optimizer.step()

    def recorded(self) -> list[dict[tuple[str, str], bytes]]:
        """By step, the bytes of all that was recorded of each site."""
        assert self.watch.alerts == ()  # waits until all steps are recorded
        return [{key: _bytes(r, i) for i, key in enumerate(r)} for r in self.records]


def _bytes(record: StepRecord, site: int) -> bytes:
    first, end = record.offsets[site : site + 2]
    parts = [record.moments[first:end], record.tallies[first:end]]
    for hist, rows in ((record.hist, (site, site + 1)), (record.channel_hist, (first, end))):
        start, stop = hist.offsets[rows[0]], hist.offsets[rows[1]]
        parts += [hist.offsets[rows[0] : rows[1] + 1] - start]
        parts += [hist.slots[start:stop], hist.counts[start:stop]]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


@contextmanager
def loud() -> Iterator[None]:
    """What a site that is disabled and a step that is lost warn of is no failure here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


_undisturbed: dict[str, list[dict[tuple[str, str], bytes]]] = {}


def undisturbed(hooks: str) -> list[dict[tuple[str, str], bytes]]:
    """What an undisturbed training records."""
    if hooks not in _undisturbed:
        training = Training()
        for i in range(ITERATIONS):
            training.iterate(i)
        _undisturbed[hooks] = training.recorded()
        training.watch.close()
        assert len(_undisturbed[hooks]) == ITERATIONS
        assert len(_undisturbed[hooks][0]) > 8
    return _undisturbed[hooks]


def disturb(interruption: Any, moment: str, hooks: str) -> None:
    """Train with an interruption in one iteration, and check all that is recorded."""
    expected = undisturbed(hooks)
    training = Training()
    with loud():
        during = training.prepare(moment)
        with interruption:
            training.iterate(during)
        training.go_on()
        assert is_torch_function_enabled(), "torch functions stay disabled"
        if interruption.reached:
            training.watch.step()  # with what there is of the iteration
        for i in range(during + 1, during + 3):
            training.iterate(i)
        recorded = training.recorded()
        training.watch.close()
    check(training.watch, recorded, expected, during)


def check(
    handle: Watch,
    recorded: list[dict[tuple[str, str], bytes]],
    expected: list[dict[tuple[str, str], bytes]],
    during: int,
) -> None:
    coverage = handle.coverage()
    disabled = {(row.name, row.kind) for row in coverage if row.error is not None}
    assert recorded[:during] == expected[:during]
    for sites in recorded[during:-2]:  # the interrupted iteration: some sites, each right
        assert sites.items() <= expected[during].items()
    for sites, wanted in zip(recorded[-2:], expected[during + 1 : during + 3], strict=True):
        assert sites.items() <= wanted.items()
        assert wanted.keys() - sites.keys() <= disabled
    counted: dict[tuple[str, str], int] = {}
    for sites in recorded:
        for key in sites:
            counted[key] = counted.get(key, 0) + 1
    for row in coverage:
        assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
        assert min(row.observed, row.missing + 1) >= 0, row
        assert row.forwards <= during + 4, row
        assert row.forwards >= during + 2 or row.error is not None, row
        assert abs(row.observed - counted.get((row.name, row.kind), 0)) <= 1, row
        assert row.error is not None or "disabled" not in row.skipped, row


def lines_of(moment: str, hooks: str) -> Interrupt:
    """What hookstats executes in one iteration."""
    assert undisturbed(hooks)  # what is done once in a process is done
    for _ in range(2):  # the first one is slow, and does what has waited for some time
        training = Training()
        during = training.prepare(moment)
        with Interrupt(0, KeyboardInterrupt) as counted:
            training.iterate(during)
        training.go_on()
        training.watch.close()
    assert counted.lines > (2000 if moment == "first" else 150)
    return counted


ERRORS = (KeyboardInterrupt, MemoryError)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_sample_of_all_lines(moment: str, error: type[BaseException], hooks_in: str) -> None:
    lines = lines_of(moment, hooks_in).executed
    interrupt(random.Random(moment).sample(lines, 20), moment, error, hooks_in)


@pytest.mark.check
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_lines_of_every_chain_of_calls(
    moment: str, error: type[BaseException], hooks_in: str
) -> None:
    """Of the first step, which repeats most lines for each site, the first and the last time.

    Memory is asked for by calls, which `test_every_allocation` has: of all lines an eighth is left.
    Of the first step, which has most of them, every second one: `make full` has each.
    """
    lines = lines_of(moment, hooks_in).distinct()
    taken = 8 if error is MemoryError else 2 if moment == "first" else 1
    interrupt(lines[::taken], moment, error, hooks_in)


@pytest.mark.full
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_every_line_each_time(moment: str, error: type[BaseException], hooks_in: str) -> None:
    interrupt(lines_of(moment, hooks_in).executed, moment, error, hooks_in)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_sample_of_all_allocations(moment: str, hooks_in: str) -> None:
    calls = calls_of(moment)
    for at in random.Random(moment).sample(range(1, calls + 1), min(calls, 20)):
        fill_memory(at, moment, hooks_in)


@pytest.mark.check
@pytest.mark.parametrize("moment", MOMENTS)
def test_every_allocation(moment: str, hooks_in: str) -> None:
    calls = calls_of(moment)
    assert calls > (40 if moment == "first" else 3)
    for at in range(1, calls + 1):
        fill_memory(at, moment, hooks_in)


def calls_of(moment: str) -> int:
    """The number of calls of torch and NumPy, from Python, in one iteration."""
    training = Training()
    during = training.prepare(moment)
    with FullMemory(0) as counted:
        training.iterate(during)
    training.go_on()
    training.watch.close()
    return counted.calls


def fill_memory(at: int, moment: str, hooks: str) -> None:
    full = FullMemory(at)
    try:
        disturb(full, moment, hooks)
    except AssertionError as failure:
        raise AssertionError(f"in call {at}, {full.where}") from failure


def interrupt(lines: list[Line], moment: str, error: type[BaseException], hooks: str) -> None:
    missed = []
    for at in lines:
        interruption = Interrupt(at, error)
        try:
            disturb(interruption, moment, hooks)
        except AssertionError as failure:
            raise AssertionError(f"{error.__name__} in {interruption.where}") from failure
        if not interruption.where:
            missed.append(at)
    # Whether the flush thread runs at once decides about some lines.
    assert len(missed) <= 1 + len(lines) // 50, missed
