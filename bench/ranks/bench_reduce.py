"""Merging a step of 200 sites x 1024 channels while training, on 2 and 4 ranks: how long the flush
threads take to merge whole tensors, beside a gather of the whole records."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from simulated import BATCH, record
from torch import distributed

from bench.measure import Measured, Table, measure
from bench.smoke import pick
from bench.turns import Rounds
from hookstats import Reduce
from hookstats.watching.reduce import Exchange

SITES = pick(200, 6)
CHANNELS = pick(1024, 8)
ROUNDS = pick(5, 1)
TABLE = Table(
    "merging a step over ranks while training",
    "ms/step",
    1e3,
    floor="gather",
    parts={"gather": "torch's all_gather of the numbers alone, which merges nothing"},
)


def times(rank: int, ranks: int, rendezvous: Path, answers: Any) -> None:
    """The seconds of both ways, in turn."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks
    )
    exchange = Exchange(Reduce(timeout=300))
    own = [record(rank, SITES, CHANNELS, step) for step in range(ROUNDS + 1)]
    seconds: dict[str, list[float]] = {"gather": [], "hookstats": []}
    for each in own:
        distributed.barrier()
        began = perf_counter()
        sent = torch.from_numpy(np.concatenate([each.moments, each.tallies.view(float)], 1))
        distributed.all_gather([torch.empty_like(sent) for _ in range(ranks)], sent)
        seconds["gather"].append(perf_counter() - began)
        distributed.barrier()
        began = perf_counter()
        merged = exchange(each)
        seconds["hookstats"].append(perf_counter() - began)
        assert merged is not None
        assert (merged.tallies[:, 0] == ranks * BATCH * CHANNELS).all()
        assert len(merged) == SITES
    if rank == 0:
        answers.put(seconds)
    distributed.barrier()


class Timed:
    """A way to merge, timed in other processes."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = iter(seconds)

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def run(self) -> float:
        return next(self._seconds)

    def check(self) -> None:
        """The ranks looked at what they had merged."""


@pytest.fixture(scope="module", params=pick((2, 4), (2,)))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    context = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    file = tmp_path_factory.mktemp("ranks") / "rendezvous"
    processes = [
        context.Process(target=times, args=(rank, request.param, file, answers))
        for rank in range(request.param)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(500)
        assert process.exitcode == 0
    seconds = answers.get()
    makers = {peer: lambda taken=taken: Timed(taken) for peer, taken in seconds.items()}
    title = f"{request.param} ranks, {SITES} sites x {CHANNELS} channels"
    return measure(TABLE, title, 1, makers, Rounds(0, ROUNDS, ROUNDS))


@pytest.mark.parametrize("peer", ["gather", "hookstats"])
def test_merge(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
