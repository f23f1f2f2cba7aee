"""Edits of tensors in flight: what they change, and in which order."""

from __future__ import annotations

import copy

import pytest
import torch
from support.modules import Lambda, double, gradients_of
from torch import Tensor, nn

from hookstats.tensors.edit import edit

# The gradient of a tensor.


def test_the_chain_of_edits_runs_in_the_order_of_their_calls() -> None:
    v = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    seen: list[list[float]] = []
    edit(v, lambda g: g * 2)
    edit(v, lambda g: seen.append(g.tolist()))
    edit(v, lambda g: g / 2)
    edit(v, lambda g: seen.append(g.tolist()))
    (v**2).sum().backward()
    assert seen == [[4.0, 8.0, 12.0], [2.0, 4.0, 6.0]]
    assert v.grad is not None
    assert v.grad.tolist() == [2.0, 4.0, 6.0]


def test_a_leaf_is_edited_in_every_backward_until_it_is_removed() -> None:
    w = nn.Parameter(torch.ones(2))
    handle = edit(w, double)
    for expected in (2.0, 4.0):
        w.sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == [expected] * 2
    assert handle.calls == 2
    handle.remove()
    handle.remove()
    w.sum().backward()
    assert w.grad.tolist() == [5.0] * 2


def test_it_looks_where_it_returns_none_or_the_same_tensor() -> None:
    w = nn.Parameter(torch.ones(2))
    looks: list[Tensor] = []
    edit(w, looks.append)
    edit(w, lambda g: g)
    (3 * w).sum().backward()
    assert w.grad is not None
    assert torch.equal(w.grad, looks[0])


# What modules take and return.


@pytest.mark.parametrize("kind", ["output", "input"])
def test_a_forward_edit_is_differentiated_through(kind: str) -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(4, 3, requires_grad=True)
    with edit(layer, lambda t: t.square() + 1, kind) as handle:
        y = layer(x)
    twin = layer(x).square() + 1 if kind == "output" else layer(x.square() + 1)
    assert handle.calls == 1
    assert torch.equal(y, twin)
    for mine, other in zip(
        gradients_of(y.sin().sum(), x, layer.weight),
        gradients_of(twin.sin().sum(), x, layer.weight),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_the_gradient_of_an_output() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(4, 3)
    edit(model[1], double, "grad_output")
    model(x).sum().backward()
    mine = [parameter.grad for parameter in model.parameters()]
    twin = copy.deepcopy(model)  # without the edit
    twin.zero_grad()
    twin(x).sum().backward()
    factors = (2.0, 2.0, 1.0, 1.0)  # the first layer comes before it
    for one, parameter, factor in zip(mine, twin.parameters(), factors, strict=True):
        assert one is not None
        assert parameter.grad is not None
        torch.testing.assert_close(one, parameter.grad * factor)


@pytest.mark.parametrize("kind", ["output", "input", "grad_output"])
def test_every_call_of_a_module_is_edited(kind: str) -> None:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.eye_(layer.weight)
    handle = edit(layer, double, kind)
    x = torch.ones(1, 2, requires_grad=True)
    layer(layer(layer(x))).sum().backward()
    assert handle.calls == 3
    assert x.grad is not None
    assert x.grad.tolist() == [[8.0, 8.0]]


def test_an_input_by_keyword() -> None:
    module = Lambda(lambda x, *, scale: x * scale)
    edit(module, lambda t: t + 1, "input.scale")
    assert module(torch.tensor(2.0), scale=torch.tensor(3.0)) == 8.0


# Modules of several inputs.
