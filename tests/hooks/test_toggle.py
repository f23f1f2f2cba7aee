"""Hooks go while nothing is recorded, and come back in their place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.compiled import needs_gradients
from support.modules import take_step
from torch import Tensor, nn

import hookstats as hs
from hookstats.hooks.toggle import HookToggle


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def hooked(model: nn.Module) -> list[bool]:
    """Which leaf modules take the longer way through their calls."""
    return [
        bool(module._forward_hooks or module._forward_pre_hooks)
        for module in model.modules()
        if next(module.children(), None) is None
    ]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        take_step(optimizer, model(torch.randn(8, 4)).sum())


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own: other tests of this one have compiled something."""
    monkeypatch.setattr("hookstats.hooks.toggle.has_compiled", lambda: False)


@pytest.mark.usefixtures("nothing_compiled")
def test_steps_that_are_not_recorded_have_no_hooks_on_leaves(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with hs.watch(model, optimizer, every=5, rules=()) as w:
        for _ in range(11):
            found.append(hooked(model))
            train(model, optimizer, 1)
        assert [all(each) for each in found] == [step % 5 == 0 for step in range(11)]
        assert [any(each) for each in found] == [step % 5 == 0 for step in range(11)]
        assert w.latest.step == 10
        assert all(row.observed == row.forwards == 3 for row in w.coverage())
    assert not any(hooked(model))


@pytest.mark.usefixtures("nothing_compiled")
def test_a_pause_has_no_hooks_and_what_follows_has_all(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, rules=()) as w:
        train(model, optimizer, 2)
        assert all(hooked(model))
        w.pause()
        assert not any(hooked(model))
        train(model, optimizer, 2)
        w.resume()
        train(model, optimizer, 1)
        assert all(hooked(model))
        assert w.latest.step == 4
        w.pause()
    w.close()
    assert not any(hooked(model))


@pytest.mark.usefixtures("nothing_compiled")
def test_hooks_of_others_keep_their_order_and_can_be_removed(model: nn.Module) -> None:
    layer, calls = model[0], list[str]()

    def says(name: str) -> Any:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            calls.append(name)

        return hook

    toggle = HookToggle()
    handle = layer.register_forward_hook(says("ours"))
    toggle.add(layer, [handle])
    toggle.set(False)
    later = layer.register_forward_hook(says("later"))
    toggle.set(False)
    toggle.set(True)
    model(torch.randn(2, 4))
    assert calls == ["ours", "later"]
    toggle.set(False)  # it is not alone
    assert len(layer._forward_hooks) == 2
    later.remove()
    another = layer.register_forward_hook(says("another of ours"))
    toggle.add(layer, [another])
    toggle.set(True)
    toggle.set(False)
    assert not layer._forward_hooks
    third = layer.register_forward_hook(says("third of ours"))
    toggle.add(layer, [third])
    toggle.set(True)
    model(torch.randn(2, 4))
    assert calls == ["ours", "later", "ours", "another of ours", "third of ours"]
    third.remove()
    another.remove()
    handle.remove()
    toggle.end()
    toggle.set(True)
    assert not layer._forward_hooks


@needs_gradients
def test_what_was_compiled_meanwhile_is_recorded(model: nn.Module) -> None:
    torch.compiler.reset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = hs.watch(model, optimizer, every=4, rules=())
    train(model, optimizer, 1)
    compiled = torch.compile(model, backend="eager")
    train(compiled, optimizer, 8)
    assert w.latest.step == 8
    assert all(row.observed == 3 for row in w.coverage())
    assert all(hooked(model))  # from the first code that is compiled on, hooks stay
    train(compiled, optimizer, 1)
    assert all(hooked(model))
    w.close()
    torch.compiler.reset()
