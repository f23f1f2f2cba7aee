"""Steps that are not recorded: what a watch adds to them, by the CPU time of the process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import cast

import pytest
import torch
from models import Job, mlp
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn
from trainings import KINDS, Training

import hookstats as hs
from bench.measure import Measured, Table, measure
from bench.smoke import pick
from bench.turns import Peer, Rounds

EVERY = 100
LAYERS = pick(100, 3)
JOB = Job(
    lambda: mlp(64, LAYERS),
    lambda: (torch.randn(32, 64), torch.randint(64, (32,))),
    lambda model, x, y: nn.functional.cross_entropy(model(x), y),
    steps=EVERY,
)


class Timed(Training):
    """A training run, timed by the CPU time of the process, so that other work on the machine
    counts little, and the background thread counts.

    All train one model in turn: where in memory a model lies makes several percent of a step.
    """

    def __init__(self, job: Job, together: dict[str, Training]) -> None:
        super().__init__(job, together)
        first = together.setdefault("first", self)
        self.model, self.optimizer = first.model, first.optimizer

    def run(self) -> float:
        Training.run(self)  # what comes once
        gc.collect()  # of what the watch before has left
        began = process_time()
        Training.run(self)
        return process_time() - began


class Paused(Timed):
    """Watched, and paused."""

    every = 1

    def run(self) -> float:
        self.watch = hs.watch(self.model, self.optimizer, kinds=KINDS, every=self.every)
        with self.watch:
            if self.every == 1:
                self.watch.pause()
            return super().run()

    def check(self) -> None:
        super().check()
        assert all(row.forwards == 0 for row in self.watch.coverage())


class Seldom(Paused):
    """Recorded by `watch`, one step of a run."""

    every = EVERY

    def check(self) -> None:
        Training.check(self)
        coverage = self.watch.coverage()
        assert coverage.steps == 2 * EVERY
        assert all(row.observed == 2 for row in coverage)
        assert self.watch.latest.step == EVERY


PEERS: dict[str, type[Timed]] = {"no hooks": Timed, "paused": Paused, f"every={EVERY}": Seldom}
TABLE = Table(
    "steps that are not recorded: CPU time",
    "us/step",
    1e6,
    floor="no hooks",
)


@pytest.fixture(scope="module")
def case() -> Iterator[Measured]:
    """The training runs, measured in turn on one thread, as their tensors need no more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    together: dict[str, Training] = {}
    makers: dict[str, Callable[[], Peer]] = {
        name: partial(kind, JOB, together) for name, kind in PEERS.items()
    }
    name = f"{LAYERS}-layer MLP 64 wide, a batch of 32"
    measured = measure(TABLE, name, JOB.steps, makers, Rounds(10.0, least=3, most=40))
    together["Training"] = Training(JOB, {})
    together["Training"].run()
    yield measured
    for peer in measured.peers.values():
        cast(Training, peer).detach()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("peer", PEERS)
def test_step(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
