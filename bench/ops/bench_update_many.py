"""Many parameter gradients: one call of update_many_, beside update_ one by one and eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import pytest
import torch
from accuracy import FLOAT32, HOOKSTATS, as_statistics, check
from eager import Statistics, statistics
from interleave import interleave, replay, replayed
from pytest_benchmark.fixture import BenchmarkFixture
from report import Report, cell
from torch import Tensor

from hookstats import ChannelStats, LogBins, channel_stats, ops, state

pytestmark = replayed

BINS = LogBins()
BLOCK = ((768, 256), (768, 1), (256, 256), (256, 1), (1024, 256), (1024, 1), (256, 1024), (256, 1))
"""The parameters of a transformer's block 256 wide, but for its norms."""

JOBS: dict[str, Sequence[tuple[int, int]]] = {
    "400 of 64x1": [(64, 1)] * 400,
    "400 of 16x16": [(16, 16)] * 400,
    "400 of 64x64": [(64, 64)] * 400,
    "12 transformer blocks": BLOCK * 12,
}
PEERS = ("read", "update_many_", "update_", "eager")


class Read:
    """The floor: a sum of each."""

    def __init__(self, xs: Sequence[Tensor]) -> None:
        self.xs = list(xs)

    def prepare(self) -> None:
        """Read them all once, so that every peer finds caches and threads in the same state."""
        for x in self.xs:
            x.sum()

    def run(self) -> None:
        self._sums = [x.sum() for x in self.xs]

    def check(self) -> None:
        """Assert that the last results are right."""
        for x, found in zip(self.xs, self._sums, strict=True):
            torch.testing.assert_close(found.double(), x.double().sum(), rtol=1e-3, atol=1e-3)


class OneByOne(Read):
    """update_ of each, on empty states."""

    def __init__(self, xs: Sequence[Tensor]) -> None:
        super().__init__(xs)
        self._bins = BINS.descriptor("cpu")

    def prepare(self) -> None:
        channels = [len(x) for x in self.xs]
        self._moments = state.identity_moments(sum(channels)).split(channels)
        self._tallies = state.identity_tallies(sum(channels)).split(channels)
        self._counts = torch.zeros(len(self.xs), BINS.slots, dtype=torch.int64).unbind()
        super().prepare()

    def run(self) -> None:
        states = zip(self.xs, self._moments, self._tallies, self._counts, strict=True)
        for x, moments, tallies, counts in states:
            ops.update_(x, 0, moments, tallies, counts, self._bins)

    def check(self) -> None:
        states = zip(self.xs, self._moments, self._tallies, self._counts, strict=True)
        for x, moments, tallies, counts in states:
            found = ChannelStats(moments, tallies, counts=counts, bins=BINS)
            check(as_statistics(found), expected(x), HOOKSTATS)


class AtOnce(OneByOne):
    """update_many_ of all."""

    def run(self) -> None:
        lists = (self._moments, self._tallies, self._counts)
        ops.update_many_(self.xs, 0, *lists, self._bins, [], None)


class Eager(Read):
    """`eager.statistics` of each."""

    def run(self) -> None:
        self._found: list[Statistics] = [statistics(x, 0, bins=BINS) for x in self.xs]

    def check(self) -> None:
        for x, found in zip(self.xs, self._found, strict=True):
            check(found, expected(x), FLOAT32)


def expected(x: Tensor) -> Statistics:
    """The right statistics."""
    whole = channel_stats(x, None, bins=BINS).hist
    assert whole is not None
    return as_statistics(channel_stats(x.double(), 0)) | {"counts": whole.slot_counts[0]}


@dataclass
class Case:
    """One list of tensors, and how long each peer took for it, round by round."""

    name: str
    peers: dict[str, Read]
    seconds: dict[str, list[float]]

    def us_per_tensor(self, peer: str) -> float:
        return median(self.seconds[peer]) / len(self.peers[peer].xs) * 1e6

    def ratio(self, peer: str, to: str) -> float:
        """Of the medians."""
        return median(self.seconds[peer]) / median(self.seconds[to])

    def row(self) -> dict[str, str]:
        """Its line in the report."""
        tensors = len(self.peers["read"].xs)
        row = {"us/tensor": self.name}
        row |= {peer: cell(self.seconds[peer], 1e6 / tensors) for peer in PEERS}
        row["update_many_/read"] = f"{self.ratio('update_many_', 'read'):.2f}"
        row["update_many_/update_"] = f"{self.ratio('update_many_', 'update_'):.2f}"
        return row


@pytest.fixture(scope="module", params=JOBS)
def case(request: pytest.FixtureRequest, report: Report) -> Case:
    """A case, measured: all its peers in turn."""
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(shape, generator=generator) for shape in JOBS[request.param]]
    kinds: dict[str, Callable[[Sequence[Tensor]], Read]] = {
        "read": Read,
        "update_many_": AtOnce,
        "update_": OneByOne,
        "eager": Eager,
    }
    peers = {name: make(xs) for name, make in kinds.items()}
    case = Case(request.param, peers, interleave(peers))
    report.add("many tensors: moments + log bins of each", case.row())
    return case


@pytest.mark.parametrize("peer", PEERS)
def test_update_many(
    peer: str, case: Case, machine: dict[str, str | int], benchmark: BenchmarkFixture
) -> None:
    benchmark.group = f"many tensors: {case.name}"
    replay(benchmark, case.seconds[peer])
    benchmark.extra_info.update(
        us_per_tensor=case.us_per_tensor(peer),
        ratio_to_read=case.ratio(peer, "read"),
        ratio_to_one_by_one=case.ratio(peer, "update_"),
        **machine,
    )
    case.peers[peer].check()
    if peer == "update_many_":
        assert case.ratio("update_many_", "eager") < 1
