"""capture: the tensors of every call, by name, kind, path and key; how many stay, and how long."""

from __future__ import annotations

import copy
import gc
import io
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.expected import same
from support.modules import Lambda, convolutional
from torch import Tensor, nn

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.tensors.recorder import Limits, Recorder

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
    c = hs.capture(convolutional())
    for read in (lambda: c["0", "output"], lambda: c.calls("0"), lambda: c.grid("0")):
        with pytest.raises(KeyError, match="'0' has no call that ended yet: expected a forward"):
            read()
    assert c.calls() == []
    assert list(c) == []
    c.close()
    c = hs.capture(convolutional(), kinds=("input",))
    with pytest.raises(KeyError, match="'0' was not called yet: expected a forward"):
        c["0", "input"]
    c.close()


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
    model = convolutional()
    with hs.capture(model, kinds=("output",)) as c:
        model(torch.ones(1, 1, 4, 4))
    assert repr(c) == "Capture(4 modules, kinds=('output',), 4 calls, 108 bytes, 0 dropped)"
    assert c.nbytes == 108


def test_captured_tensors_can_be_saved() -> None:
    model = convolutional()
    with hs.capture(model, kinds=("output",)) as c:
        model(torch.ones(1, 1, 4, 4))
    file = io.BytesIO()
    torch.save(dict(c), file)
    file.seek(0)
    loaded = torch.load(file)
    assert same(loaded["0", "output"], c["0", "output"])
    again = copy.deepcopy(c.calls("0")[0])
    assert torch.equal(again.output, c["0", "output"][0])


def kept(calls: int | None, total: int, seed: int = 0, max_bytes: int | None = None) -> list[int]:
    """Which of `total` calls of 8 bytes each are kept."""
    recorder = Recorder(("output",), Limits(calls=calls, seed=seed, max_bytes=max_bytes))
    for _ in range(total):
        call = recorder.begin("")
        if call is not None:
            call.add("output", "", recorder.take(call, torch.ones(2)))
    return [call.index for call in recorder.kept()]


@pytest.mark.parametrize("total", [0, 3, 4, 5, 100])
def test_no_more_calls_are_kept_than_asked_for(total: int) -> None:
    indices = kept(4, total)
    assert len(indices) == min(total, 4)
    assert indices == sorted(set(indices))


def test_the_sample_is_uniform() -> None:
    total, size, runs = 12, 3, 3000
    counts = Counter(index for seed in range(runs) for index in kept(size, total, seed))
    # Binomial: 750 of 3000, with a standard deviation of 24.
    assert all(abs(counts[i] - runs * size / total) < 5 * 24 for i in range(total))


def test_the_sample_is_its_seeds() -> None:
    assert kept(4, 100, seed=1) == kept(4, 100, seed=1) != kept(4, 100, seed=2)


def test_modules_called_equally_often_keep_the_same_calls() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with hs.capture(model, calls=5) as c:
        for i in range(50):
            model(torch.full((1, 2), float(i))).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    indices = [call.index for call in c.calls("0")]
    assert indices == [call.index for call in c.calls("1")]
    assert max(indices) > 5
    assert c.dropped == 2 * 45
    for call, output in zip(c.calls("1"), c["0", "output"], strict=True):
        assert torch.equal(call.output, output.tanh())
        assert call.grad_output is not None
    rows = {(row.name, row.kind): row for row in c.coverage()}
    row = rows["1", "output"]
    assert (row.forwards, row.observed, row.skipped) == (50, 5, {"not sampled": 45})


def test_beyond_max_bytes_the_oldest_calls_are_dropped() -> None:
    assert kept(None, 10, max_bytes=24) == [7, 8, 9]
    assert kept(None, 10, max_bytes=31) == [7, 8, 9]
    assert kept(None, 10, max_bytes=7) == []


def test_of_a_sample_that_does_not_fit_the_newest_calls_are_kept() -> None:
    for seed in range(200):
        assert kept(3, 12, seed, max_bytes=16) == kept(3, 12, seed)[-2:]


def test_bytes_count_forward_and_backward_of_all_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    with hs.capture(model, max_bytes=100) as c:  # 32 bytes an output or gradient
        y = model(torch.ones(2, 4))
        assert c.nbytes == 96
        y.sum().backward()
        # For the gradient of "2" the oldest call went, for that of "1" its own call: the oldest.
        assert [call.name for call in c.calls()] == ["2"]
        assert c.nbytes == 64
    assert c.dropped == 2
    rows = {(row.name, row.kind): row for row in c.coverage()}
    assert rows["0", "output"].skipped == {"max_bytes": 1}
    assert rows["0", "grad_output"].skipped == {"max_bytes": 1}
    assert rows["2", "grad_output"].observed == 1
    assert c["0", "output"] == []


