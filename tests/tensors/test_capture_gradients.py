"""capture: the gradient of every backward; of views changed in place, of leaves, of one tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.changed_outputs import CHANGES, MODULES
from support.expected import same
from torch import Tensor, nn
from torch.nn import functional as F

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS

SOME = [
    name if name in ("relu", "a part") else pytest.param(name, marks=pytest.mark.full)
    for name in CHANGES
]
"""A watch's gradients are tested with each."""

# Of modules


def test_a_gradient_that_never_came_is_none() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    with hs.capture(model) as c:
        model[0](torch.randn(2, 3))
        model[1](torch.randn(2, 3)).sum().backward()
        with torch.no_grad():
            model[1](torch.randn(2, 3))
    assert c["0", "grad_output"] == [None]
    came, never = c["1", "grad_output"]
    assert torch.equal(came, torch.ones(2, 3))
    assert never is None
    rows = {(row.name, row.kind): row for row in c.coverage()}
    assert rows["0", "grad_output"].missing == 1
    assert rows["1", "grad_output"].skipped == {"requires no gradient": 1}
    assert c.calls("0")[0].leaves("grad_output") == {"": "missing"}
    assert "grad_output=missing" in repr(c.calls("0")[0])


def test_each_backward_has_its_gradient() -> None:
    model = nn.Linear(3, 3)
    with hs.capture(model, kinds=("grad_output", "grad_input")) as c:
        x = torch.randn(2, 3, requires_grad=True) * 1
        y = model(x)
        y.sum().backward(retain_graph=True)
        (5 * y).sum().backward()
    (call,) = c.calls("")
    ones = torch.ones(2, 3)
    assert same(call.grad_outputs, [ones, 5 * ones])
    assert len(call.grad_inputs) == 2
    assert torch.equal(call.grad_output, 5 * ones)
    assert next(row for row in c.coverage() if row.kind == "grad_output").backwards == 2


def test_gradients_that_require_gradients_are_detached() -> None:
    model = nn.Tanh()
    with hs.capture(model, kinds=("grad_output",)) as c:
        x = torch.randn(3, requires_grad=True)
        y = model(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
    (call,) = c.calls("")
    assert torch.equal(call.grad_outputs[0], 2 * y.detach())
    assert len(call.grad_outputs) == 2
    assert not any(gradient.requires_grad for gradient in call.grad_outputs)


@pytest.mark.parametrize("change", SOME)
@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_views_that_are_changed_in_place(name: str, change: str) -> None:
    make, shape, _ = MODULES[name]
    module = make()
    x = torch.randn(shape, requires_grad=True)

    def end(y: Tensor, inplace: bool) -> Tensor:
        z = CHANGES[change](y, inplace)
        return (z * (torch.arange(z.numel()).view(z.shape) - 3.0)).sum()

    y = module(x * 1)
    (expected,) = torch.autograd.grad(end(y, inplace=False), y)
    value = y.detach().clone()
    with hs.capture(module, include="") as c:
        y = module(x * 1)
        with hs.capture(y) as of_tensor:
            end(y, inplace=True).backward()
    assert torch.equal(c["", "output"][0], value)
    for gradients in (c["", "grad_output"], of_tensor.grads):
        torch.testing.assert_close(gradients, [expected], rtol=1e-6, atol=1e-6)


# Inputs that are leaves


def test_a_leafs_gradient_goes_to_the_calls_that_its_backward_went_through() -> None:
    model = nn.Linear(3, 1, bias=False)
    x = torch.ones(2, 3, requires_grad=True)
    with hs.capture(model, kinds=("grad_input",)) as c:
        for factor in (1.0, 2.0):
            (factor * model(x)).sum().backward()
        model(x)  # of no backward
        (3 * model(x) + 4 * model(x)).sum().backward()  # both have the total one
    weight = model.weight.detach().expand(2, 3)
    got = c["", "grad_input"]
    assert got[2] is None
    torch.testing.assert_close(
        [got[0], got[1], got[3], got[4]], [weight, 2 * weight, 7 * weight, 7 * weight]
    )
    assert [len(call.grad_inputs) for call in c.calls("")] == [1, 1, 0, 1, 1]


def test_outputs_that_are_leaves_have_no_gradients() -> None:
    model = nn.Identity()
    x = torch.ones(2, requires_grad=True)
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        model(x).sum().backward()
    rows = {row.kind: row for row in c.coverage()}
    assert rows["grad_output"].skipped == {"leaf": 1}
    assert rows["grad_input"].missing == 1


# A tensor


def test_the_gradients_of_a_tensor_in_the_middle_of_a_graph() -> None:
    x = torch.tensor([[1.0], [2.0]], requires_grad=True)
    y = x + 2
    with hs.capture(y) as c:
        with pytest.raises(RuntimeError, match=r"no gradient arrived yet, expected a backward"):
            c.grads  # noqa: B018
        y.square().mean().backward()
        (3 * y).sum().backward()
    assert same(c.grads, [y.detach(), torch.full((2, 1), 3.0)])
    assert not c.grads[0].requires_grad
    assert "2 backwards" in repr(c)


def test_the_gradients_of_a_leaf() -> None:
    weight = torch.ones(2, requires_grad=True)
    with hs.capture(weight, max_bytes=16) as c:
        for i in range(5):
            (i * weight).sum().backward()
    (weight * 9).sum().backward()  # after the capture
    assert same(c.grads, [torch.full((2,), 3.0), torch.full((2,), 4.0)])
    assert (c.dropped, c.nbytes) == (3, 16)
    assert not weight._backward_hooks


def test_a_gradient_that_cannot_be_taken_is_named() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    with hs.capture(weight) as c:
        F.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    with pytest.raises(RuntimeError, match="grads: none could be kept: layout sparse_coo"):
        c.grads  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": torch.ones(2)}, "source: requires no gradient; expected a tensor that req"),
        ({"include": "0"}, "include = '0': expected None, since source is a tensor"),
        ({"exclude": nn.ReLU}, "exclude = .*: expected None, since source is a tensor"),
        ({"key": print}, "key = .*: expected None, since source is a tensor"),
        (
            {"kinds": ("input",)},
            r"kinds = \('input',\): expected no kinds, since source is a tensor",
        ),
    ],
)
def test_bad_arguments_for_a_tensor(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hs.capture(**({"source": torch.ones(2, requires_grad=True)} | arguments))
