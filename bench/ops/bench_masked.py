"""One call of update_ with a mask, beside none, and beside a copy of the rows that it keeps."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from layouts import DTYPES
from peers import InTorch, Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import FINITE, Layout, Sample
from torch import Tensor
from whats import LOG, MOMENTS, WHATS

from bench import eager
from bench.accuracy import FLOAT32, HOOKSTATS, Tolerance, check
from bench.measure import Absent, Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.smoke import pick
from bench.states import State, What
from bench.turns import Rounds, cpu
from hookstats.kernels import ops
from hookstats.stats import reference

pytestmark = [
    replayed,
    # torch's own, as inductor is imported
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

KEPT = 0.6
LAYOUTS = pick(
    {
        "run 16x512x768": Layout((16, 512, 768), axis=None),
        "columns 16x512x768": Layout((16, 512, 768), axis=2),
        "maps 32x64x56x56": Layout((32, 64, 56, 56), axis=1),
    },
    {"run": Layout((4, 8, 16), axis=None), "maps": Layout((5, 4, 8, 8), axis=1)},
)
NAMES = [f"{layout} {dtype}" for layout in LAYOUTS for dtype in ("fp32", "bf16")]
COMPILED_OF = pick(tuple(name for name in NAMES if name.endswith("fp32")), ("run fp32",))
"""Those that torch.compile is timed on, as it takes long to compile."""
ALL, SOME = "all kept", f"{KEPT:.0%} kept"
COPIED, COMPILED = "copy", "copy, compile"
TITLE = "masks, CPU time of one thread: "
TABLES = {
    what: Table(
        TITLE + what,
        "ns/element",
        1e9,
        floor="no mask",
        ours=(SOME, ALL),
        parts={COPIED: f"x[mask], {SOME}, then update_"},
    )
    for what in (MOMENTS, LOG)
}
PEERS = ("no mask", SOME, ALL, COPIED, COMPILED)


def mask_of(layout: Layout, kept: float) -> Tensor:
    """bool [batch, time], or [pictures] of maps: where sequences of many lengths have no padding,
    in so many of all places."""
    batch, time = layout.shape[:2] if layout.axis != 1 else (layout.shape[0], 1)
    if time == 1:
        return torch.arange(batch) < round(kept * batch)
    lengths = torch.linspace(2 * kept - 1, 1, batch) if kept < 1 else torch.ones(batch)
    return torch.arange(time) < (lengths * time).round()[:, None]


class Masked(Update):
    """update_ with a mask."""

    def __init__(self, sample: Sample, what: What, mask: Tensor) -> None:
        super().__init__(sample, what)
        self._mask = mask

    def run(self) -> float | None:
        sample, arguments = self.sample, self._state.arguments
        ops.update_(sample.x, sample.channel_dim, *arguments, None, self._mask)
        return None

    def check(self) -> None:
        """Against the reference, with the mask."""
        check_kept(self.found(), self.sample, self._mask, self._what, HOOKSTATS)


class Copied(Masked):
    """update_ of a copy of the rows that are kept."""

    def run(self) -> float | None:
        rows, axis = kept_of(self.sample, self._mask)
        ops.update_(rows, axis, *self._state.arguments)
        return None


class Compiled(InTorch):
    """What torch.compile makes of the statistics, of a copy of the rows that are kept."""

    def __init__(self, sample: Sample, what: What, mask: Tensor) -> None:
        if sample.name not in COMPILED_OF:
            raise Absent("would take long to compile")
        torch.compiler.reset()  # else dynamo gives up on so many shapes of one function
        super().__init__(sample, what, torch.compile(eager.statistics, dynamic=False))
        self._mask = mask

    def run(self) -> float | None:
        rows, axis = kept_of(self.sample, self._mask)
        self._found = self._statistics(rows, axis, None, self._what.bins)
        return None

    def check(self) -> None:
        check_kept(self._found, self.sample, self._mask, self._what, FLOAT32)


def kept_of(sample: Sample, mask: Tensor) -> tuple[Tensor, int]:
    """A copy of the rows that are kept, and its dimension of channels."""
    rows = sample.memory[mask]
    if sample.channel_dim is None:
        return rows.view(1, -1), 0
    return rows, sample.channel_dim + 1 - mask.dim()


def check_kept(
    found: eager.Statistics, sample: Sample, mask: Tensor, what: What, tolerance: Tolerance
) -> None:
    """Assert that statistics are those of the rows that are kept."""
    made = State(sample.channels, what)
    reference.update_(sample.x, sample.channel_dim, *made.arguments, None, mask)
    check(found, made.statistics(), tolerance)


@pytest.fixture(scope="module", params=NAMES)
def sample(request: pytest.FixtureRequest) -> Sample:
    layout, _, dtype = request.param.rpartition(" ")
    return Sample(request.param, LAYOUTS[layout], DTYPES[dtype], FINITE)


@pytest.fixture(scope="module", params=TABLES)
def case(request: pytest.FixtureRequest, sample: Sample, results: Results) -> Measured:
    """A case, measured: all its peers in turn, on one thread."""
    layout, what = LAYOUTS[sample.name.rpartition(" ")[0]], WHATS[request.param]
    some, every = mask_of(layout, KEPT), mask_of(layout, 1.0)
    makers = {
        "no mask": partial(Update, sample, what),
        SOME: partial(Masked, sample, what, some),
        ALL: partial(Masked, sample, what, every),
        COPIED: partial(Copied, sample, what, some),
        COMPILED: partial(Compiled, sample, what, some),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured = measure(
        *(TABLES[request.param], sample.name, sample.elements, makers),
        *(Rounds(0.5, least=9, most=25), {}, {}, cpu),
    )
    torch.set_num_threads(threads)
    results.cases.append(measured.case)
    return measured


@pytest.mark.parametrize("peer", PEERS)
def test_call(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
