"""Edits in the modes of autograd, and of views that are changed in place later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.changed_outputs import CHANGES, MODULES
from support.modules import Lambda, double, gradients_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats.tensors.edit import edit
from hookstats.tensors.editor import EditError

# Modes of autograd.


def test_no_gradient_is_nothing_to_edit() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    handle = edit(frozen, double, "grad_output")
    frozen(torch.ones(1, 2))
    trained = nn.Linear(2, 2)
    other = edit(trained, double, "grad_output")
    with torch.no_grad():
        trained(torch.ones(1, 2))
    trained(torch.ones(1, 2))  # and no backward
    assert handle.calls == other.calls == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_forward_edits_without_gradients(mode: Callable[[], Any]) -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    expected = layer(x * 2) * 2
    edit(layer, double)
    edit(layer, double, "input")
    with mode():
        torch.testing.assert_close(layer(x), expected.detach())


def test_each_backward_through_one_graph_is_edited() -> None:
    x = torch.ones(2, requires_grad=True)
    module = Lambda(lambda x: x * 3)
    handle = edit(module, double, "grad_output")
    y = module(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert handle.calls == 2
    assert x.grad is not None
    assert x.grad.tolist() == [12.0, 12.0]


@pytest.mark.parametrize("view", [False, True])
def test_a_gradient_of_an_edited_gradient(view: bool) -> None:
    """d/dx of g^2, where g = 3 x^2 is the gradient of x^3."""
    module = Lambda(lambda x: (x * 1).view(2) if view else x * 1)
    handle = edit(module, torch.square, "grad_output")
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = module(x)
    if view:
        y.mul_(1)  # its gradient is found in that of the base
    (g,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    torch.testing.assert_close(g, (3 * x**2) ** 2)
    handle.remove()  # the backward of a backward brings y a gradient, too
    (gg,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(gg, 36 * x**3)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["output", "input", "grad_output"])
def test_checkpoints_recompute_what_was_edited(kind: str, reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    edit(model[1], lambda t: t.sin() * 2, kind)
    x = torch.randn(2, 3, requires_grad=True)
    plain = gradients_of(model(x).square().sum(), x)[0]
    checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, plain)


def test_functional_transforms() -> None:
    layer = nn.Linear(2, 2)
    x = torch.randn(3, 2)
    expected = torch.vmap(layer)(x) * 2
    edit(layer, double)
    torch.testing.assert_close(torch.vmap(layer)(x), expected)
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, parameters, (x,)).sum()
        return result

    assert torch.func.grad(loss)(parameters)["bias"].tolist() == [6.0, 6.0]


# Views that are changed in place later.


@pytest.mark.parametrize("change", ["none", "relu", "several", "used before"])
@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"flatten", "its own input"}))
def test_outputs_that_are_changed_in_place(name: str, change: str) -> None:
    make, shape, _ = MODULES[name]
    module = make()
    handle = edit(module, lambda g: g.clamp(-2.5, 2.5) * 3, "grad_output")
    edit(module, lambda g: g + 1, "grad_output")  # after it, on what it made
    x = torch.randn(shape, requires_grad=True)

    def gradient(inplace: bool) -> Tensor:
        end = CHANGES[change](module(x * 1), inplace)
        weights = torch.arange(end.numel()).view(end.shape) - 3.0
        return gradients_of((end * weights).sum(), x)[0]

    torch.testing.assert_close(gradient(inplace=True), gradient(inplace=False))
    assert handle.calls == 2


SHARED: dict[str, Callable[..., Any]] = {
    "flatten": nn.Flatten(),
    "identity": lambda x: x,
    "overlapping": lambda x: ((y := x * 2).view(-1), y),
}


@pytest.mark.parametrize("name", SHARED)
def test_where_others_may_share_the_gradient_it_is_refused(name: str) -> None:
    module = Lambda(SHARED[name])
    edit(module, double, "grad_output")
    x = torch.randn(2, 3, 4, requires_grad=True)

    def output() -> Tensor:
        y = module((x * 1).view(6, 4) if name == "identity" else x * 1)
        return y[0] if isinstance(y, tuple) else y

    output().sum().backward()
    with pytest.raises(EditError, match=r"grad_output.* of Lambda.*view that was changed in place"):
        output().relu_().sum().backward()


def test_a_tensor_that_is_a_view_and_changed_in_place_is_refused() -> None:
    x = torch.randn(4, requires_grad=True)
    y = (x * 1).view(2, 2)
    edit(y, double)
    with pytest.raises(EditError, match=r"gradient of a tensor of shape \(2, 2\)"):
        y.relu_().sum().backward()


def test_a_stale_view_does_not_crash() -> None:
    base = torch.ones(2, 2, requires_grad=True) * 1
    view = base[0]
    base.mul_(3)
    edit(view, double)
    view.sum().backward()


def test_leaves_among_outputs_are_refused() -> None:
    module = nn.Identity()
    edit(module, double, "grad_output")
    with pytest.raises(EditError, match=r"leaf of the graph.*edit\(tensor, fn\)"):
        module(torch.ones(2, requires_grad=True))
