"""Training steps with a budget: what watching takes beside what it might take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest
from models import JOBS
from pytest_benchmark.fixture import BenchmarkFixture
from trainings import KINDS, Training, Watched

import hookstats as hs
from bench.measure import Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.smoke import SMOKE, pick
from bench.turns import Peer, Rounds

pytestmark = replayed

SETTLING = pick(100, 2)
"""The steps, at least, after which what the budget chose is measured."""


class Budgeted(Watched):
    """Recorded by `watch` within a budget, once it has chosen.

    A run has as many steps as there are from one record to the next: one of them is recorded.
    """

    budget = 0.01

    def attach(self) -> None:
        self.watch = hs.watch(
            self.model, self.optimizer, kinds=KINDS, bins=self.bins, budget=self.budget
        )
        self._passed, self.steps = 0, SETTLING
        super().run()

    @property
    def chosen(self) -> int:
        """The steps from one record to the next."""
        found = self.watch.coverage().budget
        assert found is not None
        return cast(int, found["every"])

    def prepare(self) -> None:
        self.steps = self.chosen

    def check(self) -> None:
        Training.check(self)
        assert 0 <= self.record.step < self._passed
        for row in self.watch.coverage():
            assert row.observed == row.forwards, row
        found = self.watch.coverage().budget
        assert SMOKE or (found is not None and not found["is_out_of_reach"])


class BudgetedMore(Budgeted):
    """The same, within three times the budget."""

    budget = 0.03


class BudgetedSample(Budgeted):
    """The same within the smaller budget, with histograms that are sampled from the first step."""

    bins = hs.LogBins(sample="auto")


class BudgetedMoreSample(BudgetedMore):
    """The same, within three times the budget."""

    bins = hs.LogBins(sample="auto")


PEERS: dict[str, type[Training]] = {
    "no hooks": Training,
    "budget=0.01": Budgeted,
    "budget=0.03": BudgetedMore,
    "0.01, auto": BudgetedSample,
    "0.03, auto": BudgetedMoreSample,
}
TABLE = Table(
    "a budget: training step with what `watch` records by default, with log bins",
    "ms/step",
    1e3,
    floor="no hooks",
    ours=tuple(PEERS)[1:],
    parts={
        "0.01, auto": 'budget=0.01, LogBins(sample="auto")',
        "0.03, auto": 'budget=0.03, LogBins(sample="auto")',
    },
)


@pytest.fixture(scope="module", params=JOBS)
def case(request: pytest.FixtureRequest, results: Results) -> Iterator[Measured]:
    """The training runs of a job, measured in turn."""
    job = JOBS[request.param]
    together: dict[str, Training] = {}
    makers: dict[str, Callable[[], Peer]] = {
        name: partial(kind, job, together) for name, kind in PEERS.items()
    }
    measured = measure(TABLE, request.param, job.steps, makers, Rounds(12.0, least=5))
    for name in TABLE.ours:
        peer = cast(Budgeted, measured.peers[name])
        measured.case.facts[f"_{name}"] = peer.chosen
    results.cases.append(measured.case)
    yield measured
    for training in measured.peers.values():
        cast(Training, training).detach()


@pytest.mark.parametrize("peer", PEERS)
def test_step(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
