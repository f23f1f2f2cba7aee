"""Training steps of a model of three modules: what a run directory and rules add, and how often
training waits for the thread that serves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import thread_time
from typing import cast

import pytest
import torch
from models import Job
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn
from trainings import Training, Watched, WatchedStored

from bench.measure import Measured, Table, measure
from bench.smoke import pick
from bench.turns import Peer, Rounds

WIDTH = pick(256, 8)
JOB = Job(
    model=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)),
    batch=lambda: (torch.randn(256, WIDTH), torch.randint(0, 10, (256,))),
    loss=lambda model, x, y: nn.functional.cross_entropy(model(x), y),
    steps=pick(1000, 3),
)


class Counted(Training):
    """A training run, with the CPU time of the training's thread."""

    def run(self) -> float:
        began = thread_time()
        seconds = super().run()
        self.cpu = (*getattr(self, "cpu", ()), thread_time() - began)
        return seconds


class Recorded(Counted, Watched):
    """Recorded by `watch`, as it comes."""


class Stored(Recorded, WatchedStored):
    """Recorded by `watch`, into a run directory."""


PEERS: dict[str, type[Counted]] = {"no hooks": Counted, "watch": Recorded, "watch out=": Stored}
TABLE = Table(
    "training step of three modules, until its records are written",
    "ms/step",
    1e3,
    floor="no hooks",
    parts={"watch out=": "watch with a run directory"},
)


@pytest.fixture(scope="module")
def case() -> Iterator[Measured]:
    """The training runs, measured in turn."""
    together: dict[str, Training] = {}
    makers: dict[str, Callable[[], Peer]] = {
        name: partial(kind, JOB, together) for name, kind in PEERS.items()
    }
    together["Training"] = together["Watched"] = Training(JOB, {})
    measured = measure(TABLE, "256 wide", JOB.steps, makers, Rounds(12.0, least=3))
    peers = {name: cast(Counted, peer) for name, peer in measured.peers.items()}
    together["Training"], together["Watched"] = peers["no hooks"], peers["watch"]
    cpu = {name: median(peer.cpu) for name, peer in peers.items()}
    stored = cast(Stored, peers["watch out="])
    coverage = stored.watch.coverage()
    measured.case.facts["_cpu"] = cpu["watch out="] / cpu["no hooks"]
    measured.case.facts["_stalls"] = 100 * coverage.stalls / coverage.steps
    yield measured
    for peer in peers.values():
        peer.detach()


@pytest.mark.parametrize("peer", PEERS)
def test_step(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
