"""What a call costs on tensors so small that little else counts."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from parts import PARTS
from peers import InTorch, Read, Repeated, Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import Layout, Sample
from whats import LOG, MOMENTS, WHATS

from bench import eager
from bench.measure import Absent, Measured, Table, measure
from bench.smoke import SMOKE, pick
from bench.turns import Peer, Rounds
from hookstats import LogBins, channel_stats

pytestmark = [
    # torch's own, as inductor is imported; torch.ao's, of itself
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
]

CALLS = pick(300, 2)
SIZES = pick((8, 64, 512, 1024, 4096), (8,))
"""Elements in float32: up to 16 KB, which no threads are woken for."""

SMALL_PARTS = ("ao MinMax", "histc")
HIST = "with log bins"
PEERS = ("read", "hookstats", HIST, "eager", "compile", *SMALL_PARTS)
TITLE = "calls on small tensors"
TABLE = Table(
    f"{TITLE}: moments of a whole tensor, in cache",
    "us/call",
    1e6,
    floor="read",
    parts={name: PARTS[name][1] for name in SMALL_PARTS},
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

    def repeated_part(part: str) -> Peer:
        return Repeated(PARTS[part][0](sample), CALLS)

    makers: dict[str, Callable[[], Peer]] = {
        "read": lambda: Repeated(Read(sample), CALLS),
        "hookstats": lambda: Repeated(Update(sample, WHATS[MOMENTS]), CALLS),
        HIST: lambda: Repeated(Update(sample, WHATS[LOG]), CALLS),
        "eager": lambda: Repeated(InTorch(sample, WHATS[MOMENTS], eager.statistics), CALLS),
        "compile": compiled,
    }
    for part in SMALL_PARTS:
        makers[part] = partial(repeated_part, part)
    facts = {"_bytes": size * 4}
    return measure(TABLE, name, CALLS, makers, Rounds(0.2), facts=facts)


@pytest.mark.parametrize("peer", PEERS)
def test_call(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _report_woken(pipe: Connection, threads: int) -> None:
    """Send how many threads the first calls for 16 KB start here, and how many those for 16 MB."""
    torch.set_num_threads(threads)
    found = []
    for elements in (1 << 12, 1 << 22):
        x = torch.empty(elements)  # unlike torch.zeros, it starts none itself
        before = _threads()
        for bins in (None, LogBins()):
            channel_stats(x, None, bins=bins)
        found.append(_threads() - before)
    pipe.send(found)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_threads() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_report_woken, args=(theirs, 2))
    process.start()
    small, large = pipe.recv()
    process.join()
    assert small == 0
    assert large == 1, "what is counted are not the threads of the kernels"
