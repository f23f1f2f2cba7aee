"""A full memory at any call by which hookstats asks for some: on the flush thread, while a watch
begins and ends, while ranks merge, while a run is read. Training keeps its bits, and what is lost
is counted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.allocations import TRACES_INSTRUCTIONS, FullMemoryAt, Place
from support.samples import assert_same
from torch import distributed, nn

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.stats.bins import LinearBins
from hookstats.watching.handle import Watch
from hookstats.watching.reduce import Reduce
from hookstats.watching.watch import watch

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not TRACES_INSTRUCTIONS, reason="only Python 3.11 traces instructions well"),
    # What is lost is warned of.
    pytest.mark.filterwarnings("ignore:hookstats:RuntimeWarning"),
]

STEPS = range(6)
OPTIONS: dict[str, Any] = {
    "bins": LinearBins(8, -1, 1),
    "channel_bins": LinearBins(4, -1, 1),
    "moments": 4,
    "channels_every": 2,
}
MOMENTS = {"recording": {2, 3}, "reducing": {2, 3}, "detailed": {2, 3}, "closing": {4, 5}}
"""When the memory is full, and the steps that may be lost then."""


class Training:
    """A training run of six steps; the memory is full during the third and the fourth, or when the
    watch is closed."""

    def __init__(self, out: Path, full: FullMemoryAt, moment: str) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(len(STEPS), 6, 3, generator=generator)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        for weight in self.model.parameters():
            nn.init.normal_(weight, generator=generator)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.given: list[StepRecord] = []
        self.out = out
        here = full if moment == "closing" else nullcontext()
        with full.tracing():
            self.watch = self.begin(moment)
            self.iterate(0, 1)
            self.watch._flusher.drain()
            with full if moment != "closing" else nullcontext():
                self.iterate(2, 3)
                self.watch._flusher.drain()
            self.iterate(4, 5)
            self.watch._flusher.drain(disk=False)
            with here, suppress(MemoryError, RuntimeError):
                self.watch.close()
        self.watch.close()

    def begin(self, moment: str = "", *, overwrite: bool = False) -> Watch:
        return watch(
            self.model,
            self.optimizer,
            ("input", "output", "grad_output", "param_grad"),
            **OPTIONS,
            out=self.out,
            overwrite=overwrite,
            detail="tensor" if moment == "detailed" else "channel",
            reduce=Reduce() if moment == "reducing" else None,
            sinks=(self.given.append,),
        )

    def iterate(self, *steps: int) -> None:
        for i in steps:
            self.optimizer.zero_grad()
            self.model(self.inputs[i]).square().sum().backward()
            self.optimizer.step()
            self.watch.log(loss=1.0 / (i + 1))

    @property
    def weights(self) -> bytes:
        return b"".join(p.detach().numpy().tobytes() for p in self.model.parameters())


@pytest.fixture(autouse=True)
def group(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process group of one, for those that merge."""
    if "reducing" not in request.node.name:
        yield
        return
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def without_scalars(record: StepRecord) -> StepRecord:
    """Some of them say how long something took; and of one rank, what is merged is the same."""
    return replace(record, scalars={}, rank=0)


def ends_with(threads: set[threading.Thread]) -> None:
    """Others end within some seconds."""
    deadline = time.monotonic() + 20
    while set(threading.enumerate()) != threads and time.monotonic() < deadline:
        time.sleep(0.001)
    assert set(threading.enumerate()) == threads


class Undisturbed(NamedTuple):
    weights: bytes
    records: dict[int, StepRecord]
    calls: list[tuple[Place, int]]
    """What can fail, and the first and the last time."""


def undisturbed(moment: str, scratch: Path) -> Undisturbed:
    """What a training run does whose memory is never full."""
    for name in ("first", "second"):  # what is done once in a process is done
        full = FullMemoryAt(None, here=moment == "closing")
        training = Training(scratch / name, full, moment)
    run = open_run(scratch / "second")
    assert run.steps == list(STEPS)
    made = full.made
    calls = [(place, n) for place in made for n in sorted({1, made[place]})]
    return Undisturbed(training.weights, {step: without_scalars(run[step]) for step in run}, calls)


