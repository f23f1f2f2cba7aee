"""One call of update_, beside eager torch, torch.compile and a mere read of the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import eager
import pytest
import torch
from interleave import interleave, replay, replayed
from peers import InTorch, Read, Update, What
from pytest_benchmark.fixture import BenchmarkFixture
from report import Report, cell
from sample import BINS, CHANNEL_BINS, Layout, Sample

pytestmark = [
    replayed,
    # torch's own, as inductor is imported
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

LAYOUTS = {
    "NCHW 32x64x56x56": Layout((32, 64, 56, 56), axis=1),
    "channels_last 32x64x56x56": Layout((32, 56, 56, 64), axis=3, order=(0, 3, 1, 2)),
    "(N, L, C) 16x512x768": Layout((16, 512, 768), axis=2),
    "rows 4096x1024": Layout((4096, 1024), axis=0),
    "whole tensor 2^23": Layout((2**23,), axis=None),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SAMPLES = {
    f"{name} {dtype}": (layout, DTYPES[dtype])
    for name, layout in LAYOUTS.items()
    for dtype in DTYPES
}
WHATS = {
    "moments": What(),
    "moments + 64 linear bins a channel": What(channel_bins=CHANNEL_BINS),
    "moments + log bins of the tensor": What(bins=BINS),
}
PEERS = ("read", "hookstats", "eager", "compile")


@dataclass
class Case:
    """One sample, one question, and how long each peer took to answer it, round by round."""

    what: str
    sample: Sample
    peers: dict[str, Read]
    seconds: dict[str, list[float]]

    def ratio(self, peer: str, to: str) -> float:
        """Of the medians."""
        return median(self.seconds[peer]) / median(self.seconds[to])

    def ns_per_element(self, peer: str) -> float:
        return median(self.seconds[peer]) / self.sample.elements * 1e9

    def gb_per_s(self, peer: str) -> float:
        return self.sample.bytes / median(self.seconds[peer]) / 1e9

    def row(self) -> dict[str, str]:
        """Its line in the report."""
        row = {"ns/element": self.sample.name}
        row |= {peer: cell(self.seconds[peer], 1e9 / self.sample.elements) for peer in PEERS}
        row["hookstats/read"] = f"{self.ratio('hookstats', 'read'):.1f}"
        row["hookstats/compile"] = f"{self.ratio('hookstats', 'compile'):.2f}"
        return row


@pytest.fixture(scope="session", params=SAMPLES)  # wider than `case`, so that each is made once
def sample(request: pytest.FixtureRequest) -> Sample:
    return Sample(request.param, *SAMPLES[request.param])


@pytest.fixture(scope="module", params=WHATS)
def case(request: pytest.FixtureRequest, sample: Sample, report: Report) -> Case:
    """A case, measured: all its peers in turn."""
    what = WHATS[request.param]
    torch.compiler.reset()  # else dynamo gives up on so many shapes of one function
    peers = {
        "read": Read(sample),
        "hookstats": Update(sample, what),
        "eager": InTorch(sample, what, eager.statistics),
        "compile": InTorch(sample, what, torch.compile(eager.statistics, dynamic=False)),
    }
    case = Case(request.param, sample, peers, interleave(peers))
    report.add(case.what, case.row())
    return case


@pytest.mark.parametrize("peer", PEERS)
def test_update(
    peer: str, case: Case, machine: dict[str, str | int], benchmark: BenchmarkFixture
) -> None:
    benchmark.group = f"{case.what}: {case.sample.name}"
    replay(benchmark, case.seconds[peer])
    benchmark.extra_info.update(
        ns_per_element=case.ns_per_element(peer),
        gb_per_s=case.gb_per_s(peer),
        ratio_to_read=case.ratio(peer, "read"),
        ratio_to_compile=case.ratio(peer, "compile"),
        **machine,
    )
    case.peers[peer].check()
    if peer == "hookstats":
        assert case.ratio("hookstats", "compile") <= 1, "slower than torch.compile"
