"""Budget: which factor it chooses by what steps took, on simulated clocks."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from hookstats.watching.budget import Budget, Measured

BASE = 0.010  # seconds of a step without watching


class Training:
    """A simulated training run, whose steps are recorded as the budget says."""

    def __init__(self, budget: Budget, cost: float, *, direct: bool = True) -> None:
        """cost: the seconds that recording a step takes. direct: whether it is measured itself."""
        self.budget = budget
        self.cost = cost
        self.idle = 0.0
        self.hidden = 0.0
        """The seconds that recording a step takes outside of hooks."""
        self.of_samples = 1.0
        """What a recorded step costs where histograms are sampled, by what it costs otherwise."""
        self.in_background = 0.0
        self.noise: Callable[[], float] = lambda: 1.0
        self.step = 0
        self.spent = self.trained = self.now = self.background = 0.0
        self.recorded: list[int] = []
        self.factors: list[int] = []
        self._direct = direct

    def run(self, steps: int) -> list[int]:
        """The factors chosen, step by step."""
        for _ in range(steps):
            recorded = self.step % self.budget.every == 0
            if recorded:
                self.recorded.append(self.step)
                self.background += self.in_background
            of_samples = self.of_samples if self.budget.is_sampled else 1.0
            cost = (self.cost * of_samples if recorded else self.idle) * self.noise()
            base = BASE * self.noise()
            hidden = self.hidden * self.noise() if recorded else 0.0
            self.spent, self.trained = self.spent + cost + hidden, self.trained + base
            base += hidden
            self.now += base + cost
            known = cost if self._direct else None
            self.budget.note(Measured(recorded, base + cost, known, self.now, self.background))
            self.budget.choose(self.budget.wanted)
            self.factors.append(self.budget.factor)
            self.step += 1
        return self.factors[-steps:]


def changes(factors: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(factors))


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("share", "cost", "factor"),
    [(0.01, 0.2, 32), (0.03, 0.2, 8), (0.01, 0.52, 64), (0.1, 0.05, 1), (0.01, 5.0, 512)],
)
def test_the_least_factor_that_keeps_to_the_budget(
    share: float, cost: float, factor: int, direct: bool
) -> None:
    training = Training(Budget(share), cost * BASE, direct=direct)
    training.run(9 if factor > 1 else 20)  # the first ones alternate
    # By comparing alone, nothing is known of what is recorded in every step.
    expected = factor if direct else max(factor, 2)
    assert training.budget.factor == expected
    assert set(training.run(20 * factor)) == {expected}
    assert training.budget.report() == {
        "share": share,
        "every": expected,
        "takes": pytest.approx(cost / expected),
        "is_out_of_reach": False,
        "is_sampled": False,
    }


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("share", "of_samples", "factor"),
    [(0.3, 0.5, 1), (0.03, 0.1, 1), (0.03, 0.4, 4), (0.03, 1.0, 8), (0.01, 0.25, 8)],
)
def test_histograms_are_sampled_before_steps_are_left_out(
    share: float, of_samples: float, factor: int, direct: bool
) -> None:
    training = Training(Budget(share, samples=True), 0.2 * BASE, direct=direct)
    training.of_samples = of_samples
    training.run(50 if share > 0.01 else 200)
    # By comparing alone, every second step is the most.
    assert training.budget.is_sampled == (share < 0.2)
    expected = max(factor, 1 if direct else 2)
    assert training.budget.factor == expected
    assert set(training.run(2000)) == {expected}
    assert changes(training.factors) <= 2 + (not direct)


def test_histograms_are_sampled_where_costs_grow_later() -> None:
    training = Training(Budget(0.3, samples=True), 0.2 * BASE)
    training.of_samples = 0.5
    assert training.run(200)[-1] == 1
    assert not training.budget.is_sampled
    training.cost *= 2
    training.run(200)
    assert training.budget.is_sampled
    assert training.budget.factor == 2


def test_steps_in_a_pause_are_no_comparison() -> None:
    training = Training(Budget(0.3), 0.2 * BASE)
    training.hidden = 0.6 * BASE
    for _ in range(20):
        training.budget.note(Measured(False, BASE, 0.0))
    assert set(training.run(1) + training.run(100)[50:]) <= {2, 4}
    assert training.budget.factor == 4


def test_every_is_the_least_distance() -> None:
    training = Training(Budget(0.01, every=3), 0.2 * BASE)
    training.run(3 * 4)
    assert training.budget.every == 3 * 8
    training.run(200)
    assert training.recorded[:8] == [0, 3, 6, 9, 24, 48, 72, 96]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(("before", "after"), [(0.04, 0.64), (0.64, 0.04), (0.04, 0.3)])
def test_it_adapts_within_50_steps_or_4_recorded_ones(
    before: float, after: float, direct: bool
) -> None:
    training = Training(Budget(0.02), before * BASE, direct=direct)
    training.run(640)
    assert training.budget.factor == 2 ** math.ceil(math.log2(before / 0.02))
    recorded, since = len(training.recorded), training.step
    training.cost = after * BASE
    while training.step < since + 50 or len(training.recorded) < recorded + 4:
        training.run(1)
    assert after / training.budget.factor <= 0.02
    assert training.budget.factor <= 4 * after / 0.02


def test_slower_steps_allow_for_more_records() -> None:
    training = Training(Budget(0.01), 0.2 * BASE)
    training.run(64)
    assert training.budget.factor == 32
    training.noise = lambda: 8.0  # of everything: the shares are the same
    assert set(training.run(400)) == {32}


@pytest.mark.parametrize(
    ("direct", "spread", "most"), [(True, 0.1, 1), (True, 0.3, 2), (False, 0.03, 2)]
)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cost", [0.16, 0.2, 0.305])
def test_noise_does_not_have_it_go_back_and_forth(
    cost: float, seed: int, direct: bool, spread: float, most: int
) -> None:
    chance = random.Random(seed)
    training = Training(Budget(0.01), cost * BASE, direct=direct)
    training.noise = lambda: math.exp(chance.gauss(0.0, spread))
    training.run(10_000)
    assert changes(training.run(10_000)) <= most
    assert changes(training.factors) <= 8
    assert training.spent <= 1.3 * 0.01 * training.trained * (1 + 8 / 32)


def test_a_cost_that_leaps_for_ever_is_answered_less_and_less() -> None:
    training = Training(Budget(0.01), 0.2 * BASE)
    found = []
    for _ in range(12):
        for cost in (0.05, 0.2):
            training.cost = cost * BASE
            found += training.run(2000)
    assert changes(found[: len(found) // 3]) >= 2
    assert changes(found[len(found) // 3 :]) == 0


def test_what_the_background_takes_counts() -> None:
    training = Training(Budget(0.01), 0.0)
    training.in_background = 0.16 * BASE
    training.run(2000)
    assert training.budget.factor == 16
    assert training.budget.takes == pytest.approx(0.01)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.6])
def test_what_recording_takes_outside_of_hooks_counts(
    share: float, spread: float, seed: int
) -> None:
    chance = random.Random(seed)
    training = Training(Budget(share), 0.2 * BASE)
    training.hidden = 0.6 * BASE
    training.noise = lambda: math.exp(chance.gauss(0.0, spread))
    training.run(4000)
    training.spent = training.trained = 0.0
    assert changes(training.run(4000)) <= 1
    expected = 0.8 / training.budget.factor
    assert expected <= 1.2 * share
    assert training.budget.takes == pytest.approx(expected, rel=0.02 if not spread else 0.4)
    assert training.spent <= 1.3 * share * training.trained


def test_a_budget_out_of_reach() -> None:
    training = Training(Budget(0.01), 0.2 * BASE)
    training.run(200)
    assert not training.budget.is_out_of_reach
    training.idle = 0.05 * BASE
    training.run(2000)
    assert training.budget.is_out_of_reach
    assert training.budget.takes == pytest.approx(0.05 + 0.15 / 32)
    assert training.budget.factor == 32  # as before: fewer records would not help
    training.idle = 0.0
    training.run(2000)
    assert not training.budget.is_out_of_reach
    assert training.budget.factor == 32


@pytest.mark.parametrize("direct", [True, False])
def test_of_a_clock_that_stands_still_nothing_is_known(direct: bool) -> None:
    budget = Budget(0.01)
    training = Training(budget, 0.2 * BASE, direct=direct)
    training.run(600)
    assert budget.takes is not None
    for _ in range(20_000):
        recorded = training.step % budget.every == 0
        budget.note(Measured(recorded, 0.0, 0.0 if direct else None, 5.0, 0.0))
        training.step += 1
    assert budget.wanted == budget.factor == 32
    assert budget.takes is None


def test_a_clock_that_goes_back_is_forgiven() -> None:
    training = Training(Budget(0.01), 0.2 * BASE)
    training.run(640)
    training.now -= 3600
    training.run(1)
    assert set(training.run(2000)) == {32}


def test_what_is_known_of_the_background_is_bounded() -> None:
    tracemalloc.start()
    try:
        budget, sizes = Budget(0.01), []
        for _ in range(2):
            for _ in range(20_000):
                budget.note(Measured(True, 1.0, 0.001, 5.0, 0.0))
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] < 1.1 * sizes[0]


def pauses() -> Iterator[float]:
    while True:
        yield from (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 400.0)  # an evaluation, a checkpoint


def test_steps_with_a_pause_do_not_count() -> None:
    training = Training(Budget(0.01), 0.2 * BASE)
    found = pauses()
    training.noise = lambda: next(found)
    training.run(1000)
    assert training.budget.factor == 32
