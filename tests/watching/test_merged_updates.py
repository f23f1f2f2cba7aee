"""Updates and states of optimizers, merged over ranks, are those of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.ranks import Ranks
from torch.optim import SGD

import hookstats as hs

pytest.importorskip("pyarrow")
merged_runs: Any = pytest.importorskip("test_merged_runs")

pytestmark = pytest.mark.check
KINDS = ("update", "optimizer_state", "grad_input")


def train(rank: int, name: str | None, out: Path) -> None:
    """One step of a row on this rank, or of one process, with momentum and other kinds."""
    before = merged_runs.KINDS, merged_runs.SGD
    merged_runs.KINDS, merged_runs.SGD = KINDS, partial(SGD, momentum=0.9)
    try:
        if name is None:
            merged_runs.train(merged_runs.Model(), merged_runs.samples(), out)
        else:
            row = merged_runs.ROWS[name]
            row.train(rank, out, *row.arguments, **row.options)
    finally:
        merged_runs.KINDS, merged_runs.SGD = before


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        "DDP",
        "FSDP1",
        "FSDP1, hybrid",
        "FSDP2",
        "HSDP",
        "tensor parallelism",
        "FSDP2 and tensor parallelism",
    ],
)
def test_they_are_those_of_one_process(ranks: Ranks, tmp_path: Path, name: str) -> None:
    ranks(train, name, tmp_path / "ranks")
    train(0, None, tmp_path / "one")
    row = merged_runs.ROWS[name]
    if "tensor" in name:  # of which each rank has a summand
        row = row._replace(absent=frozenset({"grad_input up"}))
    merged = hs.open_run(tmp_path / "ranks", grad_scale="header")[0]
    one = hs.open_run(tmp_path / "one")[0]
    assert ("up.weight", "optimizer_state.momentum_buffer") in one
    merged_runs.assert_whole(merged, one, row)
