"""The C++ hooks: that they serve, that Python is spared, and what happens where they do not fit."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.modules import Lambda
from support.paths import ROOT
from torch import Tensor, nn

from hookstats import LinearBins, StepRecord
from hookstats.hooks import modules as hooks
from hookstats.hooks.coverage import SiteCoverage
from hookstats.hooks.sites import Site
from hookstats.kernels import native
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch


def test_the_cpp_hooks_are_built() -> None:
    assert native.hooks is not None, native.why_not
    module = nn.Linear(2, 2)
    with watch(module):
        assert native.hooks.ModuleHook in map(type, module._forward_hooks.values())


class Nested(nn.Module):
    """Outputs of every kind of container."""

    @dataclass
    class Data:
        value: Tensor
        note: str
        more: Any = None

    class View(Mapping[str, Tensor]):
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __getitem__(self, key: str) -> Tensor:
            return self.x * 2

        def __iter__(self) -> Iterator[str]:
            return iter(["odd key", "even"])

        def __len__(self) -> int:
            return 2

    Point = namedtuple("Point", "x y")

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        ordered = OrderedDict(a=x + 1, b=x + 2)
        ordered.move_to_end("a")
        return (
            x * 2,
            [x * 3, None, "text", 4, 5.0],
            {"k": x * 4, 7: (x * 5,), "two words": x * 6},
            ordered,
            self.Data(x * 7, "note", [x * 8]),
            self.View(x),
            self.Point(x * 9, y=x * 10),
            (),
            y,
        )


def flatten(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif isinstance(value, Nested.Data):
        value = [value.value, value.more]
    items = value if isinstance(value, (tuple, list)) else []
    return [tensor for item in items for tensor in flatten(item)]


def test_every_container_is_taken_apart_as_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[list[Any], list[list[float]]]:
        torch.manual_seed(0)
        module = nn.Sequential(Nested())
        with watch(module, kinds=("input", "output", "grad_output")) as w:
            for _ in range(3):
                x = torch.randn(2, 3, requires_grad=True)
                total = sum(leaf.sum() for leaf in flatten(module[0](x, y=x + 1)))
                assert isinstance(total, Tensor)
                total.backward()
                w.step()
            means = [w.latest[key].mean.tolist() for key in w.latest]
            return list(w.coverage()), means

    fast = run()
    monkeypatch.setattr(native, "hooks", None)
    slow = run()
    assert fast == slow
    assert [row.kind for row in fast[0] if row.kind.startswith("output")] == [
        "output",
        "output[1][0]",
        "output[2].k",
        "output[2][7][0]",
        "output[2]['two words']",
        "output[3].b",
        "output[3].a",
        "output[4].value",
        "output[4].more[0]",
        "output[5]['odd key']",
        "output[5].even",
        "output[6].x",
        "output[6].y",
        "output[8]",
    ]


def convolutional_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5)
    )


def train(model: nn.Module, close_step: Callable[[], object], steps: int) -> None:
    for _ in range(steps):
        model(torch.randn(2, 3, 6, 6)).square().mean().backward()
        close_step()


def test_python_is_left_alone_once_the_sites_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutional_network()
    with watch(model, kinds=("input", "grad_input", "output", "grad_output")) as w:
        train(model, w.step, 1)

        def forbidden(*args: object, **kwargs: object) -> None:
            raise AssertionError("Python was asked")

        for name in ("receive", "observe", "accumulate", "_adapt"):
            monkeypatch.setattr(Site, name, forbidden)
        monkeypatch.setattr(hooks.ModuleHook, "_observe", forbidden)
        train(model, w.step, 2)
        for row in w.coverage():
            assert row.forwards == row.observed + sum(row.skipped.values()) == 3
            assert row.missing == 0


def test_results_are_those_of_the_python_hooks_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> tuple[StepRecord, list[SiteCoverage]]:
        torch.manual_seed(0)
        model = convolutional_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with watch(model, optimizer, kinds=KINDS, channel_bins=LinearBins(9, -1, 1)) as w:
            train(model, optimizer.step, 4)
            return w.latest, list(w.coverage())

    fast, fast_coverage = run()
    monkeypatch.setattr(native, "hooks", None)
    slow, slow_coverage = run()
    assert fast_coverage == slow_coverage
    assert fast.sites == slow.sites
    assert np.array_equal(fast.observed, slow.observed)
    for ours, theirs in ((fast.tensors, slow.tensors), (fast.channels, slow.channels)):
        assert ours is not None
        assert theirs is not None
        assert np.array_equal(ours.moments, theirs.moments)
        assert np.array_equal(ours.tallies, theirs.tallies)
        for part in ("offsets", "slots", "counts"):
            assert np.array_equal(getattr(ours.hist, part), getattr(theirs.hist, part)), part


def test_other_threads_run_during_a_large_kernel() -> None:
    model = nn.Identity()
    x = torch.randn(1 << 24)
    ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0)

    thread = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    with watch(model, kinds=("output",), include="", channel_dim=None):
        model(x)
        try:
            sys.setswitchinterval(100.0)  # the GIL changes hands only where it is given up
            thread.start()
            while not ticks:
                time.sleep(0.001)
            before = ticks
            model(x)
            assert ticks > before
        finally:
            done.set()
            sys.setswitchinterval(interval)
            thread.join()


@contextmanager
def once_the_gil_is_given_up(act: Callable[[], None]) -> Iterator[None]:
    """Another thread calls `act` as soon as the body gives the GIL up."""
    waits, go = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        go.wait()
        act()

    thread = threading.Thread(target=wait)
    interval = sys.getswitchinterval()
    gc.disable()  # what other tests left may give the GIL up as it is deleted
    try:
        thread.start()
        waits.wait()
        sys.setswitchinterval(100.0)  # the GIL changes hands only where it is given up
        go.set()
        yield
    finally:
        gc.enable()
        go.set()
        sys.setswitchinterval(interval)
        thread.join()


def swap(x: Tensor) -> None:
    torch.utils.swap_tensors(x, torch.zeros(1))


def replace(x: Tensor) -> None:
    x.data = torch.zeros(1)


LARGE = 1 << 25  # its memory goes back to the system as soon as nobody has it
ROUNDS = 4  # the other thread may come too late for one


@pytest.mark.parametrize("change", [swap, replace])
def test_a_tensor_may_lose_its_memory_during_a_large_kernel(
    change: Callable[[Tensor], None], one_thread: None
) -> None:
    model = nn.Identity()
    with watch(model, kinds=("output",), include="", channel_dim=None) as w:
        model(torch.ones(LARGE))
        w.step()
        for _ in range(ROUNDS):
            x = torch.ones(LARGE)
            with once_the_gil_is_given_up(partial(change, x)):
                model(x)
            w.step()
            assert w.latest["", "output"].mean == 1.0
            assert x.shape == (1,)


def test_a_tensor_may_change_during_the_kernel_of_the_one_before(one_thread: None) -> None:
    model = Lambda(lambda *tensors: tensors)
    for _ in range(100):  # on a busy machine the other thread may come too late
        with watch(model, kinds=("output",), include="", channel_dim=None) as w:
            model(torch.ones(LARGE), torch.ones(LARGE))
            x, other = torch.ones(LARGE), torch.ones(LARGE)
            with once_the_gil_is_given_up(lambda other=other: replace(other)):
                model(x, other)
            assert w.coverage()["", "output"].observed == 2
            coverage = w.coverage()["", "output[1]"]
            if coverage.skipped:
                break
            assert coverage.observed == 2
    assert (coverage.observed, coverage.skipped) == (1, {"changed by another thread": 1})


@pytest.mark.parametrize("change", [swap, replace])
def test_a_tensor_may_change_while_a_hook_waits_for_the_lock(
    change: Callable[[Tensor], None],
) -> None:
    model = nn.Identity()
    with watch(model, kinds=("output", "grad_output"), include="", channel_dim=None) as w:
        model(torch.ones(9))
        x = torch.ones(9)
        holds, lock = threading.Event(), w._buffers.lock

        def hold() -> None:
            with lock:
                holds.set()
                time.sleep(0.1)
                change(x)

        thread = threading.Thread(target=hold)
        thread.start()
        holds.wait()
        model(x)
        thread.join()
        assert x.shape == (1,)
        assert w.coverage()["", "output"].observed == 2


class Still(torch.optim.Optimizer):
    """Changes nothing: torch's own kernels crash where another thread takes their memory away."""

    def step(self, closure: object = None) -> None:
        pass


