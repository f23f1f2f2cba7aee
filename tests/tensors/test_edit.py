"""Edits of tensors in flight: what they change, and in which order."""

from __future__ import annotations

import copy

import pytest
import torch
from support.modules import Lambda, double, gradients_of
from torch import Tensor, nn

from hookstats.tensors.edit import edit
from hookstats.watching.watch import watch

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


def test_the_gradient_of_a_tensor_inside_of_the_graph() -> None:
    a, b = torch.tensor(7.0, requires_grad=True), torch.tensor(13.0, requires_grad=True)
    c = a * b
    edit(c, lambda g: g + 2)
    c.retain_grad()
    c.backward()
    assert [t.grad for t in (a, b, c)] == [39.0, 21.0, 3.0]


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


def test_an_optimizer_uses_the_edited_gradient() -> None:
    model = nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        edit(parameter, lambda g: g.clamp(-0.1, 0.1))
    x = torch.randn(5, 3)
    for one in (model, twin):
        one(x).square().sum().backward()
    for parameter in twin.parameters():
        assert parameter.grad is not None
        parameter.grad.clamp_(-0.1, 0.1)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None
        assert torch.equal(mine.grad, other.grad)


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


class Weighted(nn.Module):
    """The sum of its inputs, each times a factor."""

    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, *xs: Tensor) -> Tensor:
        total: Tensor = sum(f * x for f, x in zip(self.factors, xs, strict=True))  # type: ignore
        return total


def test_each_input_of_a_module_has_its_own_gradient() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = torch.tensor([6.0, 4.0], requires_grad=True)
    z = torch.tensor([1.0, 5.0], requires_grad=True)
    target = torch.tensor([9.0, -1.0], requires_grad=True)
    model = Weighted(2, 3, -5)
    looks: list[tuple[str, list[float]]] = []
    for name, tensor in (("x", x), ("y", y), ("z", z)):
        edit(tensor, lambda g, name=name: looks.append((name, g.tolist())))
    edit(model, lambda g: looks.append(("out", g.tolist())), "grad_output")
    loss = nn.functional.mse_loss(model(x, y, z), target)
    loss.backward()
    assert loss == 50.0
    assert dict(looks) == {
        "out": [8.0, -6.0],
        "x": [16.0, -12.0],
        "y": [24.0, -18.0],
        "z": [-40.0, 30.0],
    }
    assert target.grad is not None
    assert target.grad.tolist() == [-8.0, 6.0]


def test_watch_has_the_gradient_of_each_input() -> None:
    xs = [
        torch.tensor(values, requires_grad=True) for values in ([2.0, 3.0], [6.0, 4.0], [1.0, 5.0])
    ]
    model = Weighted(2, 3, -5)
    with watch(model, kinds=("grad_input",), include="", channel_dim=-1) as w:
        out = model(*(x * 1 for x in xs))  # leaves, watch skips
        nn.functional.mse_loss(out, torch.tensor([9.0, -1.0])).backward()
        w.step()
        means = [w.latest["", f"grad_input{i}"].mean.tolist() for i in ("", "[1]", "[2]")]
    assert means == [[16.0, -12.0], [24.0, -18.0], [-40.0, 30.0]]
    assert [x.grad.tolist() for x in xs if x.grad is not None] == means