def test_a_call_that_is_too_large_is_dropped_alone() -> None:
    model = nn.Identity()
    with hs.capture(model, kinds=("output",), max_bytes=40) as c:
        for n in (4, 100, 5):
            model(torch.ones(n))
    assert [len(tensor) for tensor in c["", "output"]] == [4, 5]
    assert c.dropped == 1


def test_no_hook_waits_for_the_gradients_of_a_call_that_was_dropped() -> None:
    model = nn.Linear(2, 2)
    with hs.capture(model, max_bytes=12) as c:
        y = model(torch.ones(1, 2))
        z = model(torch.ones(1, 3, 2)[:, :2])
        assert y._backward_hooks
        assert not z._backward_hooks
    assert c.dropped == 1


def test_a_call_that_was_dropped_stays_readable_by_whoever_has_it() -> None:
    model = nn.Linear(2, 2)
    with hs.capture(model, max_bytes=16) as c:
        y = model(torch.ones(1, 2))
        (call,) = c.calls("")
        model(torch.zeros(1, 2))
        model(torch.zeros(1, 2))
        y.sum().backward()
    assert torch.equal(call.output, y)
    assert call.leaves("grad_output") == {"": "missing"}  # it came too late
    assert c.nbytes == 16


def test_close_leaves_no_trace() -> None:
    model = convolutional()
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
    model = convolutional()
    with pytest.raises(ZeroDivisionError), hs.capture(model):
        raise ZeroDivisionError
    assert not model[0]._forward_hooks


def test_a_capture_that_nobody_holds_captures_nothing() -> None:
    gc.collect()
    before = sum(type(one) is hs.CapturedCall for one in gc.get_objects())
    model = convolutional()
    hs.capture(model, kinds=MODULE_KINDS)
    loss = model(torch.ones(1, 1, 4, 4)).sum()
    assert sum(type(one) is hs.CapturedCall for one in gc.get_objects()) == before
    loss.backward()


def test_clear_begins_again() -> None:
    model = convolutional()
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
    model = convolutional()
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            twin(torch.ones(1, 1, 4, 4)).sum().backward()
            hooks = [*twin[0]._forward_hooks.values(), *twin[0]._forward_pre_hooks.values()]
            assert not any("hookstats" in str(hook) for hook in hooks)
        assert c.calls() == []


def test_two_captures_of_a_model_do_not_see_each_other() -> None:
    model = convolutional()
    with hs.capture(model) as a, hs.capture(model, kinds=("output",)) as b, hs.watch(model) as w:
        model(torch.ones(1, 1, 4, 4)).sum().backward()
        w.step()
        assert w.latest["0", "output"].count.sum() == a["0", "output"][0].numel()
    assert same(a["0", "output"], b["0", "output"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "resnet"}, r"source = 'resnet': expected a torch.nn.Module or a torch.Tensor"),
        (
            {"include": "1.*"},
            r"include = '1\.\*'.*left to capture.*available in .*: '0', '1'",
        ),
        ({"include": "*.weight"}, r"include = '\*\.weight'.*nothing is left to capture"),
        ({"include": 3}, "include = 3: expected a glob"),
        ({"include": ["0", "l"]}, r"include has 'l': expected a module of Sequential, such as '0'"),
        ({"include": ("0", ["0.weigth"])}, r"include has '0\.weigth': .* such as '0'"),
        ({"kinds": ()}, r"kinds = \(\): expected one or more of input, grad_input, output, grad_o"),
        (
            {"kinds": ("param_grad",)},
            r"kinds has 'param_grad': expected some of .*; for a parameter's gradient, capture\(",
        ),
        ({"key": 3}, r"key = 3: expected a function \(name, module\) -> hashable"),
        ({"key": lambda name, m: ([],)}, "key: .*'list'.*; expected hashable values"),
        ({"clone": 1}, "clone = 1: expected True or False"),
        ({"device": "gpu"}, "device = 'gpu': expected a torch.device or its name"),
        ({"calls": 0}, "calls = 0: expected an integer, 1 or more, or None"),
        ({"max_bytes": 1.5}, "max_bytes = 1.5: expected an integer, 1 or more, or None"),
        ({"seed": "a"}, "seed = 'a': expected an integer"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    model = convolutional()
    with pytest.raises(ValueError, match=f"^{message}"):
        hs.capture(**({"source": model} | arguments))
    assert not any(module._forward_hooks for module in model.modules())
