"""capture: its beginning and its end, its copies, and the arguments that it refuses."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import pytest
import torch
from support.expected import same
from support.modules import convolutional

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS


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
    model = convolutional()
    with pytest.raises(ValueError, match=f"^{message}"):
        hs.capture(**({"source": model} | arguments))
    assert not any(module._forward_hooks for module in model.modules())
