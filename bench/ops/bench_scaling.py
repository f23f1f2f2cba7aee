"""The cost of one call by the size of the tensor, 1 KB to 1 GB, and by its channels, 1 to 16384."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from parts import PARTS
from peers import InTorch, OneThread, Read, Repeated, Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import FINITE, Layout, Sample
from whats import LINEAR, LOG, MOMENTS, WHATS

from bench import eager
from bench.measure import Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.smoke import pick
from bench.turns import Peer, Rounds

pytestmark = [
    replayed,
    # torch's own, as inductor is imported; torch.ao's, of itself
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
]

SIZES = pick(tuple(2**e for e in range(8, 30, 2)), (2**8,))
"""Elements in float32: 1 KB to 1 GB."""

BLOCK = 2**16
"""Elements after which the largest tensors repeat."""

REPEATED = pick(2**16, 2**8)
"""Elements that are to be read at a time: smaller tensors are, again and again."""

PEERS_UP_TO = 2**24
"""Elements that peers are timed on: beyond, the copies of eager torch fill the memory."""

CHANNELS = pick((1, 4, 16, 64, 256, 1024, 4096, 16384), (4,))
ELEMENTS = pick(2**22, 2**10)
HIST = {LINEAR: "+ 64 bins per channel", LOG: "+ log bins"}
ONE = "1 thread"
PARTS_BY_SIZE = ("ao MinMax", "histc", "fast-hist", "boost-hist")

BY_SIZE = Table(
    "scaling with the size: moments of a whole tensor",
    "ns/element",
    1e9,
    floor="read",
    variants=(ONE, HIST[LOG]),
    varied="threads, and with a histogram",
    parts={name: PARTS[name][1] for name in PARTS_BY_SIZE},
)
BY_CHANNELS = {
    name: Table(
        f"scaling with the channels: {name}, {ELEMENTS * 4 >> 20} MB",
        "ns/element",
        1e9,
        floor="read",
        variants=tuple(HIST.values()),
        varied="with a histogram",
    )
    for name in ("rows", "channels last")
}


UNITS = ((30, "GB"), (20, "MB"), (10, "KB"))


class RepeatingSample(Sample):
    """A large tensor whose statistics are quick to know: BLOCK again and again."""

    def __init__(self, name: str, elements: int) -> None:
        block = min(elements, BLOCK)
        super().__init__(name, Layout((block,), axis=None), torch.float32, FINITE)
        times = elements // block
        once = self.expected
        self.memory = self.memory.repeat(times)
        self.x, self.rows = self.memory, self.memory.view(1, -1)
        self.words = self.memory.view(torch.int64)
        same = ("mean", "var", "min", "max")
        self.expected = {k: v if k in same else v * times for k, v in once.items()}


def compiled(sample: Sample) -> InTorch:
    torch.compiler.reset()  # else dynamo gives up on so many shapes of one function
    return InTorch(sample, WHATS[MOMENTS], torch.compile(eager.statistics, dynamic=False))


def repeat(make: Callable[[], Read], times: int) -> Peer:
    return Repeated(make(), times)


@pytest.fixture(scope="module", params=SIZES)
def by_size(request: pytest.FixtureRequest, results: Results) -> Measured:
    size = request.param
    name = next(f"{size * 4 >> e} {unit}" for e, unit in UNITS if size * 4 >> e)
    sample = RepeatingSample(name, size).kept_warm()
    makers: dict[str, Callable[[], Read]] = {
        "read": partial(Read, sample),
        "hookstats": partial(Update, sample, WHATS[MOMENTS]),
        ONE: partial(OneThread, sample, WHATS[MOMENTS]),
        HIST[LOG]: partial(Update, sample, WHATS[LOG]),
    }
    if size <= PEERS_UP_TO:
        makers["eager"] = partial(InTorch, sample, WHATS[MOMENTS], eager.statistics)
        makers["compile"] = partial(compiled, sample)
        for part in PARTS_BY_SIZE:
            makers[part] = partial(PARTS[part][0], sample)
    times = max(1, REPEATED // size)
    repeated = {peer: partial(repeat, make, times) for peer, make in makers.items()}
    facts = {"_bytes": size * 4}
    measured = measure(BY_SIZE, name, size * times, repeated, Rounds(0.1), facts=facts)
    results.cases.append(measured.case)
    return measured


@pytest.fixture(scope="module", params=list(product(BY_CHANNELS, CHANNELS)), ids=str)
def by_channels(request: pytest.FixtureRequest, results: Results) -> Measured:
    name, channels = request.param
    layout = {
        "rows": Layout((channels, ELEMENTS // channels), axis=0),
        "channels last": Layout((ELEMENTS // channels, channels), axis=1),
    }[name]
    sample = Sample(f"{channels} channels", layout, torch.float32)
    makers: dict[str, Callable[[], Peer]] = {
        "read": partial(Read, sample),
        "hookstats": partial(Update, sample, WHATS[MOMENTS]),
        **{hist: partial(Update, sample, WHATS[what]) for what, hist in HIST.items()},
        "compile": partial(compiled, sample),
    }
    facts = {"_channels": channels}
    table = BY_CHANNELS[name]
    measured = measure(table, sample.name, ELEMENTS, makers, Rounds(0.1, most=20), facts=facts)
    results.cases.append(measured.case)
    return measured


@pytest.mark.parametrize(
    "peer", ["read", "hookstats", ONE, HIST[LOG], "eager", "compile", *PARTS_BY_SIZE]
)
def test_size(peer: str, by_size: Measured, benchmark: BenchmarkFixture) -> None:
    if peer not in by_size.peers and peer not in by_size.case.absent:
        pytest.skip(f"{peer}: not timed on tensors this large")
    by_size.verify(peer, benchmark)


@pytest.mark.parametrize("peer", ["read", "hookstats", *HIST.values(), "compile"])
def test_channels(peer: str, by_channels: Measured, benchmark: BenchmarkFixture) -> None:
    by_channels.verify(peer, benchmark)
