"""Tensors whose storage was freed, as where they are offloaded: nothing reads them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hookstats as hs


def freed() -> Tensor:
    tensor = torch.ones(1)
    tensor.untyped_storage().resize_(0)
    return tensor


class Offloads(nn.Module):
    """Frees what it is given, once it has the result."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.detach() + 1
        x.untyped_storage().resize_(0)
        return y


@pytest.mark.parametrize("kind", ["param", "param_grad", "update", "optimizer_state"])
def test_a_parameter_without_memory_is_skipped_until_it_is_back(kind: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weight = model[0].weight
    with hs.watch(model, optimizer, kinds=(kind,), rules=(), every=1) as w:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            found = optimizer.state[weight].get("momentum_buffer") if step == 1 else None
            kept = {"optimizer_state": found, "param_grad": weight.grad}.get(kind, weight)
            if step == 1:
                assert kept is not None
                kept.untyped_storage().resize_(0)
                if kind == "param_grad":  # the optimizer would read it
                    w._observers.parameters.observe_all()
                weight.grad = None
            optimizer.step()
            if step == 1:
                assert kept is not None
                kept.untyped_storage().resize_(kept.numel() * 4)
                kept.data.fill_(0.5)
        rows = [row for row in w.coverage() if row.name == "0.weight"]
    (row,) = rows
    assert row.skipped == {"no storage": 1}
    assert row.error is None
    assert row.observed >= 2
    assert w.coverage().failures == {}


def test_a_watch_begins_with_a_parameter_without_memory() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].weight.untyped_storage().resize_(0)
    with hs.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        pass


def test_other_tensors_without_memory() -> None:
    expected = "x has no storage: expected"
    with pytest.raises(ValueError, match=expected):
        hs.channel_stats(freed())
    with pytest.raises(ValueError, match="mask has no storage: expected"):
        hs.channel_stats(torch.ones(1, 2), 1, mask=freed())
    model = nn.Sequential(nn.Linear(4, 4), Offloads(), nn.Linear(4, 4))
    with hs.watch(model, rules=()) as w, pytest.raises(ValueError, match="loss = Tensor of shape"):
        w.log(loss=freed())
    with hs.capture(model, kinds=("input",)) as c:
        model(torch.ones(2, 4))
    assert len(c["2", "input"]) == 1
    x = torch.ones(2, 4)
    x.untyped_storage().resize_(0)
    identity = nn.Identity()
    with hs.capture(identity, kinds=("output",)) as c:
        identity(x)
    assert [row.skipped for row in c.coverage()] == [{"no storage": 1}]
    assert hs.trace(identity, x)
