"""Edits of tensors in flight: what they change, in which order, and what they are refused for."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from support.changed_outputs import CHANGES, MODULES
from support.modules import Lambda, ModelOutput, double, gradients_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats.hooks.leaves import leaves
from hookstats.tensors.edit import edit
from hookstats.tensors.editor import EditError
from hookstats.tensors.replace import with_leaves

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


A, B, C = (torch.tensor(float(i)) for i in range(1, 4))
IDS = torch.tensor([1, 2])
Pair = namedtuple("Pair", ["first", "second"])


class Items(list[Any]):
    """A list of a type of its own."""


@dataclass(frozen=True)
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    name: str = "x"
    unset: Tensor = field(init=False)


def model_output() -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=A, hidden_states=(B, C))


STRUCTURES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: A,
    "tuple": lambda: (A, "text", B),
    "list": lambda: [A, None, [B, C]],
    "list of its own": lambda: Items([A, B]),
    "named tuple": lambda: Pair(A, [B]),
    "torch.return_types": lambda: torch.max(torch.eye(2), 0),
    "dict": lambda: {"a": A, "b c": (B,), 3: 4},
    "ordered dict": lambda: OrderedDict(a=A, b=B),
    "user dict": lambda: UserDict(a=A),
    "dataclass": lambda: Output(A, (B, C), "y"),
    "model output": lambda: ModelOutput(logits=A, states=B),
    "transformers": model_output,
    "with ids": lambda: (IDS, A),
    "complex": lambda: [torch.tensor([1j, 2.0])],
}
NAMES = [
    pytest.param(name, marks=pytest.mark.check) if name == "transformers" else name
    for name in STRUCTURES
]


@pytest.mark.parametrize("name", NAMES)
def test_structures_keep_their_types_and_the_original_its_tensors(name: str) -> None:
    value = STRUCTURES[name]()
    before = list(leaves(value))
    module = Lambda(lambda: value)
    edit(module, double)
    result = module()
    assert type(result) is type(value)
    after = list(leaves(result))
    assert [path for path, _ in after] == [path for path, _ in before]
    for (_, mine), (_, original) in zip(after, before, strict=True):
        if original.dtype is torch.int64:
            assert mine is original
        else:
            assert torch.equal(mine, original * 2)
    assert all(x is y for (_, x), (_, y) in zip(leaves(value), before, strict=True))
    if isinstance(value, OrderedDict) and is_dataclass(value):  # the items and the fields
        assert all(getattr(result, key) is item for key, item in result.items())
        assert list(result.keys()) == list(value.keys())
    if isinstance(value, Output):
        assert result.name == "y"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_edited_is_the_same_object(name: str) -> None:
    value = STRUCTURES[name]()
    module = Lambda(lambda: value)
    edit(module, lambda t: None)
    assert module() is value
    assert with_leaves(value, [tensor for _, tensor in leaves(value)]) is value


@pytest.mark.parametrize(
    ("kind", "edited"),
    [
        ("output", ["", "[1].x", "[2][0]"]),
        ("output[0]", [""]),
        ("output[1].x", ["[1].x"]),
        ("output[2][0]", ["[2][0]"]),
        ("output[3]", ["[3]"]),
    ],
)
def test_paths_choose_a_tensor(kind: str, edited: list[str]) -> None:
    module = Lambda(lambda: (A, {"x": B}, [C], IDS))
    edit(module, double, kind)
    for (path, mine), (_, original) in zip(
        leaves(module()), leaves(module.function()), strict=True
    ):
        assert torch.equal(mine, original * 2 if path in edited else original)


def test_the_arguments_of_a_call() -> None:
    seen: list[Any] = []
    module = Lambda(lambda *args, **kwargs: seen.append((args, kwargs)))
    edit(module, double, "input[1]")
    edit(module, lambda t: t + 10, "input.mask")
    module(A, B, mask=C, flag=True)
    ((args, kwargs),) = seen
    assert args == (A, 2 * B)
    assert kwargs == {"mask": C + 10, "flag": True}


def test_a_tensor_that_comes_twice_is_edited_once() -> None:
    y = torch.ones(2, requires_grad=True) * 1
    module = Lambda(lambda: (y, [y]))
    with edit(module, double) as handle:
        first, (second,) = module()
        assert first is second
    with edit(module, double, "grad_output") as gradient:
        first, (second,) = module()
        (first + second).sum().backward()
    assert handle.calls == gradient.calls == 1


def test_a_path_of_a_tensor_that_comes_twice_changes_that_place_alone() -> None:
    module = Lambda(lambda: (A, A))
    edit(module, double, "output[1]")
    assert module() == (A, 2 * A)


@pytest.mark.parametrize(
    ("kind", "output", "message"),
    [
        ("output.logits", (A, B), r"output\.logits of Lambda\(\): .*output \(.*, output\[1\]"),
        ("output", IDS, r"no such floating-point tensor.*output \(torch\.int64\)"),
        ("output", None, "expected one of: nothing, as none came"),
        ("grad_output[2]", (A, B), r"grad_output\[2\] of"),
        ("input[1]", A, r"input\[1\] of Lambda\(\).*expected one of: input "),
    ],
)
def test_a_tensor_that_is_not_there(kind: str, output: Any, message: str) -> None:
    module = Lambda(lambda x: output)
    edit(module, double, kind)
    with pytest.raises(EditError, match=message) as caught:
        module(A)
    assert "double" not in str(caught.value)  # it was not called


def test_a_container_that_cannot_be_copied_with_another_tensor() -> None:
    module = Lambda(lambda: MappingProxyType({"a": A}))
    edit(module, double)
    with pytest.raises(EditError, match=r"output of Lambda.*container that cannot be copied"):
        module()


IN_PLACE: Mapping[str, Callable[[Tensor], Tensor | None]] = {
    "operator": lambda t: t.__imul__(2),
    "method": lambda t: (t.mul_(2), None)[1],
    "a part": lambda t: (t[:1].zero_(), None)[1],
    "detached": lambda t: t.detach().mul_(2),
    "out": lambda t: torch.mul(t.detach(), 2, out=t.detach()),
    "and another": lambda t: t.add_(1) * 2,
}


def without_gradients(t: Tensor) -> None:
    with torch.no_grad():
        t.mul_(2)


@pytest.mark.parametrize("kind", ["output", "input", "grad_output", "gradient"])
@pytest.mark.parametrize(
    "function", [*IN_PLACE.values(), without_gradients], ids=[*IN_PLACE, "no_grad"]
)
def test_changes_in_place_are_refused(function: Callable[[Tensor], Any], kind: str) -> None:
    module = Lambda(lambda x: x * 3)
    x = torch.ones(2, requires_grad=True)
    if kind == "gradient":
        place = r"gradient of a tensor of shape \(2,\)"
        edit(x, function)
    else:
        place = rf"{kind} of Lambda\(\)"
        edit(module, function, kind)
    message = rf"{place}: .* \(.*test_edit\.py:\d+\) changed its tensor in place.*return x \* 2"
    with pytest.raises(EditError, match=message):
        module(x * 1).backward(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("kind", ["output", "input", "grad_output", "gradient"])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda t: t[:1], r"shape \(1,\), torch.float32, on cpu; expected shape \(2,\)"),
        (lambda t: t.sum(), r"shape \(\), "),
        (lambda t: t.double(), r"torch.float64.*expected.*torch.float32"),
        (lambda t: t.to("meta"), "on meta; expected .* on cpu"),
        (lambda t: 2.0, "returned 2.0; expected a torch.Tensor or None"),
        (lambda t: (t, t), "returned .tensor"),
    ],
)
def test_what_does_not_fit_is_refused(
    result: Callable[[Tensor], Any], message: str, kind: str
) -> None:
    module = Lambda(lambda x: x * 3)
    x = torch.ones(2, requires_grad=True)
    if kind == "gradient":
        edit(x, result)
    else:
        edit(module, result, kind)
    with pytest.raises(EditError, match=message) as caught:
        module(x * 1).sum().backward()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kind", ["output", "input", "grad_output"])
def test_an_edit_that_raises_goes_to_the_caller(kind: str) -> None:
    def fail(t: Tensor) -> Tensor:
        raise ZeroDivisionError("of the user")

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with edit(model[1], fail, kind), pytest.raises(ZeroDivisionError, match="of the user"):
        model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.Linear(1, 1), double, "outputs"), "did you mean 'output'"),
        ((nn.Linear(1, 1), double, "grad_input"), r"edit\(tensor, fn\)"),
        ((nn.Linear(1, 1), double, "fake:output"), "kind = 'fake:output': expected one of"),
        ((nn.Linear(1, 1), None), "fn = None: expected a callable"),
        (("layer", double), "target = 'layer'"),
        ((torch.ones(2), double), "requires no gradient"),
        (
            (nn.Parameter(torch.ones(2)), double, "input"),
            "kind = 'input': expected none for a tensor",
        ),
    ],
)
def test_bad_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edit(*arguments)


def test_scripted_modules_are_refused() -> None:
    with pytest.raises(ValueError, match="a ScriptModule takes no hooks"):
        edit(torch.jit.script(nn.Linear(1, 1)), double)
