"""Every way to train on ranks keeps its bits: watched, and with records that ranks merge."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import Ranks
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

import hookstats as hs

pytest.importorskip("pyarrow")
ROWS, marks = (pytest.importorskip("test_merged_runs").__dict__[name] for name in ("ROWS", "marks"))

pytestmark = pytest.mark.check
SIZE = 4


class Unwatched:
    """In place of a watch, there is none."""

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def coverage(self) -> list[Any]:
        return []


def train(rank: int, how: str, name: str, out: Path) -> list[str]:
    """A digest of the parameters that each step of an optimizer left on this rank."""
    found: list[str] = []

    def note(optimizer: Optimizer, *_: object) -> None:
        digest = hashlib.md5()
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            local = getattr(parameter, "to_local", lambda p=parameter: p)()
            digest.update(local.detach().float().numpy().tobytes())
        found.append(digest.hexdigest())

    row, watch = ROWS[name], hs.watch
    reduces = partial(watch, reduce=hs.Reduce(timeout=120))
    handle = register_optimizer_step_post_hook(note)
    ways: dict[str, Any] = {"watched": watch, "reduced": reduces}
    hs.watch = ways.get(how, lambda *_, **__: Unwatched())
    try:
        row.train(rank, out / how, *row.arguments, **row.options)
    finally:
        hs.watch = watch
        handle.remove()
        torch.compiler.reset()
    return found


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in ROWS])
def test_training_keeps_every_bit(ranks: Ranks, tmp_path: Path, name: str) -> None:
    plain = ranks(train, "plain", name, tmp_path)
    assert len(plain) == SIZE
    assert all(plain)
    assert not (tmp_path / "plain").exists()
    for how in ("watched", "reduced"):
        assert ranks(train, how, name, tmp_path) == plain
        assert hs.open_run(tmp_path / how).ranks == list(range(SIZE))