@pytest.mark.parametrize("kind", ["param", "param_grad"])
def test_a_parameter_may_lose_its_memory_during_a_kernel(kind: str, one_thread: None) -> None:
    shape = (LARGE >> 12, 1 << 12)
    model = nn.Linear(shape[1], shape[0], bias=False)
    optimizer = Still(model.parameters(), {})
    x = model.weight
    x.data = torch.ones(shape)
    if kind == "param_grad":
        x = model.weight.grad = torch.ones(shape)

    def change() -> None:
        x.data = torch.ones(1).expand(shape)

    with watch(model, optimizer, kinds=(kind,), channel_dim=None) as w:
        optimizer.step()
        for _ in range(ROUNDS):
            x.data = torch.ones(shape)
            with once_the_gil_is_given_up(change):
                optimizer.step()
            assert (w.latest["weight", kind].mean == 1.0).all()
            assert x.stride() == (0, 0)


def test_a_graph_outlives_its_watch() -> None:
    model = convolutional_network()
    w = watch(model)
    train(model, w.step, 1)
    loss = model(torch.randn(2, 3, 6, 6)).sum()
    weight = model[0].weight
    del w, model
    gc.collect()
    loss.backward()
    assert weight.grad is not None


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


STEP = """
import torch, hookstats
model = torch.nn.Linear(2, 3)
with hookstats.watch(model) as w:
    model(torch.ones(4, 2)).sum().backward()
    w.step()
    print(hookstats.kernels.native.hooks, w.latest["", "grad_output"].mean.tolist())
"""


