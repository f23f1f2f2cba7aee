"""One call of update_, beside torch, libraries that compute a part, and a read of the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import pytest
import torch
from layouts import COMPILED, SAMPLES
from levels import Elsewhere, Levels
from parts import PARTS, parts_of
from peers import InTorch, OneThread, Read, Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import Sample
from whats import WHATS

from bench import eager
from bench.measure import Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.smoke import SMOKE
from bench.turns import Peer, Rounds

pytestmark = [
    replayed,
    # torch's own, as inductor is imported
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    # torch.ao's, of themselves
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
]

VARIANTS = {"AVX2": "AVX2", "baseline": "DEFAULT"}
"""Other instruction sets, and how they are called in the table."""

TABLES = {
    what: Table(
        what,
        "ns/element",
        1e9,
        floor="read",
        variants=(*VARIANTS, "1 thread"),
        parts={name: PARTS[name][1] for name in parts_of(WHATS[what])},
    )
    for what in WHATS
}


def peers_of(name: str, what: str) -> tuple[str, ...]:
    """Who takes part in a case."""
    peers = ["read", "hookstats", "1 thread"]
    if name.endswith("fp32"):
        peers += VARIANTS
    if name in COMPILED:
        peers += ["eager", "compile"]
    if not name.endswith("fp16"):  # libraries widen it like bf16
        peers += parts_of(WHATS[what])
    return tuple(peers)


@pytest.fixture(scope="session")
def levels() -> Iterator[Levels]:
    levels = Levels()
    yield levels
    levels.close()


@lru_cache(maxsize=1)
def sample_of(name: str) -> Sample:
    return Sample(name, *SAMPLES[name])


@lru_cache(maxsize=1)
def case_of(name: str, asked: str, levels: Levels, results: Results) -> Measured:
    """A case, measured: all its peers in turn."""
    sample, what = sample_of(name), WHATS[asked]

    def compiled() -> Peer:
        torch.compiler.reset()  # else dynamo gives up on so many shapes of one function
        return InTorch(sample, what, torch.compile(eager.statistics, dynamic=False))

    def elsewhere(capability: str) -> Peer:
        return Elsewhere(sample, (name, *SAMPLES[name]), asked, levels[capability])

    makers: dict[str, Callable[[], Peer]] = {
        "read": partial(Read, sample),
        "hookstats": partial(Update, sample, what),
        "1 thread": partial(OneThread, sample, what),
        "eager": partial(InTorch, sample, what, eager.statistics),
        "compile": compiled,
    }
    makers |= {variant: partial(elsewhere, VARIANTS[variant]) for variant in VARIANTS}
    makers |= {part: partial(PARTS[part][0], sample) for part in parts_of(what)}
    chosen = {peer: makers[peer] for peer in peers_of(name, asked)}
    measured = measure(TABLES[asked], name, sample.elements, chosen, Rounds(0.25, most=25))
    results.cases.append(measured.case)
    return measured


@pytest.mark.parametrize(
    ("name", "asked", "peer"),
    [(name, what, peer) for name in SAMPLES for what in WHATS for peer in peers_of(name, what)],
)
def test_update(
    name: str,
    asked: str,
    peer: str,
    levels: Levels,
    results: Results,
    benchmark: BenchmarkFixture,
) -> None:
    case = case_of(name, asked, levels, results)
    case.verify(peer, benchmark)
    if peer == "hookstats" and "compile" in case.peers and not SMOKE:
        assert case.case.ratio("hookstats", "compile") <= 1, "slower than torch.compile"
