"""Times peers in turn, round by round, and hands the times to pytest-benchmark.

pytest-benchmark times one callable a test: two tests of the same case may meet two different
machines where others work too. Here the peers of a case take turns, A B C A B C, so that whatever
slows the machine slows them all; each peer's test then replays its times.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from smoke import SMOKE


class Peer(Protocol):
    """One of the things that are compared."""

    def prepare(self) -> None:
        """Called before every `run`, not timed."""

    def run(self) -> float | None:
        """What is timed; its result is kept for `check`.

        Returns the seconds it took where only the peer can tell: in another process, or on another
        number of threads.
        """

    def check(self) -> None:
        """Assert that the last result is right."""


@dataclass(frozen=True)
class Rounds:
    """How long a peer takes part: until it took `seconds`, in at least `least` and `most` calls."""

    seconds: float = 0.6
    least: int = 3
    most: int = 40


def interleave(
    peers: Mapping[str, Peer],
    rounds: Rounds = Rounds(),
    special: Mapping[str, Rounds] = MappingProxyType({}),
) -> dict[str, list[float]]:
    """Seconds of every timed call of each peer, after one call that warms it up.

    `rounds` are for those that have none in `special`. A peer leaves once it had its rounds, so
    that a slow one does not cost the others theirs.
    """
    times: dict[str, list[float]] = {name: [] for name in peers}
    for peer in peers.values():
        peer.prepare()
        peer.run()
    playing = list(peers)
    gc.collect()
    gc.disable()
    try:
        while playing:
            for name in playing:
                peers[name].prepare()
                start = perf_counter()
                itself = peers[name].run()
                took = perf_counter() - start
                times[name].append(took if itself is None else itself)
            playing = [
                name for name in playing if not _done(times[name], special.get(name, rounds))
            ]
    finally:
        gc.enable()
    return times


def _done(seconds: Sequence[float], rounds: Rounds) -> bool:
    if SMOKE:
        rounds = replace(rounds, seconds=0.0)
    enough = len(seconds) >= rounds.most or sum(seconds) >= rounds.seconds
    return enough and len(seconds) >= rounds.least


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
