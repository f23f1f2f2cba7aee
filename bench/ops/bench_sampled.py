"""One call of update_ whose histogram counts a sample, beside moments alone and all values."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from layouts import LAYOUTS
from parts import FastHistogram
from peers import InTorch, Read, Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import Layout, Sample
from torch import Tensor
from whats import LOG, MOMENTS, WHATS

from bench import eager
from bench.accuracy import FLOAT32, HOOKSTATS, check
from bench.measure import Absent, Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.smoke import pick
from bench.states import State
from bench.turns import Rounds, cpu
from hookstats import LinearBins, LogBins
from hookstats.kernels import ops
from hookstats.stats import reference

pytestmark = [
    replayed,
    # torch's own, as inductor is imported
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

EVERY = 8
SMALL_MAPS = pick(
    {
        "NCHW 32x512x7x7": Layout((32, 512, 7, 7), axis=1),
        "channels_last 32x512x7x7": Layout((32, 7, 7, 512), axis=3, order=(0, 3, 1, 2)),
    },
    {},
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SAMPLES = {
    f"{name} {dtype}": (layout, DTYPES[dtype])
    for name, layout in (LAYOUTS | SMALL_MAPS).items()
    for dtype in DTYPES
}
COMPILED = pick(tuple(name for name in SAMPLES if name.endswith("fp32")), ("NCHW fp32",))
"""Those that torch.compile is timed on, as it takes long to compile."""
SAMPLED = f"sample={EVERY}"
TABLE = Table(
    "sampled histograms, CPU time of one thread: moments + log bins of the tensor",
    "ns/element",
    1e9,
    floor="moments",
    ours=(SAMPLED, "all values"),
    parts={
        "read": "a sum over the same bytes",
        "fast-hist": f"fast-histogram: 64 bins of each {EVERY}th value, and nothing else",
    },
)
PEERS = ("read", "moments", SAMPLED, "all values", "compile", "fast-hist")


class Sampled(Update):
    """update_ with a log histogram of a sample."""

    sampling = torch.tensor([0, EVERY, 1])
    """The step, then `sample` of the tensor's histogram and of the channels'."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample, WHATS[LOG])

    def run(self) -> float | None:
        sample, arguments = self.sample, self._state.arguments
        ops.update_(sample.x, sample.channel_dim, *arguments, self.sampling)
        return None

    def check(self) -> None:
        """Against the reference, which chooses the same elements."""
        made = State(self.sample.channels, WHATS[LOG])
        reference.update_(self.sample.x, self.sample.channel_dim, *made.arguments, self.sampling)
        counts = made.statistics()["counts"]
        check(self.found(), {**self.sample.expected, "counts": counts}, HOOKSTATS)


def _statistics(
    x: Tensor, axis: int, channel_bins: LinearBins | None = None, bins: LogBins | None = None
) -> eager.Statistics:
    """As `eager.statistics`, with every eighth value counted."""
    some = x.reshape(1, -1)[:, ::EVERY]
    return {**eager.statistics(x, axis), "counts": eager.statistics(some, 0, bins=bins)["counts"]}


class Compiled(InTorch):
    """What torch.compile makes of moments, and log bins of every eighth value."""

    def __init__(self, sample: Sample) -> None:
        if sample.name not in COMPILED:
            raise Absent("would take long to compile")
        torch.compiler.reset()  # else dynamo gives up on so many shapes of one function
        super().__init__(sample, WHATS[LOG], torch.compile(_statistics, dynamic=False))

    def check(self) -> None:
        """The histogram is another sample's: its shares are near those of all values."""
        counts, whole = self._found["counts"], self.sample.expected["counts"]
        assert int(counts.sum()) == int(self.sample.rows.reshape(-1)[::EVERY].isfinite().sum())
        check(self._found, {**self.sample.expected, "counts": counts}, FLOAT32)
        gap = (counts.cumsum(0) / counts.sum() - whole.cumsum(0) / whole.sum()).abs().max()
        assert gap < 4 / counts.sum().sqrt()


class FastSampled(FastHistogram):
    """fast-histogram, of every eighth value."""

    def values(self) -> np.ndarray:
        return self.x.view(-1)[::EVERY].float().numpy()

    def check(self) -> None:
        values = self.values()
        lo, hi = -4.0, 4.0
        assert int(self._counts.sum()) == int(((values >= lo) & (values < hi)).sum())


@pytest.fixture(scope="module", params=SAMPLES)
def case(request: pytest.FixtureRequest, results: Results) -> Measured:
    """A case, measured: all its peers in turn, on one thread."""
    sample = Sample(request.param, *SAMPLES[request.param])
    makers = {
        "read": partial(Read, sample),
        "moments": partial(Update, sample, WHATS[MOMENTS]),
        SAMPLED: partial(Sampled, sample),
        "all values": partial(Update, sample, WHATS[LOG]),
        "compile": partial(Compiled, sample),
        "fast-hist": partial(FastSampled, sample),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured = measure(
        *(TABLE, sample.name, sample.elements, makers),
        *(Rounds(0.5, least=9, most=25), {}, {}, cpu),
    )
    torch.set_num_threads(threads)
    results.cases.append(measured.case)
    return measured


@pytest.mark.parametrize("peer", PEERS)
def test_call(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
