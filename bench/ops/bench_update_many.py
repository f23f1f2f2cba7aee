"""Many parameter gradients: one call of update_many_, beside update_ one by one and eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from bench.accuracy import FLOAT32, HOOKSTATS, as_statistics, check
from bench.eager import Statistics, statistics
from bench.measure import Measured, Table, measure
from bench.smoke import SMOKE, pick
from bench.states import BINS, empty_lists
from hookstats import ChannelStats, channel_stats
from hookstats.kernels import ops

BLOCK = ((768, 256), (768, 1), (256, 256), (256, 1), (1024, 256), (1024, 1), (256, 1024), (256, 1))
"""The parameters of a transformer's block 256 wide, but for its norms."""

JOBS: dict[str, Sequence[tuple[int, int]]] = pick(
    {
        "400 of 64x1": [(64, 1)] * 400,
        "400 of 16x16": [(16, 16)] * 400,
        "400 of 64x64": [(64, 64)] * 400,
        "12 transformer blocks": BLOCK * 12,
    },
    {"4 of 16x16": [(16, 16)] * 4},
)


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
        self._lists = empty_lists(self.xs)
        super().prepare()

    def run(self) -> None:
        for x, moments, tallies, counts in zip(self.xs, *self._lists, strict=True):
            ops.update_(x, 0, moments, tallies, counts, self._bins)

    def check(self) -> None:
        for x, moments, tallies, counts in zip(self.xs, *self._lists, strict=True):
            found = ChannelStats(moments, tallies, counts=counts, bins=BINS)
            check(as_statistics(found), expected(x), HOOKSTATS)


class AtOnce(OneByOne):
    """update_many_ of all."""

    def run(self) -> None:
        ops.update_many_(self.xs, 0, *self._lists, self._bins, [], None)


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


PEERS: dict[str, Callable[[Sequence[Tensor]], Read]] = {
    "read": Read,
    "update_many_": AtOnce,
    "update_": OneByOne,
    "eager": Eager,
}
TABLE = Table(
    "many tensors: moments + log bins of each",
    "us/tensor",
    1e6,
    floor="read",
)


@pytest.fixture(scope="module", params=JOBS)
def case(request: pytest.FixtureRequest) -> Measured:
    """A case, measured: all its peers in turn."""
    xs = [torch.randn(shape) for shape in JOBS[request.param]]
    makers = {name: partial(make, xs) for name, make in PEERS.items()}
    return measure(TABLE, request.param, len(xs), makers)


@pytest.mark.parametrize("peer", PEERS)
def test_update_many(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
    if peer == "update_many_" and not SMOKE:
        assert case.case.ratio("update_many_", "eager") < 1
