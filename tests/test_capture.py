"""capture: the tensors of every call, forward and backward paired, by name, kind, path and key."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from test_hooks import CHANGES, MODULES
from torch import Tensor, nn
from torch.nn import functional as F

import hookstats as hs
from hookstats.attach import MODULE_KINDS
from hookstats.hooks import Inert


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3))


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def same(actual: list[Any], expected: list[Any]) -> bool:
    """Whether tensors, one a call, are equal bit for bit."""
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected))


# Values and gradients


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


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        ("[02]", None, ["0", "2"]),
        (nn.Linear, "0", ["2"]),
        (None, nn.Linear, ["1"]),
        (lambda name, module: name == "", None, [""]),
    ],
)
def test_modules_are_selected_as_in_watch(include: Any, exclude: Any, names: list[str]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with hs.capture(model, include, exclude, kinds=("output",)) as c:
        model(torch.randn(2, 3))
    assert [name for name, _ in c] == names


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


def test_a_module_that_calls_itself_with_arguments_that_a_hook_replaces() -> None:
    class Recursive(nn.Module):
        def forward(self, x: Tensor, depth: int) -> Tensor:
            y: Tensor = self(x * 2, depth - 1) if depth else x
            return y + 1

    model = Recursive()
    with hs.capture(model, kinds=("input", "output")) as c:
        model.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs}), with_kwargs=True
        )
        model(torch.ones(1), depth=2)
    assert [float(x) for x in c["", "input"]] == [1, 2, 4]
    assert [float(y) for y in c["", "output"]] == [7, 6, 5]


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


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_views_that_are_changed_in_place(name: str, change: str) -> None:
    make, shape, _ = MODULES[name]
    module = make()
    x = torch.randn(shape, requires_grad=True)

    def loss(inplace: bool) -> tuple[Tensor, Tensor]:
        y = module(x * 1)
        value = y.detach().clone()
        end = CHANGES[change](y, inplace)
        weights = torch.arange(end.numel()).view(end.shape) - 3.0
        return (value if inplace else y), (end * weights).sum()

    y, twin = loss(inplace=False)
    (expected,) = torch.autograd.grad(twin, y)
    with hs.capture(module, include="") as c:
        value, end = loss(inplace=True)
        end.backward()
    assert torch.equal(c["", "output"][0], value)
    torch.testing.assert_close(c["", "grad_output"][0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MODULES)
def test_the_gradients_of_a_tensor_that_is_changed_in_place(name: str, change: str) -> None:
    make, shape, _ = MODULES[name]
    module = make()
    x = torch.randn(shape, requires_grad=True)

    def end(y: Tensor, inplace: bool) -> Tensor:
        z = CHANGES[change](y, inplace)
        return (z * (torch.arange(z.numel()).view(z.shape) - 3.0)).sum()

    y = module(x * 1)
    (expected,) = torch.autograd.grad(end(y, inplace=False), y)
    y = module(x * 1)
    with hs.capture(y) as c:
        end(y, inplace=True).backward()
    torch.testing.assert_close(c.grads, [expected], rtol=1e-6, atol=1e-6)


def test_the_gradient_of_an_input_is_its_total_one() -> None:
    model = nn.ModuleDict({"fc": nn.Linear(3, 3, bias=False)})
    with hs.capture(model, kinds=("grad_input",)) as c:
        h = torch.randn(2, 3, requires_grad=True) * 1
        (model["fc"](h).sum() + (5 * h).sum()).backward()
    weight = model["fc"].weight.detach()
    torch.testing.assert_close(c["fc", "grad_input"], [(5 + weight.sum(0)).expand(2, 3)])


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


def test_a_leaf_has_one_hook_a_module_however_often_it_is_used() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    x = torch.ones(2, 3, requires_grad=True)
    with hs.capture(model, kinds=("grad_input",), calls=2) as c:
        for _ in range(20):
            model(x).sum().backward()
            assert len(x._backward_hooks or ()) == 1
        (hook,) = (x._backward_hooks or {}).values()
        assert len(hook.waiting) <= 3
    assert not x._backward_hooks
    assert [len(call.grad_inputs) for call in c.calls("0")] == [1, 1]


def test_leaf_inputs_whose_outputs_are_changed_in_place() -> None:
    model = nn.Linear(3, 3)  # its output is a view
    x = torch.randn(2, 4, 3, requires_grad=True)
    with hs.capture(model, kinds=("grad_input",)) as c:
        model(x).relu_().sum().backward()
    assert x.grad is not None
    assert same(c["", "grad_input"], [x.grad])


def test_outputs_that_are_leaves_have_no_gradients() -> None:
    model = nn.Identity()
    x = torch.ones(2, requires_grad=True)
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        model(x).sum().backward()
    rows = {row.kind: row for row in c.coverage()}
    assert rows["grad_output"].skipped == {"leaf": 1}
    assert rows["grad_input"].missing == 1


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


def test_a_call_without_tensors_has_none() -> None:
    model = Lambda(lambda x: None)
    with hs.capture(model, kinds=("output", "grad_output")) as c:
        model(torch.ones(1))
    assert c["", "output"] == c["", "grad_output"] == [None]


def test_integers_are_captured_too() -> None:
    model = nn.Embedding(5, 2)
    with hs.capture(model, kinds=("input", "grad_input")) as c:
        model(torch.tensor([1, 4]))
    assert same(c["", "input"], [torch.tensor([1, 4])])
    assert c["", "grad_input"] == [None]


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
        hs.capture(network()).by_key  # noqa: B018


# A tensor


def test_the_gradients_of_a_tensor_in_the_middle_of_a_graph() -> None:
    x = torch.tensor([[1.0], [2.0]], requires_grad=True)
    y = x + 2
    with hs.capture(y) as c:
        with pytest.raises(RuntimeError, match=r"grads: no gradient came yet, expected a backward"):
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
    with pytest.raises(RuntimeError, match="grads: none could be taken: layout sparse_coo"):
        c.grads  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": torch.ones(2)}, "source: requires no gradient; expected a tensor that req"),
        ({"include": "0"}, "include = '0': expected None, source being a tensor"),
        ({"exclude": nn.ReLU}, "exclude = .*: expected None, source being a tensor"),
        ({"key": print}, "key = .*: expected None, source being a tensor"),
        ({"kinds": ("input",)}, r"kinds = \('input',\): source is a tensor, expected none"),
    ],
)
def test_bad_arguments_for_a_tensor(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hs.capture(**({"source": torch.ones(2, requires_grad=True)} | arguments))


# What is kept


def test_a_clone_does_not_change_with_its_tensor() -> None:
    def zero(gradient: Tensor) -> None:  # as one should not
        gradient.zero_()

    model = nn.Conv2d(1, 1, 1, bias=False)
    with hs.capture(model) as c:
        y = model(torch.ones(1, 1, 2, 2))
        expected = y.detach().clone()
        y.register_hook(zero)
        (y.clone() * torch.arange(4.0).view(1, 1, 2, 2)).sum().backward()
        assert model.weight.grad is not None
        assert not model.weight.grad.any()  # the hook did it
        y.detach().zero_()
    assert same(c["", "output"], [expected])
    assert same(c["", "grad_output"], [torch.arange(4.0).view(1, 1, 2, 2)])


def test_without_a_clone_the_memory_is_the_tensors_own() -> None:
    model = nn.Linear(3, 3)
    with hs.capture(model, kinds=("output",), clone=False) as c:
        y = model(torch.ones(2, 3))
        (kept,) = c["", "output"]
        assert kept.data_ptr() == y.data_ptr()
        assert kept.grad_fn is None
        y.detach().zero_()
    assert not kept.any()


def test_a_device_of_choice() -> None:
    model = nn.Linear(3, 3)
    y = torch.ones(1)
    with hs.capture(model, kinds=("output",), device="meta") as c:  # the other one there is
        y = model(torch.ones(2, 3))
    assert c["", "output"][0].device.type == "meta"
    assert c["", "output"][0].shape == y.shape
    with hs.capture(model, kinds=("output",), device="cpu") as c:
        y = model(torch.ones(2, 3))
    assert c["", "output"][0].data_ptr() != y.data_ptr()


def test_layouts_are_kept_and_expanded_gradients_are_filled() -> None:
    model = nn.Conv2d(2, 3, 1).to(memory_format=torch.channels_last)
    with hs.capture(model) as c:
        y = model(torch.randn(2, 2, 4, 4).to(memory_format=torch.channels_last))
        y.sum().backward()
    assert c["", "output"][0].stride() == y.stride()
    gradient = c["", "grad_output"][0]
    gradient[0, 0, 0, 0] = 2.0  # every element has memory of its own
    assert gradient.sum() == y.numel() + 1


# Reading


def test_reading_before_a_forward() -> None:
    c = hs.capture(network())
    for read in (lambda: c["0", "output"], lambda: c.calls("0"), lambda: c.grid("0")):
        with pytest.raises(KeyError, match="'0' has no call that ended yet: expected a forward"):
            read()
    assert c.calls() == []
    assert list(c) == []
    c.close()
    c = hs.capture(network(), kinds=("input",))
    with pytest.raises(KeyError, match="'0' was not called yet: expected a forward"):
        c["0", "input"]
    c.close()


def test_reading_after_a_forward_that_raised() -> None:
    model = nn.Linear(3, 2)
    with hs.capture(model) as c:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(1, 5))
        with pytest.raises(KeyError, match="'' has no call that ended yet"):
            c["", "output"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("1.con", "output"), r"'1\.con', 'output'\) is not captured: did you mean '1\.conv'\?"),
        (
            ("1.conv", "grad_outptu"),
            r"has the kinds 'output', 'grad_output'; did you mean 'grad_output'\?",
        ),
        (
            ("1.conv", "input"),
            r"is not captured: '1\.conv' has the kinds 'output', 'grad_output'\W+$",
        ),
        (("9", "output"), "2 names, such as '0', '1.conv'"),
        ("0", r"'0': expected \(name, kind\), two strings"),
    ],
)
def test_a_key_that_is_not_there(key: Any, message: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Sequential())
    model[1].add_module("conv", nn.Identity())
    with hs.capture(model) as c:
        model(torch.ones(1, 2))
        with pytest.raises(KeyError, match=message):
            c[key]
    with pytest.raises(KeyError, match=r"'0\.x' is not captured: 2 names"):
        c.calls("0.x")


def test_a_kind_that_is_not_captured_is_no_attribute_of_a_call() -> None:
    model = nn.Tanh()
    with hs.capture(model, kinds=("output",)) as c:
        model(torch.ones(1))
    (call,) = c.calls("")
    with pytest.raises(AttributeError, match=r"grad_input: not captured, expected .*\('output',\)"):
        call.grad_input  # noqa: B018
    assert repr(call) == "CapturedCall('', 0, output=[1])"


def test_a_capture_says_what_it_has() -> None:
    model = network()
    with hs.capture(model, kinds=("output",)) as c:
        model(torch.ones(1, 1, 4, 4))
    assert repr(c) == "Capture(4 modules, kinds=('output',), 4 calls, 108 bytes, 0 dropped)"
    assert c.nbytes == 108


def test_captured_tensors_can_be_saved() -> None:
    model = network()
    with hs.capture(model, kinds=("output",)) as c:
        model(torch.ones(1, 1, 4, 4))
    file = io.BytesIO()
    torch.save(dict(c), file)
    file.seek(0)
    loaded = torch.load(file)
    assert same(loaded["0", "output"], c["0", "output"])
    again = copy.deepcopy(c.calls("0")[0])
    assert torch.equal(again.output, c["0", "output"][0])


# Beginning and end


def test_close_leaves_no_trace() -> None:
    model = network()
    before = {name: dict(m._forward_hooks) for name, m in model.named_modules()}
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    c = hs.capture(model, kinds=MODULE_KINDS)
    loss = model(x).sum()
    c.close()
    c.close()
    loss.backward()
    model(x)
    for name, module in model.named_modules():
        assert dict(module._forward_hooks) == before[name]
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_with_kwargs
        assert not module._forward_pre_hooks_with_kwargs
    assert not x._backward_hooks
    assert len(c["0", "output"]) == 1
    assert c["0", "grad_output"] == c["0", "grad_input"] == [None]
    with pytest.raises(ValueError, match="the capture is closed: expected an open one"), c:
        pass


def test_an_error_in_the_block_closes_the_capture() -> None:
    model = network()
    with pytest.raises(ZeroDivisionError), hs.capture(model):
        raise ZeroDivisionError
    assert not model[0]._forward_hooks


def test_a_capture_that_nobody_holds_captures_nothing() -> None:
    gc.collect()
    before = sum(type(one) is hs.CapturedCall for one in gc.get_objects())
    model = network()
    hs.capture(model, kinds=MODULE_KINDS)
    loss = model(torch.ones(1, 1, 4, 4)).sum()
    assert sum(type(one) is hs.CapturedCall for one in gc.get_objects()) == before
    loss.backward()


def test_clear_begins_again() -> None:
    model = network()
    with hs.capture(model, calls=2) as c:
        for _ in range(3):
            for _ in range(5):
                model(torch.randn(1, 1, 4, 4))
            assert len(c.calls("0")) == 2
            assert c.dropped == 4 * 3
            loss = model(torch.randn(1, 1, 4, 4)).sum()
            c.clear()
            assert (c.nbytes, c.dropped, c.calls()) == (0, 0, [])
            loss.backward()  # of a call that was forgotten
            assert c.nbytes == 0
        assert {row.forwards for row in c.coverage()} == {0}


def test_copies_of_a_captured_model_are_not_captured() -> None:
    model = network()
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            twin(torch.ones(1, 1, 4, 4)).sum().backward()
            assert {type(hook) for hook in twin[0]._forward_hooks.values()} == {Inert}
        assert c.calls() == []


def copies(value: Any) -> list[Any]:
    return [copy.deepcopy(value), pickle.loads(pickle.dumps(value))]


def test_copies_of_a_model_that_holds_its_capture() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.c = hs.capture(self.fc, key=lambda name, module: name)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(x)
            return y

    model = Holder()
    x = torch.ones(1, 3)
    model(x).sum().backward()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    assert (twin.c.calls(), list(twin.c), twin.c.nbytes, twin.c.dropped) == ([], [], 0, 0)
    assert len(model.c.calls()) == 2
    for c in (twin.c, *copies(model.c)):
        with pytest.raises(ValueError, match="the capture is closed"), c:
            pass
        c.close()


def test_copies_of_a_tensors_capture() -> None:
    y = torch.ones(2, requires_grad=True) * 1
    with hs.capture(y) as c:
        for twin in copies(c):
            y.sum().backward(retain_graph=True)
            with pytest.raises(RuntimeError, match="grads: no gradient came yet"):
                twin.grads  # noqa: B018
            twin.close()
    assert len(c.grads) == 2


def test_two_captures_of_a_model_do_not_see_each_other() -> None:
    model = network()
    with hs.capture(model) as a, hs.capture(model, kinds=("output",)) as b, hs.watch(model) as w:
        model(torch.ones(1, 1, 4, 4)).sum().backward()
        w.step()
        assert w.latest["0", "output"].count.sum() == a["0", "output"][0].numel()
    assert same(a["0", "output"], b["0", "output"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "resnet"}, r"source = 'resnet': expected a torch.nn.Module or a torch.Tensor"),
        ({"include": "1.*"}, r"include = '1\.\*'.*nothing is left to capture.*which has '0', '1'"),
        ({"include": "*.weight"}, r"include = '\*\.weight'.*nothing is left to capture"),
        ({"exclude": "*"}, r"include = None, exclude = '\*': nothing is left"),
        ({"include": 3}, "include = 3: expected a glob"),
        ({"include": ["0", "l"]}, r"include has 'l': expected a module of Sequential, such as '0'"),
        ({"include": ("0", ["0.weigth"])}, r"include has '0\.weigth': .* such as '0'"),
        ({"kinds": ()}, r"kinds = \(\): expected one or more of input, grad_input, output, grad_o"),
        ({"kinds": "output"}, "kinds = 'output': expected one or more"),
        (
            {"kinds": ("param_grad",)},
            r"kinds has 'param_grad': expected some of .*; for a parameter's gradient, capture\(",
        ),
        ({"key": 3}, r"key = 3: expected a function \(name, module\) -> hashable"),
        ({"key": lambda name, m: ([],)}, r"key: \(\[\],\) for '0', expected it to be hashable"),
        ({"clone": 1}, "clone = 1: expected True or False"),
        ({"device": "gpu"}, "device = 'gpu': expected a torch.device or its name"),
        ({"device": 3.5}, "device = 3.5: expected a torch.device or its name"),
        ({"calls": 0}, "calls = 0: expected an integer, 1 or more, or None"),
        ({"calls": True}, "calls = True: expected an integer"),
        ({"max_bytes": 1.5}, "max_bytes = 1.5: expected an integer, 1 or more, or None"),
        ({"seed": "a"}, "seed = 'a': expected an integer"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(ValueError, match=f"^{message}"):
        hs.capture(**({"source": model} | arguments))
    assert not any(module._forward_hooks for module in model.modules())
