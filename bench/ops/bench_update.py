"""One call of update_, beside torch, libraries that compute a part, and a read of the bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import pytest
from layouts import COMPILED, SAMPLES
from peers import HISTC, Histc, InTorch, OneThread, Read, Update
from pytest_benchmark.fixture import BenchmarkFixture
from sample import Sample
from whats import MOMENTS, WHATS

from bench import eager
from bench.measure import Absent, Measured, Table, measure
from bench.smoke import SMOKE
from bench.turns import Peer, Rounds

# torch's own, as inductor is imported
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")

TABLES = {
    what: Table(what, "ns/element", 1e9, floor="read", parts={"histc": HISTC}) for what in WHATS
}


def peers_of(name: str, what: str) -> tuple[str, ...]:
    """Who takes part in a case."""
    peers = ["read", "hookstats", "1 thread"]
    if name in COMPILED and WHATS[what].sample == 1:
        peers += ["eager", "compile"]
    if WHATS[what].bins is not None:
        peers += ["histc"]
    return tuple(peers)


@lru_cache(maxsize=1)
def sample_of(name: str) -> Sample:
    return Sample(name, *SAMPLES[name])


@lru_cache(maxsize=1)
def case_of(name: str, asked: str) -> Measured:
    """A case, measured: all its peers in turn."""
    sample, what = sample_of(name), WHATS[asked]

    def compiled() -> Peer:
        if SMOKE and asked != MOMENTS:
            raise Absent("takes long to compile")
        return InTorch(sample, what, eager.compiled())

    makers: dict[str, Callable[[], Peer]] = {
        "read": partial(Read, sample),
        "hookstats": partial(Update, sample, what),
        "1 thread": partial(OneThread, sample, what),
        "eager": partial(InTorch, sample, what, eager.statistics),
        "compile": compiled,
    }
    makers["histc"] = partial(Histc, sample)
    chosen = {peer: makers[peer] for peer in peers_of(name, asked)}
    return measure(TABLES[asked], name, sample.elements, chosen, Rounds(0.25, most=25))


@pytest.mark.parametrize(
    ("name", "asked", "peer"),
    [(name, what, peer) for name in SAMPLES for what in WHATS for peer in peers_of(name, what)],
)
def test_update(name: str, asked: str, peer: str, benchmark: BenchmarkFixture) -> None:
    case = case_of(name, asked)
    case.verify(peer, benchmark)
    if peer == "hookstats" and "compile" in case.peers and not SMOKE:
        assert case.case.ratio("hookstats", "compile") <= 1, "slower than torch.compile"
