"""capture: the tensors of every call, forward and backward paired, by name, kind, path and key."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from support.expected import same
from support.modules import Lambda, convolutional
from torch import Tensor, nn

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS

# Calls


def test_every_kind() -> None:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3, requires_grad=True) * 1
    x.retain_grad()
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        y = model(x)
        y.retain_grad()
        y.square().sum().backward()
    (call,) = c.calls("")
    for got, expected in (
        (call.input, x),
        (call.output, y),
        (call.grad_input, x.grad),
        (call.grad_output, y.grad),
    ):
        assert torch.equal(got, expected)
        assert not got.requires_grad
        assert got.grad_fn is None
    for kind in MODULE_KINDS:
        assert same(c["", kind], [getattr(call, kind)])


def test_by_default_outputs_and_their_gradients_of_modules_without_children() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh()))
    with hs.capture(model) as c:
        model(torch.randn(2, 3))
    assert list(c) == [
        ("0", "output"),
        ("0", "grad_output"),
        ("1.0", "output"),
        ("1.0", "grad_output"),
    ]
    assert len(c) == 4
    assert ("1.0", "output") in c
    assert ("1", "output") not in c
    assert [kind for (name, kind), values in c.items() if values[0] is not None] == ["output"] * 2


def test_the_calls_of_a_module_are_kept_apart_and_paired() -> None:
    model = nn.ModuleDict({"shared": nn.Linear(3, 3), "other": nn.Tanh()})
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        x = torch.randn(2, 3, requires_grad=True) * 1
        y = model["shared"](x)
        z = model["other"](y)
        end = model["shared"](z)
        for tensor in (x, y, z, end):
            tensor.retain_grad()
        end.square().sum().backward()
    first, second = c.calls("shared")
    assert (first.index, second.index) == (0, 1)
    for call, before, after in ((first, x, y), (second, z, end)):
        assert torch.equal(call.input, before)
        assert torch.equal(call.output, after)
        assert before.grad is not None
        assert after.grad is not None
        assert torch.equal(call.grad_input, before.grad)
        assert torch.equal(call.grad_output, after.grad)
    assert [(call.name, call.index) for call in c.calls()] == [
        ("shared", 0),
        ("other", 0),
        ("shared", 1),
    ]
    assert same(c["shared", "output"], [y, end])


def test_a_module_that_calls_itself() -> None:
    class Recursive(nn.Module):
        def forward(self, x: Tensor, depth: int) -> Tensor:
            if depth == 2:
                with pytest.raises(ZeroDivisionError):
                    self(x, 0)
                return x * 2
            if depth == 0:
                raise ZeroDivisionError
            y: Tensor = self(x * 2, depth + 1)
            return y * 2

    model = Recursive()
    with hs.capture(model, kinds=("input", "output")) as c:
        model(torch.ones(1), 1)
    assert [float(x) for x in c["", "input"]] == [1, 2, 2]
    assert [None if y is None else float(y) for y in c["", "output"]] == [8, 4, None]


def test_a_pre_hook_set_later_may_replace_the_arguments() -> None:
    model = nn.Tanh()
    with hs.capture(model, kinds=("input", "output")) as c:
        model.register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0] * 0,), {**kwargs}), with_kwargs=True
        )
        for i in range(3):
            model(torch.full((1,), float(i)))
    assert [float(x) for x in c["", "input"]] == [0, 1, 2]
    assert [float(y) for y in c["", "output"]] == [0, 0, 0]
    assert len(c.calls("")) == 3


def test_a_call_that_raises_has_an_input_and_no_output() -> None:
    def broken(x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise RuntimeError("of the user")
        return x * 2

    model = Lambda(broken)
    with hs.capture(model, include="", kinds=("input", "output")) as c:
        for value in (-1.0, 1.0, -1.0, 2.0):
            with pytest.raises(RuntimeError) if value < 0 else nullcontext():
                model(torch.full((1,), value))
    assert [float(x) for x in c["", "input"]] == [-1, 1, -1, 2]
    assert [None if y is None else float(y) for y in c["", "output"]] == [None, 2, None, 4]
    row = next(row for row in c.coverage() if row.kind == "output")
    assert (row.forwards, row.observed, row.skipped) == (4, 2, {"no tensor": 2})


# Several tensors


@dataclass
class Output:
    logits: Tensor
    ids: Tensor
    unused: Tensor
    loss: Tensor | None = None


def test_several_tensors_of_a_call_come_as_a_tuple() -> None:
    def forward(x: Tensor, *, mask: Tensor) -> Output:
        return Output(x * mask, torch.arange(3), x * 2)

    model = Lambda(forward)
    x, mask = torch.randn(3, requires_grad=True) * 1, torch.tensor([1.0, 0.0, 1.0])
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        model(x, mask=mask).logits.sum().backward()
    assert same(list(c["", "input"][0]), [x, mask])
    logits, ids, unused = c["", "output"][0]
    assert same([logits, ids, unused], [x * mask, torch.arange(3), 2 * x])
    gradient, *none = c["", "grad_output"][0]
    assert torch.equal(gradient, torch.ones(3))
    assert none == [None, None]
    assert torch.equal(c["", "grad_input"][0][0], mask)
    # Each by its path.
    assert same(c["", "output.ids"], [torch.arange(3)])
    assert same(c["", "input[0]"], [x])
    assert same(c["", "input.mask"], [mask])
    assert c["", "grad_output.unused"] == [None]
    with pytest.raises(KeyError, match=r"'output\.logit'.*expected one of 'output\.logits', 'outp"):
        c["", "output.logit"]


# Groups


def test_calls_grouped_by_a_key() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))

    def shape(name: str, module: nn.Module) -> object:
        assert model[int(name)] is module
        return module.weight.shape

    with hs.capture(model, include=nn.Conv2d, kinds=("output",), key=shape) as c:
        for _ in range(2):
            model(torch.randn(1, 3, 5, 5))
    assert list(c.by_key) == [(4, 3, 3, 3), (4, 4, 1, 1)]
    assert [call.name for call in c.by_key[4, 4, 1, 1]] == ["1", "2", "1", "2"]
    assert c.by_key[4, 3, 3, 3][0].output is c["0", "output"][0]


def test_without_a_key_there_are_no_groups() -> None:
    with pytest.raises(ValueError, match="by_key: expected a capture with key = a function"):
        hs.capture(convolutional()).by_key  # noqa: B018
