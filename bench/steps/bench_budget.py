"""Training steps with a budget: what watching takes beside what it might take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from models import JOBS, Job
from pytest_benchmark.fixture import BenchmarkFixture
from trainings import KINDS, Training, Watched

import hookstats as hs
from bench.measure import Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.smoke import SMOKE, pick
from bench.turns import Rounds

pytestmark = replayed

BUDGETS = {"budget=0.01": 0.01, "budget=0.03": 0.03}
SETTLING = pick(64, 2)
"""The steps, at least, after which what the budget chose is measured."""


class Budgeted(Watched):
    """Recorded by `watch` within a budget, once it has chosen.

    A run has as many steps as there are from one record to the next: one of them is recorded.
    """

    def __init__(self, job: Job, budget: float) -> None:
        self._budget = budget
        together: dict[str, Training] = {}
        Training(job, together).run()  # what `check` compares with
        super().__init__(job, together)

    def open(self) -> hs.Watch:
        return hs.watch(self.model, self.optimizer, KINDS, bins=self.bins, budget=self._budget)

    def attach(self) -> None:
        super().attach()
        self.steps = SETTLING
        self.run()

    @property
    def chosen(self) -> int:
        """The steps from one record to the next."""
        found = self.watch.coverage().budget
        assert found is not None
        return cast(int, found["every"])

    @property
    def is_recorded(self) -> bool:
        """Whether a step of the last run was recorded."""
        return self._passed - self.steps <= self.record.step < self._passed

    def prepare(self) -> None:
        self.steps = self.chosen

    def check(self) -> None:
        Training.check(self)
        assert self.is_recorded
        for row in self.watch.coverage():
            assert row.observed == row.forwards, row
        found = self.watch.coverage().budget
        assert SMOKE or (found is not None and not found["is_out_of_reach"])


class Paused:
    """The same training, as many steps of it, while its watch is paused.

    Two trainings of one model would differ by several percent, by where in memory each lies.
    """

    def __init__(self, budgeted: Budgeted) -> None:
        self._budgeted = budgeted

    def prepare(self) -> None:
        self._budgeted.prepare()

    def run(self) -> float:
        self._budgeted.watch.pause()
        took = self._budgeted.run()
        self._budgeted.watch.resume()
        self._is_recorded = self._budgeted.is_recorded
        return took

    def check(self) -> None:
        """Assert that nothing was recorded."""
        assert not self._is_recorded


def table(peer: str) -> Table:
    """The table of a budget: how `paused` and `peer` compare."""
    return Table(
        f"a budget of {BUDGETS[peer]:.0%}: training step with what `watch` records by default",
        "ms/step",
        1e3,
        floor="paused",
        ours=(peer,),
    )


@pytest.fixture(
    scope="module",
    params=[(job, peer) for job in JOBS for peer in BUDGETS],
    ids=lambda each: f"{each[0]}, {each[1]}",
)
def case(request: pytest.FixtureRequest, results: Results) -> Iterator[Measured]:
    """A job's training with a budget: stretches with records and others, in turn."""
    name, peer = request.param
    job = JOBS[name]
    budgeted = Budgeted(job, BUDGETS[peer])
    makers = {"paused": lambda: Paused(budgeted), peer: lambda: budgeted}
    rounds = Rounds(0.0, least=12)  # by number, so that the last round has both, too
    measured = measure(table(peer), name, job.steps, makers, rounds)
    measured.case.facts["_every"] = budgeted.chosen
    results.cases.append(measured.case)
    yield measured
    budgeted.detach()


@pytest.mark.parametrize("place", ["paused", "watched"])
def test_step(place: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify("paused" if place == "paused" else case.case.table.ours[0], benchmark)
