"""A watch's beginning and end: what it refuses, and that nothing of it stays."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from support.modules import network
from torch import Tensor, nn
from torch.optim import SGD

from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def hook_dicts(model: nn.Module) -> list[dict[str, Any]]:
    """Copies of all hook dictionaries of all modules."""
    return [
        {name: dict(value) for name, value in vars(module).items() if name.endswith("_hooks")}
        | {"kwargs": dict(module._forward_pre_hooks_with_kwargs)}
        for module in model.modules()
    ]


def step_hooks(optimizer: torch.optim.Optimizer) -> list[dict[int, Any]]:
    return [
        dict(optimizer._optimizer_step_pre_hooks),
        dict(optimizer._optimizer_step_post_hooks),
    ]


def test_close_leaves_no_trace() -> None:
    model = network()
    model[0].register_forward_hook(lambda *args: None)
    model[1].register_forward_pre_hook(lambda m, a, k: None, with_kwargs=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = hook_dicts(model), step_hooks(optimizer)
    threads = threading.active_count()
    w = watch(model, optimizer, kinds=KINDS)
    assert hook_dicts(model) != before[0]
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    assert threading.active_count() == threads + 1
    loss = model(torch.randn(2, 3)).sum()
    w.close()
    w.close()
    assert (hook_dicts(model), step_hooks(optimizer)) == before
    assert threading.active_count() == threads
    loss.backward()
    assert w.latest.step == 0
    assert w.coverage().discarded == 6  # inputs, but for the first, are outputs: two of each...


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_close_leaves_no_trace_when_the_training_raised(where: str) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    before = hook_dicts(model), step_hooks(optimizer)

    def broken(*args: object) -> None:
        raise RuntimeError("of the user")

    def train() -> None:
        with watch(model, optimizer, kinds=KINDS):
            if where == "step":
                handles.append(optimizer.register_step_pre_hook(broken))
            y = model(torch.randn(2, 5 if where == "forward" else 3))
            if where == "backward":
                y.register_hook(broken)
            y.sum().backward()
            optimizer.step()

    handles: list[Any] = []
    with pytest.raises(RuntimeError):
        train()
    for handle in handles:
        handle.remove()
    assert (hook_dicts(model), step_hooks(optimizer)) == before


def test_a_closed_watch_says_so() -> None:
    w = watch(network())
    w.close()
    for use in (w.step, w.pause, w.resume, w.__enter__):
        with pytest.raises(ValueError, match="the watch is closed: expected an open one"):
            use()


class Unhookable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no hooks here")


def test_a_model_that_cannot_be_hooked_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Unhookable())
    before = hook_dicts(model)
    with pytest.raises(RuntimeError, match="no hooks here"):
        watch(model)
    assert hook_dicts(model) == before


@pytest.mark.parametrize("how", ["wrapper", "in place", "child"])
def test_a_compiled_model_is_refused(how: str) -> None:
    model: Any = network()
    if how == "wrapper":
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"model: .* is compiled"):
        watch(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet"}, r"model has 'resnet': expected a torch.nn.Module"),
        ({"optimizer": "sgd"}, r"optimizer has 'sgd': expected a torch.optim.Optimizer"),
        ({"optimizer": network().parameters()}, r"optimizer has <generator.*: expected"),
        ({"kinds": ()}, r"kinds = \(\): expected one or more of input, grad_input, .*param_grad"),
        ({"kinds": "output"}, r".* in a tuple; did you mean \('output',\)\?"),
        ({"out": b"run"}, r"out = b'run': expected a path, as a str or a pathlib.Path"),
        ({"out": "ru\0n"}, r"out = 'ru\\x00n': expected a path without NUL"),
        ({"kinds": ("grad_outputs",)}, r"kinds has 'grad_outputs': .*did you mean 'grad_output'\?"),
        (
            {"include": "1.*"},
            r"include = '1\.\*', exclude = None: nothing is left to watch.*Sequential.*'0'",
        ),
        ({"include": "0.wieght"}, r"include = '0\.wieght'.*available in .*: '0\.weight'"),
        (
            {"include": ["0", "0.wieght"]},
            r"include has '0\.wieght': expected a module or parameter of .*, such as '0\.weight'",
        ),
        (
            {"include": ["0", "0.weight"], "kinds": ("output",)},
            r"include has '0\.weight': expected a module of ",
        ),
        ({"exclude": "*"}, r"include = None, exclude = '\*': nothing is left"),
        ({"include": "*.weight", "kinds": ("output",)}, r"include.* kinds = \('output',\)"),
        ({"include": 3}, r"include = 3: expected a glob"),
        (
            {"bins": 64},
            r"bins = 64: expected LinearBins\(64, lo=-4.0, hi=4.0\), Log",
        ),
        ({"channel_dim": "last"}, r"channel_dim = 'last': expected"),
        ({"every": 0}, r'every = 0: expected "auto", or an integer'),
        ({"sinks": [3]}, r"sinks = \[3\]: expected a sequence of callables"),
        ({"max_bytes": "1"}, r"max_bytes = '1': expected an integer, 1 or more, or None"),
        ({"append": "no"}, r"append = 'no': expected True or False"),
        ({"overwrite": 1}, r"overwrite = 1: expected True or False"),
        ({"mesh": 3}, r"mesh = 3: expected a DeviceMesh with mesh_dim_names, or None"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(ValueError, match=f"^{message}"):
        watch(**{"model": model, **arguments})
    assert not any(module._forward_hooks for module in model.modules())
