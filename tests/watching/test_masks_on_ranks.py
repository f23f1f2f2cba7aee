"""Masks where training is spread over ranks: each has its own, and all are in what is merged."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from support.expected import assert_stats
from support.ranks import RANKS, Ranks
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import hookstats as hs
from hookstats.records.reasons import MASK_UNFIT

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)

pytestmark = pytest.mark.check

BATCH, TIME, WIDTH = 3, 5, 4


class Model(nn.Module):
    """Two layers, the second one in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 2)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        hidden = self.first(x).tanh()
        self.seen.append(hidden.detach())
        out: Tensor = checkpoint(self.second, hidden, use_reentrant=False)
        self.seen.append(out.detach())
        if x.isnan().any():
            raise ArithmeticError
        return out.mean(1)


def lengths(rank: int, call: int) -> Tensor:
    """Of another mask for each call; none of rank 1's first one is kept."""
    return torch.tensor([[5], [2 + call], [1]]) * (rank == 0 or call > 0)


def mask_of(rank: int, call: int) -> Tensor:
    return torch.arange(TIME) < lengths(rank, call)


def batch(rank: int, call: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * call + rank)
    return torch.randn(BATCH, TIME, WIDTH, generator=generator)


def train_step(model: nn.Module, inner: Model, optimizer: SGD, rank: int) -> list[Tensor]:
    """Two micro-batches and one that fails; what was kept of the second layer's outputs."""
    parallel: Any = model
    inner.seen.clear()
    with parallel.no_sync():
        model(batch(rank, 0), padding=mask_of(rank, 0)).square().sum().backward()
        broken = torch.full((BATCH, TIME, WIDTH), float("nan"))
        with suppress(ArithmeticError):
            model(broken, torch.zeros(BATCH, TIME, dtype=torch.bool))
    model(batch(rank, 1), mask_of(rank, 1)).square().sum().backward()
    optimizer.step()
    first, _, last = inner.seen[1::2]
    return [first[mask_of(rank, 0)], last[mask_of(rank, 1)]]


def masked_ddp(rank: int, merge: bool) -> None:
    inner = Model()
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = SGD(model.parameters(), lr=0.1)
    reduce = hs.Reduce() if merge else None
    with hs.watch(model, optimizer, mask="padding", reduce=reduce, rules=()) as w:
        for _ in range(2):
            kept = train_step(model, inner, optimizer, rank)
            everyone: list[Any] = [None] * RANKS
            torch.distributed.all_gather_object(everyone, kept)
            expected = [rows for rows_of in everyone for rows in rows_of] if merge else kept
            # Merged while they train, ranks have whole tensors, no channels.
            assert_stats(w.latest["second", "output"], expected, None if merge else -1)
            rows = sum(map(len, expected))
            assert int(w.latest["first", "output"].count[0]) == rows * (WIDTH if merge else 1)
            assert int(w.latest["second", "grad_output"].count[0]) == rows * (2 if merge else 1)
        row = w.coverage()["second", "output"]
        assert row.unmasked == {}
        assert row.forwards == row.observed + sum(row.skipped.values())
        with w.mask(mask_of(rank, 0)[:2]):
            model(batch(rank, 0)).sum().backward()
        optimizer.step()
        rows = BATCH * TIME * (RANKS * 2 if merge else 1)
        assert int(w.latest["second", "output"].count[0]) == rows
        assert w.coverage()["second", "output"].unmasked == {MASK_UNFIT: 1}


@pytest.mark.parametrize("merge", [False, True])
def test_each_rank_has_its_own_masks(ranks: Ranks, merge: bool) -> None:
    ranks(masked_ddp, merge)
