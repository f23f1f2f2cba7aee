"""watch(reduce=Reduce()) where training goes back: no step is merged with one of before."""

from __future__ import annotations

import pytest
import torch
from support.ranks import RANKS, Ranks
from torch import nn
from torch.optim import SGD

import hookstats as hs
from hookstats.records.record import StepRecord

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)
pytest.importorskip("pyarrow")

BEFORE, AFTER = 3, 5  # rows of a rank's batches


def go_back(rank: int) -> list[tuple[int, int]]:
    """The merged steps, each with its rows; rank 0 lacks what the others record last."""
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    merged: list[tuple[int, int]] = []

    def keep(record: StepRecord) -> None:
        merged.append((record.step, int(record["", "output"].count[0]) // 2))  # channels

    def train(steps: int, rows: int) -> None:
        for _ in range(steps):
            model(torch.ones(rows, 2)).sum().backward()
            optimizer.step()

    reduce = hs.Reduce(timeout=30)
    with hs.watch(model, optimizer, reduce=reduce, sinks=[keep], rules=()) as w:
        train(4, BEFORE)
        if rank == 0:
            w.pause()
        train(2, BEFORE)
        if rank == 0:
            w.resume()
        w.set_step(2)
        train(6, AFTER)
        assert w.coverage().failures == {}
    return merged


@pytest.mark.check
def test_a_step_is_merged_with_those_of_its_own_time(ranks: Ranks) -> None:
    before = [(step, BEFORE * RANKS) for step in range(4)]
    after = [(step, AFTER * RANKS) for step in range(2, 8)]
    assert ranks(go_back) == [before + after] * RANKS
