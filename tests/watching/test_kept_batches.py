"""Watch.keep_batches: what the model got in the step of an incident, and that nothing changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import hookstats as hs


class Model(nn.Module):
    """Changes its input in place, and draws random numbers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 1.0, *, extra: Any = None) -> Tensor:
        x = nn.functional.dropout(x.mul_(scale), 0.5)
        return self.linear(x) * (random.random() + float(np.random.rand()))  # noqa: NPY002


def train(out: Path | None, max_bytes: int | None, bad: int = 20) -> tuple[list[Tensor], Any]:
    """The outputs of a training whose step `bad` has a NaN, and the first batch that is kept."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.0)
    rules = [hs.rules.NonFinite()]
    w = None if out is None else hs.watch(model, optimizer, out=out, every=1, rules=rules)
    if w is not None and max_bytes is not None:
        w.keep_batches(max_bytes)
    outputs = []
    x = torch.empty(2, 4)  # the same memory in all steps
    for step in range(24):
        for _ in range(2):
            x.copy_(torch.randn(2, 4))
            if step == bad:
                x[1, 2] = torch.nan
            outputs.append(model(x, 2.0, extra={"x": [x, step, object()]}))
            outputs[-1].nansum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if w is None or out is None:
        return outputs, None
    w.close()
    return outputs, (w, hs.open_run(out).incidents[0].batch)


def test_a_batch_and_its_random_numbers_repeat_a_step(tmp_path: Path) -> None:
    plain, _ = train(None, None)
    outputs, (_, batch) = train(tmp_path, 1 << 20)
    assert all(map(torch.equal, map(torch.nan_to_num, plain), map(torch.nan_to_num, outputs)))
    assert batch.step == 20
    assert len(batch.calls) == 2
    torch.manual_seed(0)
    model = Model()
    for call, output in zip(batch.calls, outputs[40:42], strict=True):
        assert call.model == ""
        assert call.kwargs["extra"]["x"][1:] == [20, "<object>"]
        pair = call.args[0], call.kwargs["extra"]["x"][0]
        assert torch.equal(*(x.nan_to_num() for x in pair))
        call.set_rng()
        again = model(*call.args, **call.kwargs)
        assert torch.equal(again.nan_to_num(), output.nan_to_num())


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    _, (w, batch) = train(tmp_path, 100)
    assert batch is None
    assert "more than max_bytes = 100" in w.coverage().failures["keeping the batches of incidents"]
    assert not list(tmp_path.glob("batch-*"))


def test_a_run_without_batches_has_none_and_overwrite_removes_them(tmp_path: Path) -> None:
    train(tmp_path, 1 << 20)
    assert len(list(tmp_path.glob("batch-*"))) == 1
    model = nn.Linear(2, 2)
    hs.watch(model, out=tmp_path, overwrite=True).close()
    assert not list(tmp_path.glob("batch-*"))
    _, (_, batch) = train(tmp_path / "other", None)
    assert batch is None


def test_damage_names_the_file(tmp_path: Path) -> None:
    train(tmp_path, 1 << 20)
    (path,) = tmp_path.glob("batch-*")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=path.name):
        _ = hs.open_run(tmp_path).incidents[0].batch


def test_the_first_mistake_is_said(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with hs.watch(model) as w, pytest.raises(ValueError, match="with out= and rules"):
        w.keep_batches(1 << 20)
    with hs.watch(model, out=tmp_path) as w:
        with pytest.raises(ValueError, match="max_bytes = 0"):
            w.keep_batches(0)
        w.keep_batches(1)
        with pytest.raises(ValueError, match="already"):
            w.keep_batches(1)
