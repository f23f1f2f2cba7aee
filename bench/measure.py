"""measure(), replay_case(): from peers to a measured Case, and from there to pytest-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bench.measured import Case, Table
from bench.turns import Clock, Peer, Rounds, host, interleave

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


class Absent(Exception):
    """Raised by what makes a peer: it cannot take part, and why."""


def required(module: str, package: str = "") -> Any:
    """The module, of the package of that name or another.

    Raises:
        Absent: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Absent(f"{package or module} is not installed") from None


@dataclass
class Measured:
    """A case, and its peers with the last result of each."""

    case: Case
    peers: dict[str, Peer]

    def verify(self, peer: str, benchmark: BenchmarkFixture) -> None:
        """Hand the peer's times to its test's `benchmark`, and assert what was timed.

        Skips the test of a peer that is absent.
        """
        import pytest

        from bench.replay import replay  # by pytest-benchmark, which a check of a GPU does without

        case = self.case
        if peer in case.absent:
            pytest.skip(f"{peer}: {case.absent[peer]}")
        benchmark.group = f"{case.table.title}: {case.name}"
        replay(benchmark, case.seconds[peer])
        benchmark.extra_info[case.table.unit] = case.value(peer)
        benchmark.extra_info["ratio to floor"] = case.ratio(peer, case.table.floor)
        self.peers[peer].check()

    def check(self) -> None:
        """Assert what was timed, of every peer."""
        for peer in self.peers.values():
            peer.check()


def measure(
    table: Table,
    name: str,
    size: float,
    makers: Mapping[str, Callable[[], Peer]],
    rounds: Rounds = Rounds(),  # noqa: B008  (it is frozen)
    special: Mapping[str, Rounds] = MappingProxyType({}),
    facts: Mapping[str, float] = MappingProxyType({}),
    clock: Clock = host,
    warm_up: int = 1,
) -> Measured:
    """The peers that can take part, timed in turn as `interleave` does, which has the rest."""
    peers: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for peer, make in makers.items():
        try:
            peers[peer] = make()
        except Absent as why:  # noqa: PERF203  (a few, and far from what is timed)
            absent[peer] = str(why)
    seconds = interleave(peers, rounds, special, clock, warm_up)
    return Measured(Case(table, name, size, seconds, absent, dict(facts)), peers)
