"""Ctrl-C or an error that breaks into hookstats: a step is exact or a gap, the next are exact."""

from __future__ import annotations

import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from support.interrupts import Alarm, Interrupt
from support.modules import Lambda
from torch import nn

from hookstats._torch import is_torch_function_enabled
from hookstats.buffers import device
from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.stats.bins import LinearBins
from hookstats.watching.watch import watch

pytestmark = [
    pytest.mark.usefixtures("one_thread", "hooks_in"),
    pytest.mark.filterwarnings("ignore:hookstats:RuntimeWarning"),  # that steps are lost
    # Python swallows an interrupt that arrives in a callback of the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KINDS = ("input", "output", "grad_output", "param_grad", "update", "optimizer_state")
ITERATIONS = 6
SAMPLES = settings().max_examples // 3  # 10, and more in `make full`
Sites = dict[tuple[str, str], bytes]


class Training:
    """A training run whose iterations differ in their inputs alone: the weights stay."""

    def __init__(self, out: Path) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(ITERATIONS, 6, 3, generator=generator)
        self.model = nn.Sequential(
            nn.Linear(3, 4),
            Lambda(lambda x: {"a": x * 2, "b": x.flatten(1)}),
        )
        for weight in self.model.parameters():
            nn.init.normal_(weight, generator=generator)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0, momentum=0.5)
        self.records: list[StepRecord] = []
        bins = LinearBins(8, -1, 1), LinearBins(4, -1, 1)
        self.out = out
        self.watch = watch(
            self.model,
            self.optimizer,
            kinds=KINDS,
            bins=bins[0],
            channel_bins=bins[1],
            sinks=(self.records.append,),
            rules=(),
            out=out,
            every=1,
        )

    def iterate(self, i: int) -> None:
        self.optimizer.zero_grad()
        self.optimizer.state.clear()  # so that momentum is that of the iteration
        sum(t.square().sum() for t in self.model(self.inputs[i]).values()).backward()
        self.optimizer.step()

    def close(self) -> dict[int, Sites]:
        """By step, the bytes of all that was recorded of each site."""
        self.watch.close()
        run = open_run(self.out)
        assert run.steps == [record.step for record in self.records]
        last = self.watch.open_step
        assert sorted({*run.steps, *run.gaps}) == list(range(last)), "a step is lost, and not said"
        assert set(run.gaps.values()) <= {"interrupted", "error"}
        return {r.step: {key: _bytes(r, i) for i, key in enumerate(r)} for r in self.records}


def _bytes(record: StepRecord, site: int) -> bytes:
    first, end = record.offsets[site : site + 2]
    parts = [record.moments[first:end], record.tallies[first:end]]
    for hist, rows in ((record.hist, (site, site + 1)), (record.rows.hist, (first, end))):
        start, stop = hist.offsets[rows[0]], hist.offsets[rows[1]]
        parts += [hist.offsets[rows[0] : rows[1] + 1] - start]
        parts += [hist.slots[start:stop], hist.counts[start:stop]]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[int, Sites]:
    """What an undisturbed training records."""
    training = Training(tmp_path / "undisturbed")
    for i in range(ITERATIONS):
        training.iterate(i)
    found = training.close()
    assert len(found) == ITERATIONS
    assert len(found[0]) > 12
    return found


def disturbed(at: int, during: int, error: type[BaseException], out: Path) -> Any:
    """Train, raise an error at a line of hookstats in one iteration, and go on."""
    training = Training(out)
    for i in range(during):
        training.iterate(i)
    with Interrupt(at, error) as interruption:
        training.iterate(during)
    assert is_torch_function_enabled(), "torch functions stay disabled"
    torch.set_grad_enabled(True)  # which torch's optimizers may leave off
    if interruption.reached:
        training.watch.step()  # with what there is of the iteration
    for i in range(during + 1, ITERATIONS):
        training.iterate(i)
    return interruption, training.close(), training.watch.coverage()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("during", [0, 2])
