"""capture: what is kept of a tensor, and how it is read."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from support.expected import same
from support.modules import convolutional
from torch import Tensor, nn

import hookstats as hs

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
