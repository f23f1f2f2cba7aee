"""A training step with watch on, beside none, and beside hooks with the same in eager torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from statistics import median

import pytest
import torch
from accuracy import FLOAT32, as_statistics, check
from eager import Statistics, statistics
from interleave import interleave, replay, replayed
from pytest_benchmark.fixture import BenchmarkFixture
from report import Report, cell
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import hookstats as hs

pytestmark = replayed

STEPS = 10
"""Training steps that are timed at once: a round of every=10."""

ROUNDS = 7
PEERS = ("no hooks", "watch", "watch every=10", "eager hooks")


def _mlp() -> nn.Sequential:
    layers = chain.from_iterable((nn.Linear(128, 128), nn.ReLU()) for _ in range(49))
    model = nn.Sequential(*layers, nn.Linear(128, 128))
    for module in model:
        if isinstance(module, nn.Linear):  # or nothing gets through
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model


def _conv_net() -> nn.Sequential:
    widths = (3, 16, 32, 64)
    blocks = chain.from_iterable(
        (nn.Conv2d(n, m, 3, padding=1), nn.BatchNorm2d(m), nn.ReLU()) for n, m in pairwise(widths)
    )
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Job:
    """What is trained, and on batches of which shape."""

    model: Callable[[], nn.Sequential]
    batch: tuple[int, ...]


JOBS = {
    "50-layer MLP, 32x128": Job(_mlp, (32, 128)),
    "conv net, 8x3x32x32": Job(_conv_net, (8, 3, 32, 32)),
}


class Training:
    """A model in training, without hooks."""

    def __init__(self, job: Job) -> None:
        generator = torch.Generator().manual_seed(0)
        self._x = torch.randn(job.batch, generator=generator)
        self._y = torch.randint(10, job.batch[:1], generator=generator)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = job.model()
        self.optimizer = SGD(self.model.parameters(), lr=0.001, momentum=0.9)

    def prepare(self) -> None:
        """Nothing: every training goes on where it was."""

    def run(self) -> None:
        """Train STEPS steps."""
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self._x), self._y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def check(self, peers: Mapping[str, Training]) -> None:
        """Assert that it was trained as without hooks, to the last bit, and what it recorded."""
        plain = peers["no hooks"].model.parameters()
        for weight, expected in zip(self.model.parameters(), plain, strict=True):
            assert weight.isfinite().all()
            assert weight.equal(expected)


class Watched(Training):
    """Recorded by `watch`, as it comes."""

    def __init__(self, job: Job, every: int) -> None:
        super().__init__(job)
        self.every = every
        self.watch = hs.watch(self.model, self.optimizer, every=every)

    def run(self) -> None:
        super().run()
        self.record = self.watch.latest  # waits until the steps are recorded, too

    def check(self, peers: Mapping[str, Training]) -> None:
        super().check(peers)
        steps = STEPS * (1 + ROUNDS)
        assert self.record.step == steps - self.every
        for row in self.watch.coverage():
            assert row.observed == row.forwards == steps // self.every, row


class EagerHooks(Training):
    """The statistics of `watch`, one of each site and step, by eager torch."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.found: dict[tuple[str, str], Statistics] = {}
        self._bins = hs.LogBins()
        for name, module in self.model.named_children():
            module.register_forward_hook(self._output_hook(name))
        self.optimizer.register_step_pre_hook(self._before_step)

    def _observe(self, name: str, kind: str, x: Tensor) -> None:
        axis = 0 if kind == "param_grad" else 1 if x.dim() == 4 else x.dim() - 1
        x = x.detach().unsqueeze(-1)  # so that a bias has a dimension to reduce
        self.found[name, kind] = statistics(x, axis, bins=self._bins)

    def _output_hook(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            self._observe(name, "output", output)
            observe = partial(self._observe, name, "grad_output")
            output.register_hook(observe)  # type: ignore[no-untyped-call]

        return hook

    def _before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        for name, parameter in self.model.named_parameters():
            assert parameter.grad is not None
            self._observe(name, "param_grad", parameter.grad)

    def check(self, peers: Mapping[str, Training]) -> None:
        super().check(peers)
        watched = peers["watch"]
        assert isinstance(watched, Watched)
        assert set(self.found) == set(watched.record)
        for key, found in self.found.items():
            check(found, as_statistics(watched.record[key]), FLOAT32)


@dataclass
class Case:
    """The trainings of one job, and how long each took, round by round."""

    name: str
    peers: dict[str, Training]
    seconds: dict[str, list[float]]

    def ms_per_step(self, peer: str) -> float:
        return median(self.seconds[peer]) / STEPS * 1e3

    def ratio(self, peer: str) -> float:
        """To no hooks, of the medians."""
        return median(self.seconds[peer]) / median(self.seconds["no hooks"])

    def row(self) -> dict[str, str]:
        """Its line in the report."""
        row = {"ms/step": self.name}
        row |= {peer: cell(self.seconds[peer], 1e3 / STEPS) for peer in PEERS}
        return row | {f"{peer}/no hooks": f"{self.ratio(peer):.2f}" for peer in PEERS[1:]}


@pytest.fixture(scope="module", params=JOBS)
def case(request: pytest.FixtureRequest, report: Report) -> Iterator[Case]:
    """A job's trainings, measured in turn."""
    job = JOBS[request.param]
    each, tenth = Watched(job, every=1), Watched(job, every=10)
    peers = {
        "no hooks": Training(job),
        "watch": each,
        "watch every=10": tenth,
        "eager hooks": EagerHooks(job),
    }
    with each.watch, tenth.watch:
        # As many rounds for all, so that they end with the same weights.
        case = Case(request.param, peers, interleave(peers, least=ROUNDS, most=ROUNDS))
        report.add("training step: output, grad_output and param_grad with log bins", case.row())
        yield case


@pytest.mark.parametrize("peer", PEERS)
def test_step(
    peer: str, case: Case, machine: dict[str, str | int], benchmark: BenchmarkFixture
) -> None:
    benchmark.group = f"training step: {case.name}"
    replay(benchmark, case.seconds[peer])
    added = case.ms_per_step(peer) - case.ms_per_step("no hooks")
    benchmark.extra_info.update(
        ms_per_step=case.ms_per_step(peer),
        ratio_to_no_hooks=case.ratio(peer),
        us_per_module=added * 1e3 / len(case.peers[peer].model),
        **machine,
    )
    case.peers[peer].check(case.peers)
    if peer == "watch":
        assert case.ratio("watch") < case.ratio("eager hooks")