def test_a_disturbed_step_is_exact_or_a_gap_and_the_next_are_exact(
    during: int, error: type[BaseException], undisturbed: dict[int, Sites], tmp_path: Path
) -> None:
    lines = disturbed(0, during, error, tmp_path / "all")[0].lines
    later = ITERATIONS - during - 1
    for at in random.Random(during).sample(range(1, lines + 1), SAMPLES):
        interruption, found, coverage = disturbed(at, during, error, tmp_path / str(at))
        where = interruption.where
        disabled = {(row.name, row.kind) for row in coverage if row.error is not None}
        last = coverage.steps
        for step, sites in found.items():
            if step < during:
                assert sites == undisturbed[step], where
            elif step < last - later:  # some sites, each right
                assert sites.items() <= undisturbed[during].items(), where
            else:
                expected = undisturbed[step - last + ITERATIONS]
                assert sites.items() <= expected.items(), where
                assert expected.keys() - sites.keys() <= disabled, where
        assert set(range(last - later, last)) <= found.keys(), where  # no later step is lost


def test_real_signals_at_random_moments_of_a_close(tmp_path: Path) -> None:
    """Iteration i adds i to the sum of its step: a step that is recorded has all of it."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rng, alarm = random.Random(0), Alarm()
    sums: dict[int, float] = {}
    expected: dict[int, float] = defaultdict(float)
    interrupts = 0

    def record(record: StepRecord) -> None:
        whole = record["", "output"].per_tensor()
        assert record.step not in sums
        sums[record.step] = float(whole.mean * whole.count)

    options = {"kinds": ("output",), "sinks": [record], "rules": (), "every": 1}
    w = watch(model, optimizer, out=tmp_path, **options)

    def iterate(i: int, seconds: float | None = None) -> float:
        nonlocal interrupts
        expected[w.open_step] += i
        model(torch.full((1, 1), float(i)))
        began = time.perf_counter()
        try:
            if seconds is not None:
                alarm.set(seconds)
            optimizer.step()
            alarm.off()
        except KeyboardInterrupt:
            interrupts += 1
            torch.set_grad_enabled(True)  # which torch's optimizers may leave off
        return time.perf_counter() - began

    usual = median(iterate(i) for i in range(9))
    for i in range(9, 600):
        iterate(i, rng.uniform(1e-6, usual) if i % 3 else None)
    w.close()
    run = open_run(tmp_path)
    assert interrupts > 100
    missing = set(range(w.open_step)) - {*sums, *run.gaps}
    assert not missing, (missing, w.coverage().failures)
    assert len(sums) > 200
    assert sums == {step: expected[step] for step in sums}


@pytest.mark.parametrize("what", ["draining", "recording"])
def test_where_memory_is_full_a_step_is_a_gap(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> Any:
        raise MemoryError("full")

    target: tuple[Any, str] = (device, "drain_") if what == "draining" else (StepRecord, "complete")
    training = Training(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(ITERATIONS):
            with monkeypatch.context() as patch:
                if i in (2, 3):
                    patch.setattr(*target, full)
                training.iterate(i)
                training.watch._recorder.drain()
        assert sorted(training.close()) == [0, 1, 4, 5]
    (told,) = [str(one.message) for one in caught if "hookstats" in str(one.message)]
    assert "MemoryError: full" in told
    assert open_run(tmp_path).gaps == {2: "error", 3: "error"}


def raising(*_: object) -> None:
    raise ValueError("stderr is closed")


@pytest.mark.parametrize("show", [None, raising])
def test_what_is_reported_ends_no_training(
    show: Callable[..., None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warnings are errors, or cannot be shown: the coverage has them."""
    training = Training(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if show is None else "always")
        if show is not None:
            monkeypatch.setattr(warnings, "showwarning", show)
        training.watch._recorder._sinks._called[0].sink = raising
        for i in range(ITERATIONS):
            training.iterate(i)
        training.watch.close()
    assert "ValueError: stderr is closed" in str(training.watch.coverage().failures)
