"""measure(): times the peers of a case in turn, and hands the times to pytest-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class Table:
    """What the cases of one table share."""

    title: str
    unit: str
    """Of its figures, such as "ns/element"."""
    scale: float
    """How many of the unit's first part a second has: 1e9 for ns."""
    floor: str
    """The peer that does the least: a read of the same bytes, a step without hooks."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Peers that compute less, and what they compute."""
    read: str = ""
    """The peer that only reads what is observed: a measure of what others add to the floor."""


@dataclass
class Case:
    """One case of a table: what each peer took for it."""

    table: Table
    name: str
    size: float
    """What a time is divided by: elements, modules, steps."""
    seconds: dict[str, list[float]]
    """By peer, round by round; the i-th rounds of all were neighbours."""
    absent: dict[str, str] = field(default_factory=dict)
    """Peers that were not measured, and why."""
    facts: dict[str, float] = field(default_factory=dict)
    """What else is known of it, by name and unit."""
    own: dict[str, dict[str, float]] = field(default_factory=dict)
    """The same of each peer."""

    def value(self, peer: str) -> float:
        """The median, in the table's unit."""
        return median(self.seconds[peer]) * self.table.scale / self.size

    def ratio(self, peer: str, to: str) -> float:
        """The median of the ratios of neighbouring rounds: what slows both is not in it."""
        pairs = zip(self.seconds[peer], self.seconds[to], strict=False)
        return median(mine / other for mine, other in pairs)

    def over_floor(self, peer: str) -> float:
        """The median of the differences of neighbouring rounds, in the table's unit."""
        pairs = zip(self.seconds[peer], self.seconds[self.table.floor], strict=False)
        return median(mine - other for mine, other in pairs) * self.table.scale / self.size

    def to_read(self, peer: str) -> float:
        """What `peer` adds to the floor, by a read of all that is observed; as `ratio`."""
        named = (peer, self.table.floor, self.table.read)
        rounds = zip(*(self.seconds[name] for name in named), strict=False)
        return median((mine - floor) / read for mine, floor, read in rounds)

    def figures(self, peer: str) -> dict[str, Any]:
        """What a table says of a peer, by column."""
        table = self.table
        found: dict[str, Any] = {table.unit: self.value(peer)}
        if peer != table.read:
            found["added"] = self.over_floor(peer)
            if table.read in self.seconds:
                found[f"added/{table.read}"] = self.to_read(peer)
            found[f"/{table.floor}"] = self.ratio(peer, table.floor)
        if peer in table.parts:
            found["part"] = table.parts[peer]
        if median(self.seconds[peer]) > 1.5 * min(self.seconds[peer]):
            found["disturbed"] = True
        return found | self.facts | self.own.get(peer, {})

    def entry(self, peer: str) -> dict[str, Any]:
        """Its times as pytest-benchmark's JSON has them, for what runs without pytest-benchmark."""
        seconds = self.seconds[peer]
        return {
            "group": f"{self.table.title}: {self.name}",
            "name": peer,
            "extra_info": self.figures(peer),
            "stats": {"rounds": len(seconds), "min": min(seconds), "median": median(seconds)},
        }


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

        case = self.case
        if peer in case.absent:
            pytest.skip(f"{peer}: {case.absent[peer]}")
        benchmark.group = f"{case.table.title}: {case.name}"
        benchmark.extra_info |= {"peer": peer, **case.figures(peer)}
        replay(benchmark, case.seconds[peer])
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


_now = 0.0


def replayed_perf_counter() -> float:
    """The timer of the benchmarks' tests: it moves only by the times that are replayed."""
    return _now


def replay(benchmark: BenchmarkFixture, seconds: Sequence[float]) -> None:
    """Make the measured `seconds` the rounds of a test's benchmark.

    pytest-benchmark times one callable per test: two tests of one case, timed one after the other,
    may meet two different machines. Here each peer's test replays what was timed in turn.
    """
    durations = iter(seconds)

    def advance() -> None:
        global _now
        _now += next(durations)

    benchmark.pedantic(advance, rounds=len(seconds))  # type: ignore[no-untyped-call]
