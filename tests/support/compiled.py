"""Training runs of watched models under torch.compile, and their comparison with eager ones."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import SGD

from hookstats._torch import can_save_without_version
from hookstats.hooks.coverage import SiteCoverage
from hookstats.records.record import StepRecord
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

MARKS = [
    pytest.mark.usefixtures("inductor_cache"),
    # Warnings of torch about itself.
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
]
"""Of a test module that compiles."""

needs_gradients = pytest.mark.skipif(
    not can_save_without_version(),
    reason="this torch's compiled code records no gradients, see docs/compatibility.md",
)

HOOKED = ("input", "grad_input", "output", "grad_output")


class Block(nn.Module):
    """A view that is changed in place, and a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        return self.relu(self.first(x * 2))


def dropout_network() -> nn.Module:
    """Takes values of (..., 3); the same parameters every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2, inplace=True), Block(), nn.Linear(4, 2))


def data() -> Tensor:
    """An input of `dropout_network`."""
    return torch.randn(2, 5, 3)


class Training(NamedTuple):
    """What came of a training run."""

    watch: Watch | None
    records: list[StepRecord]
    parameters: list[Tensor]
    graphs: int
    """That dynamo compiled."""

    def coverage(self) -> dict[tuple[str, str], SiteCoverage]:
        """By name and kind of the site."""
        assert self.watch is not None
        return {(row.name, row.kind): row for row in self.watch.coverage()}


def train(
    model: nn.Module,
    backend: str | None,
    watched: bool = True,
    inputs: Callable[[], Tensor] = data,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    loss: Callable[[Any], Tensor] = lambda y: y.square().sum(),
    steps: int = 2,
    settings: dict[str, Any] | None = None,
    **compile_settings: Any,
) -> Training:
    """Train `model`, compiled unless the backend is None."""
    torch._dynamo.reset()
    settings = {"kinds": (*HOOKED, "param_grad"), **(settings or {})}
    optimizer = SGD(model.parameters(), lr=0.01)
    w = watch(model, optimizer, **settings) if watched else None
    counter = CompileCounterWithBackend(backend or "eager")
    call: Any = model
    if backend is not None:
        call = torch.compile(model, backend=counter, **{"fullgraph": True, **compile_settings})
    torch.manual_seed(1)
    records = []
    for _ in range(steps):
        optimizer.zero_grad()
        with around():
            y = call(inputs())
        value = loss(y)
        if value.requires_grad:
            value.backward()
        optimizer.step()
        if w is not None:
            records.append(w.latest)
    parameters = [p.detach().clone() for p in model.parameters()]
    return Training(w, records, parameters, counter.frame_count)


def assert_same(got: StepRecord, expected: StepRecord, shapes: bool = True) -> None:
    """The same sites and counts, moments up to rounding; gradients may come in another order."""
    assert sorted(got.keys()) == sorted(expected.keys())
    observed = dict(zip(expected.keys(), expected.observed, strict=True))
    infos = {(info.name, info.kind): info for info in expected.sites}
    for info, count in zip(got.sites, got.observed, strict=True):
        key = info.name, info.kind
        assert count == observed[key], key
        assert not shapes or info == infos[key]
        assert torch.equal(got[key].tallies, expected[key].tallies), key
        torch.testing.assert_close(
            got[key].moments, expected[key].moments, rtol=1e-4, atol=1e-5, msg=str(key)
        )


def bits(tensors: list[Tensor]) -> list[bytes]:
    """To compare values by, NaN and the sign of zero included."""
    return [tensor.numpy().tobytes() for tensor in tensors]


class Small(nn.Module):
    """One site."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


def left_by_close() -> list[str]:
    """What is left of a watch of a compiled model once it is closed and deleted."""
    model = Small()
    before = set(globals())
    w = watch(model)
    call = torch.compile(model, fullgraph=True, backend="aot_eager")
    call(data()).sum().backward()
    w.step()
    w.close()
    # Where dynamo leaves constants of what it traces, beside modules and functions by name.
    left = [
        name
        for name, value in globals().items()
        if name not in before and type(value).__module__.startswith("hookstats")
    ]
    linear: Any = model.linear
    left += ["hooks"] * bool(linear._forward_hooks)
    alive: dict[str, weakref.ref[Any]] = {
        "watch": weakref.ref(w),
        "buffers": weakref.ref(w._buffers),
        "model": weakref.ref(model),
    }
    del w, model, linear, call
    for _ in range(20):  # other threads may hold the last reference for a moment
        gc.collect()
        if not any(found() for found in alive.values()):
            break
        time.sleep(0.1)
    return left + [name for name, found in alive.items() if found() is not None]


def ours(warnings: pytest.WarningsRecorder) -> list[str]:
    """The warnings that hookstats gave."""
    texts = [str(one.message) for one in warnings]
    return [text for text in texts if "hookstats" in text]
