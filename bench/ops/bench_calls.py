"""What a call costs on tensors so small that little else counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from peers import HISTC, Histc, InTorch, Read, Repeated, Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import Layout, Sample
from whats import LOG, MOMENTS, WHATS

from bench import eager
from bench.measure import Absent, Measured, Table, measure
from bench.smoke import SMOKE, pick
from bench.turns import Peer, Rounds

# torch's own, as inductor is imported
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")

CALLS = pick(300, 2)
SIZES = pick((8, 64, 512, 1024, 4096), (8,))
"""Elements in float32: up to 16 KB, which no threads are woken for."""

HIST = "with log bins"
PEERS = ("read", "hookstats", HIST, "eager", "compile", "histc")
TABLE = Table(
    "calls on small tensors: moments of a whole tensor, in cache",
    "us/call",
    1e6,
    floor="read",
    parts={"histc": HISTC},
)


@pytest.fixture(scope="module", params=SIZES)
def case(request: pytest.FixtureRequest) -> Measured:
    size = request.param
    name = f"{size} values, {size * 4} bytes"
    sample = Sample(name, Layout((size,), axis=None), torch.float32).kept_warm()

    def compiled() -> Peer:
        if SMOKE:
            raise Absent("takes long to compile")
        torch.compiler.reset()
        statistics = torch.compile(eager.statistics, dynamic=False)
        return Repeated(InTorch(sample, WHATS[MOMENTS], statistics), CALLS)

    makers: dict[str, Callable[[], Peer]] = {
        "read": lambda: Repeated(Read(sample), CALLS),
        "hookstats": lambda: Repeated(Update(sample, WHATS[MOMENTS]), CALLS),
        HIST: lambda: Repeated(Update(sample, WHATS[LOG]), CALLS),
        "eager": lambda: Repeated(InTorch(sample, WHATS[MOMENTS], eager.statistics), CALLS),
        "compile": compiled,
        "histc": lambda: Repeated(Histc(sample), CALLS),
    }
    facts = {"_bytes": size * 4}
    return measure(TABLE, name, CALLS, makers, Rounds(0.2), facts=facts)


@pytest.mark.parametrize("peer", PEERS)
def test_call(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
