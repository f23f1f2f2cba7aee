"""An interrupt or an error at any line of hookstats: the steps that follow are whole, and every
number stands under the name of the tensor that has it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.interrupts import FullMemory, Interrupt
from support.modules import Lambda
from torch import nn
from torch._C import _is_torch_function_enabled as is_torch_function_enabled

from hookstats.records.record import StepRecord
from hookstats.stats.bins import LinearBins
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("one_thread")

ITERATIONS = 5


class Training:
    """A training run whose iterations differ in their inputs alone: the weights stay."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(0)
        self.inputs = torch.randn(ITERATIONS, 6, 3, generator=generator)
        self.model = nn.Sequential(
            nn.Linear(3, 4),
            Lambda(lambda x: {"a": x * 2, "b": x.flatten(1)}),
        )
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0)
        self.optimizer = optimizer
        self.records: list[StepRecord] = []
        self.watch: Watch = watch(
            self.model,
            optimizer,
            ("input", "output", "grad_output", "param_grad"),
            bins=LinearBins(8, -1, 1),
            channel_bins=LinearBins(4, -1, 1),
            sinks=(self.records.append,),
        )

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
        parts += [np.diff(hist.offsets[rows[0] : rows[1] + 1])]
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


def disturb(interruption: Any, during: int, hooks: str) -> None:
    """Train with an interruption in one iteration, and check all that is recorded."""
    expected = undisturbed(hooks)
    training = Training()
    with loud():
        for i in range(during):
            training.iterate(i)
        with interruption:
            training.iterate(during)
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


def lines_of(during: int) -> int:
    """The number of lines that hookstats executes in one iteration."""
    training = Training()
    for i in range(during):
        training.iterate(i)
    with Interrupt(0, KeyboardInterrupt) as counted:
        training.iterate(during)
    training.watch.close()
    return counted.lines


ERRORS = (KeyboardInterrupt, MemoryError)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("during", [0, 2])
def test_a_sample_of_all_lines(during: int, error: type[BaseException], hooks_in: str) -> None:
    lines = lines_of(during)
    for at in random.Random(during).sample(range(1, lines + 1), min(lines, 25)):
        interrupt(at, during, error, hooks_in)


@pytest.mark.parametrize(
    "stride",
    [
        pytest.param(8, marks=pytest.mark.check),
        pytest.param(1, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("during", [0, 2])
def test_every_line(during: int, error: type[BaseException], stride: int, hooks_in: str) -> None:
    """All lines, which take about 7 minutes of a core in all, or every eighth of them."""
    lines = lines_of(during)
    assert lines > (500 if during == 0 else 30)
    for at in range(1, lines + 1, stride):
        interrupt(at, during, error, hooks_in)


@pytest.mark.parametrize("during", [0, 2])
def test_a_sample_of_all_allocations(during: int, hooks_in: str) -> None:
    calls = calls_of(during)
    for at in random.Random(during).sample(range(1, calls + 1), min(calls, 20)):
        fill_memory(at, during, hooks_in)


@pytest.mark.check
@pytest.mark.parametrize("during", [0, 2])
def test_every_allocation(during: int, hooks_in: str) -> None:
    calls = calls_of(during)
    assert calls > (40 if during == 0 else 3)
    for at in range(1, calls + 1):
        fill_memory(at, during, hooks_in)


def calls_of(during: int) -> int:
    """The number of calls of torch and NumPy, from Python, in one iteration."""
    training = Training()
    for i in range(during):
        training.iterate(i)
    with FullMemory(0) as counted:
        training.iterate(during)
    training.watch.close()
    return counted.calls


def fill_memory(at: int, during: int, hooks: str) -> None:
    full = FullMemory(at)
    try:
        disturb(full, during, hooks)
    except AssertionError as failure:
        raise AssertionError(f"in call {at}, {full.where}") from failure


def interrupt(at: int, during: int, error: type[BaseException], hooks: str) -> None:
    interruption = Interrupt(at, error)
    try:
        disturb(interruption, during, hooks)
    except AssertionError as failure:
        raise AssertionError(f"{error.__name__} in line {at}, {interruption.where}") from failure
