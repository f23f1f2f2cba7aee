"""One call of update_ by the distribution of the values, in cache, where counting shows most."""

from __future__ import annotations

from functools import partial

import pytest
from layouts import DTYPES
from peers import Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import DISTRIBUTIONS, Layout, Sample
from whats import LINEAR, LOG, MOMENTS, WHATS

from bench.measure import Measured, Table, measure
from bench.smoke import pick
from bench.turns import Rounds

LAYOUTS = pick(
    {
        "NCHW 8x64x32x32": Layout((8, 64, 32, 32), axis=1),
        "channels_last 8x64x32x32": Layout((8, 32, 32, 64), axis=3, order=(0, 3, 1, 2)),
        "(N, L, C) 4x128x1024": Layout((4, 128, 1024), axis=2),
        "rows 512x1024": Layout((512, 1024), axis=0),
        "whole tensor 2^19": Layout((2**19,), axis=None),
    },
    {"NCHW": Layout((2, 4, 8, 8), axis=1), "(N, L, C)": Layout((2, 16, 16), axis=2)},
)
TITLE = "distributions, in cache: "
TABLES = {
    what: Table(TITLE + what, "ns/element", 1e9, floor="Gaussian")
    for what in (MOMENTS, LINEAR, LOG)
}


@pytest.fixture(scope="module", params=[f"{name} {dtype}" for name in LAYOUTS for dtype in DTYPES])
def samples(request: pytest.FixtureRequest) -> dict[str, Sample]:
    """One of each distribution."""
    name, _, dtype = request.param.rpartition(" ")
    return {
        distribution: Sample(request.param, LAYOUTS[name], DTYPES[dtype], distribution).kept_warm()
        for distribution in DISTRIBUTIONS
    }


@pytest.fixture(scope="module", params=TABLES)
def case(request: pytest.FixtureRequest, samples: dict[str, Sample]) -> Measured:
    """A case, measured: all distributions in turn."""
    what, some = WHATS[request.param], samples["Gaussian"]
    makers = {name: partial(Update, sample, what) for name, sample in samples.items()}
    rounds = Rounds(0.05, most=30)
    return measure(TABLES[request.param], some.name, some.elements, makers, rounds)


@pytest.mark.parametrize("peer", DISTRIBUTIONS)
def test_distributions(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
