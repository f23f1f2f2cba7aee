"""replay(): hands times that were measured in turn to pytest-benchmark.

pytest-benchmark times one callable per test: two tests of one case, timed one after the other, may
meet two different machines. Here each peer's test replays what `turns.interleave` measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pytest_benchmark.fixture import BenchmarkFixture


class _Clock:
    """A timer that moves only by the times that are replayed."""

    def __init__(self) -> None:
        self._now = 0.0

    def replayed_perf_counter(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


_clock = _Clock()

replayed = pytest.mark.benchmark(timer=_clock.replayed_perf_counter)
"""The mark of tests that `replay`."""


def replay(benchmark: BenchmarkFixture, seconds: Sequence[float]) -> None:
    """Make the measured `seconds` the rounds of a `replayed` test's benchmark."""
    durations = iter(seconds)
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: _clock.advance(next(durations)), rounds=len(seconds)
    )