def disturb(at: Place, nth: int, moment: str, expected: Undisturbed, out: Path) -> bool:
    """Train with a full memory; whether it was reached."""
    before = set(threading.enumerate())
    full = FullMemoryAt(at, nth, here=moment == "closing")
    try:
        training = Training(out, full, moment)
        check(training, full, moment, expected, before)
    except Exception as failure:
        raise AssertionError(f"{at}, call {nth}") from failure
    return full.raised


def check(
    training: Training,
    full: FullMemoryAt,
    moment: str,
    expected: Undisturbed,
    before: set[threading.Thread],
) -> None:
    ends_with(before)
    assert training.weights == expected.weights
    coverage = training.watch.coverage()
    for row in coverage:
        assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
    run = open_run(training.out)
    for step in run:
        assert_same(without_scalars(run[step]), expected.records[step])
    lost = set(STEPS) - set(run.steps)
    assert lost <= MOMENTS[moment]
    assert not lost or (full.raised and coverage.failures)
    if moment == "closing":
        assert not lost or run.closed is None or run.coverage["failures"]
    else:
        assert lost == set(run.gaps)
        assert run.closed
    assert not list(training.out.glob("lock-*"))
    for record in training.given:
        if moment != "detailed":
            assert_same(without_scalars(record), expected.records[record.step])
    run.scalars.table()


def go_through(moment: str, scratch: Path, share: int | None = None) -> None:
    expected = undisturbed(moment, scratch)
    assert len(expected.calls) > 20
    calls = expected.calls
    if share is not None:
        calls = random.Random(moment).sample(calls, min(share, len(calls)))
    missed = []
    for i, (place, nth) in enumerate(calls):
        reached = disturb(place, nth, moment, expected, scratch / str(i))
        # How many steps the flush thread takes together decides about later calls.
        missed += [place] * (nth == 1 and not reached)
    assert len(missed) <= 2, [str(place) for place in missed]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_sample_of_what_the_flush_thread_asks_for(moment: str, tmp_path: Path) -> None:
    go_through(moment, tmp_path, share=5)


@pytest.mark.check
@pytest.mark.parametrize("moment", MOMENTS)
def test_more_that_the_flush_thread_asks_for(moment: str, tmp_path: Path) -> None:
    go_through(moment, tmp_path, share=25)


@pytest.mark.full
@pytest.mark.parametrize("moment", MOMENTS)
def test_all_that_the_flush_thread_asks_for(moment: str, tmp_path: Path) -> None:
    go_through(moment, tmp_path)


def begin(out: Path, full: FullMemoryAt) -> None:
    """Fail to watch, perhaps; then watch, train and close as if nothing had been."""
    before = set(threading.enumerate())
    training = Training.__new__(Training)
    training.model, training.out, training.given = nn.Sequential(nn.Linear(3, 4)), out, []
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.inputs = torch.randn(1, 6, 3)
    made = []
    with full, suppress(MemoryError, RuntimeError):
        made.append(training.begin())
    for w in made:  # some of what fails is left out: the watch begins all the same
        w.close()
    for module in training.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not training.optimizer._optimizer_step_pre_hooks
    assert not list(out.glob("lock-*"))
    ends_with(before)
    training.watch = training.begin(overwrite=True)
    training.iterate(0)
    training.watch.close()
    assert open_run(out).steps == [0]


def test_what_beginning_asks_for(tmp_path: Path) -> None:
    for name in ("first", "second"):
        full = FullMemoryAt(None, here=True)
        begin(tmp_path / name, full)
    assert len(full.made) > 5
    for i, place in enumerate(full.made):
        failed = FullMemoryAt(place, here=True)
        begin(tmp_path / str(i), failed)
        assert failed.raised, place
