"""What the model's own inputs cost a step, which `watch` records by default: the CPU time of the
training's thread, so that other work on the machine counts little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import thread_time

import pytest
import torch
from models import Job
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor, nn
from trainings import KINDS, Training, Watched

import hookstats as hs
from bench.measure import Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.turns import Peer, Rounds

pytestmark = replayed


class First(nn.Module):
    """A model that looks at one element of its input: what the input costs is seen alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x.flatten()[:1].float())
        return found


INPUTS: dict[str, Callable[[], Tensor]] = {
    "16x3x128x128 images": lambda: torch.randn(16, 3, 128, 128),
    "8x128 token ids": lambda: torch.randint(0, 50000, (8, 128)),
    "8x1024 token ids": lambda: torch.randint(0, 50000, (8, 1024)),
}


def job(x: Callable[[], Tensor]) -> Job:
    """Steps with this input."""
    return Job(First, lambda: (x(), torch.zeros(1)), lambda m, x, y: (m(x) - y).square().sum(), 10)


class Timed(Training):
    """A training run, timed by the CPU time of its thread."""

    def run(self) -> float:
        began = thread_time()
        super().run()
        return thread_time() - began


class WithoutInputs(Timed, Watched):
    """Recorded by `watch`, told which kinds."""


class WithInputs(WithoutInputs):
    """Recorded by `watch` with what is recorded by default."""

    def attach(self) -> None:
        self.watch = hs.watch(self.model, self.optimizer)
        self._passed = 0

    def check(self) -> None:
        super().check()
        given = self.record["", "input"]
        (x, _) = self._batch
        assert given.count.sum() == x.numel()
        assert given.max.max() == x.max()


PEERS: dict[str, type[Timed]] = {
    "no hooks": Timed,
    "watch, no inputs": WithoutInputs,
    "watch": WithInputs,
}
TABLE = Table(
    "CPU time of a step of a model that does next to nothing, with its input recorded",
    "us/step",
    1e6,
    floor="no hooks",
    ours=("watch", "watch, no inputs"),
    parts={"watch, no inputs": f"kinds={KINDS}"},
)


@pytest.fixture(scope="module", params=INPUTS)
def case(request: pytest.FixtureRequest, results: Results) -> Iterator[Measured]:
    """The training runs of a job, measured in turn."""
    steps, together = job(INPUTS[request.param]), dict[str, Training]()
    makers: dict[str, Callable[[], Peer]] = {
        name: partial(kind, steps, together) for name, kind in PEERS.items()
    }
    together["Training"] = together["Watched"] = Training(steps, {})
    measured = measure(TABLE, request.param, steps.steps, makers, Rounds(2.0, least=5, most=200))
    together["Training"] = measured.peers["no hooks"]  # type: ignore[assignment]
    together["Watched"] = measured.peers["watch, no inputs"]  # type: ignore[assignment]
    results.cases.append(measured.case)
    yield measured
    for peer in measured.peers.values():
        peer.detach()  # type: ignore[attr-defined]


@pytest.mark.parametrize("peer", PEERS)
def test_step(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
