"""One call of update_ with a mask, beside none, and beside a copy of the kept rows."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from layouts import DTYPES
from peers import Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import Layout, Sample
from torch import Tensor
from whats import LOG, MOMENTS, WHATS

from bench.accuracy import HOOKSTATS, check
from bench.measure import Measured, Table, measure
from bench.smoke import pick
from bench.states import State, What
from bench.turns import Rounds, cpu
from hookstats.kernels import ops
from hookstats.stats import reference

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
ALL, SOME = "all kept", f"{KEPT:.0%} kept"
COPIED = "copy"
TITLE = "masks, CPU time of one thread: "
TABLES = {
    what: Table(
        TITLE + what,
        "ns/element",
        1e9,
        floor="no mask",
        parts={COPIED: f"x[mask], {SOME}, then update_"},
    )
    for what in (MOMENTS, LOG)
}
PEERS = ("no mask", SOME, ALL, COPIED)


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
        sample, made = self.sample, State(self.sample.channels, self._what)
        reference.update_(sample.x, sample.channel_dim, *made.arguments, None, self._mask)
        check(self.found(), made.statistics(), HOOKSTATS)


class Copied(Masked):
    """update_ of a copy of the rows that are kept."""

    def run(self) -> float | None:
        sample, rows = self.sample, self.sample.memory[self._mask]
        dim = sample.channel_dim
        if dim is not None:
            dim += 1 - self._mask.dim()
        ops.update_(rows, dim, *self._state.arguments)
        return None


@pytest.fixture(scope="module", params=NAMES)
def sample(request: pytest.FixtureRequest) -> Sample:
    layout, _, dtype = request.param.rpartition(" ")
    return Sample(request.param, LAYOUTS[layout], DTYPES[dtype], finite=True)


@pytest.fixture(scope="module", params=TABLES)
def case(request: pytest.FixtureRequest, sample: Sample) -> Measured:
    """A case, measured: all its peers in turn, on one thread."""
    layout, what = LAYOUTS[sample.name.rpartition(" ")[0]], WHATS[request.param]
    some, every = mask_of(layout, KEPT), mask_of(layout, 1.0)
    makers = {
        "no mask": partial(Update, sample, what),
        SOME: partial(Masked, sample, what, some),
        ALL: partial(Masked, sample, what, every),
        COPIED: partial(Copied, sample, what, some),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured = measure(
        TABLES[request.param],
        sample.name,
        sample.elements,
        makers,
        Rounds(0.5, least=9, most=25),
        clock=cpu,
    )
    torch.set_num_threads(threads)
    return measured


@pytest.mark.parametrize("peer", PEERS)
def test_call(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
