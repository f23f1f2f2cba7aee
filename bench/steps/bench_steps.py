"""Training steps with watch on, beside none, eager torch in hooks, and other monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest
from models import JOBS
from monitors import MONITORS
from pytest_benchmark.fixture import BenchmarkFixture
from spread import spread
from trainings import (
    CompiledHooks,
    EagerHooks,
    Reading,
    Training,
    Watched,
    WatchedMoments,
    WatchedMomentsSeldom,
    WatchedSampled,
    WatchedSeldom,
    WatchedStored,
)

from bench.measure import Absent, Measured, Table, measure
from bench.smoke import SMOKE, pick
from bench.turns import Peer, Rounds

pytestmark = [
    # torch's own, as inductor is imported
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

KINDS: dict[str, type[Training | Reading]] = {
    "no hooks": Training,
    "watch": Watched,
    "read": Reading,  # what `watch` has recorded
    "watch every=10": WatchedSeldom,
    "watch sample=auto": WatchedSampled,
    "watch out=": WatchedStored,
    "bins=None": WatchedMoments,
    "bins=None every=10": WatchedMomentsSeldom,
    "eager hooks": EagerHooks,
    "compiled hooks": CompiledHooks,
    **{name: kind for name, (kind, _) in MONITORS.items()},
}
WATCHED = tuple(name for name in KINDS if name.startswith(("watch", "bins")))
TABLE = Table(
    "training step: output, grad_output and param_grad of every leaf module, with log bins",
    "ms/step",
    1e3,
    floor="no hooks",
    read="read",
    parts={
        "read": "no training: a read of as many bytes as watch observes in a step, from memory",
        "watch sample=auto": "watch with histograms of 65,536 elements or so of a larger tensor",
        "watch out=": "watch with a run directory",
        "bins=None": "watch without the histograms",
        "bins=None every=10": "the same, one step of ten",
        **{name: what for name, (_, what) in MONITORS.items()},
    },
)
FEW_SHAPES = pick(("200-layer MLP", "GPT-2"), ("200-layer MLP",))
"""The models for whose shapes torch.compile takes seconds, not minutes."""

PERIOD = WatchedSeldom.every
LONG = Rounds(pick(12.0, 0.0), least=PERIOD + 1 if not SMOKE else 1, most=3 * PERIOD)
STORED = Rounds(pick(12.0, 0.0), least=3)  # of several steps each


def _too_many_shapes() -> Peer:
    raise Absent("would compile for every shape of every layer, which takes minutes")


@pytest.fixture(scope="module", params=JOBS)
def case(request: pytest.FixtureRequest) -> Iterator[Measured]:
    """The training runs of a job, measured in turn."""
    job = JOBS[request.param]
    together: dict[str, Training] = {}
    makers: dict[str, Callable[[], Peer]] = {
        name: partial(kind, job, together) for name, kind in KINDS.items()
    }
    if not request.param.startswith(FEW_SHAPES):
        makers["compiled hooks"] = _too_many_shapes
    long = dict.fromkeys(("no hooks", "read", *WATCHED), LONG) | {"watch out=": STORED}
    measured = measure(TABLE, request.param, job.steps, makers, Rounds(2.0, least=1), long)
    if job.steps % PERIOD and not SMOKE:
        seconds = measured.case.seconds
        for seldom in ("watch every=10", "bins=None every=10"):
            seconds[seldom] = spread(seconds[seldom], PERIOD)
    yield measured
    for training in measured.peers.values():
        cast(Training | Reading, training).detach()


@pytest.mark.parametrize("peer", KINDS)
def test_step(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
    if peer == "watch" and not SMOKE:
        assert case.case.ratio("watch", "eager hooks") < 1