@pytest.mark.check
def test_hooks_for_another_torch_are_not_loaded_and_python_serves(tmp_path: Path) -> None:
    package = tmp_path / "hookstats"
    shutil.copytree(ROOT / "hookstats", package, ignore=shutil.ignore_patterns("__pycache__"))
    (library,) = package.glob("_hooks*.so")
    version = str(native.made_for())
    other = "9" * (len(version) - 4) + ".9.9"
    made_for = "hookstats hooks for torch "
    content = library.read_bytes()
    assert content.count((made_for + version).encode()) == 1
    library.write_bytes(content.replace((made_for + version).encode(), (made_for + other).encode()))
    elsewhere = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    done = python(elsewhere + STEP + "print('hookstats._hooks' in sys.modules)")
    assert done.stdout == "None [1.0, 1.0, 1.0]\nFalse\n", done.stderr
    assert done.stderr.count("no C++ hooks") == 1
    assert f"they are for torch {other}, not {torch.__version__}; run `pip inst" in done.stderr
    assert "make clean build" in done.stderr


@pytest.mark.check
def test_of_the_hooks_in_a_wheel_those_for_this_torch_serve(tmp_path: Path) -> None:
    package = tmp_path / "hookstats"
    shutil.copytree(ROOT / "hookstats", package, ignore=shutil.ignore_patterns("__pycache__"))
    (library,) = package.glob("_hooks*.so")
    minor = "_".join(torch.__version__.split(".")[:2])
    for folder in (f"torch_{minor}", "torch_9_9"):
        (package / folder).mkdir()
    shutil.copy(library, package / f"torch_{minor}")
    (package / "torch_9_9" / library.name).write_bytes(b"not read")
    library.write_bytes(b"built for another torch, and not read")
    done = python(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n" + STEP)
    assert f"hookstats/torch_{minor}/_hooks" in done.stdout, done.stderr
    assert done.stdout.endswith("[1.0, 1.0, 1.0]\n")
    assert "C++ hooks" not in done.stderr


@pytest.mark.check
def test_hooks_that_cannot_be_loaded_are_named_and_python_serves() -> None:
    done = python("import sys\nsys.modules['hookstats._hooks'] = None\n" + STEP)
    assert done.stdout == "None [1.0, 1.0, 1.0]\n", done.stderr
    assert done.stderr.count("hookstats: warning: no C++ hooks") == 1


@pytest.mark.check
def test_python_hooks_can_be_asked_for() -> None:
    done = python(STEP, "-Werror", HOOKSTATS_HOOKS="python")
    assert done.stdout == "None [1.0, 1.0, 1.0]\n", done.stderr
