"""Tensors that Megatron Core names are recorded; a module of this file stands for Megatron's."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.paths import ROOT
from torch import Tensor, nn

import hookstats as hs

Observer = Callable[..., None]
Open = Callable[..., Any]

observers: list[tuple[Observer, frozenset[str]]] = []


@contextmanager
def capture_tensor_observations(observer: Observer, source_kinds: frozenset[str]) -> Iterator[None]:
    """Megatron's protocol: the innermost observer alone gets its kinds of tensors."""
    observers.append((observer, source_kinds))
    try:
        yield
    finally:
        observers.pop()


def tell(owner: object, name: str, kind: str, tensor: Tensor, *dims: int | None) -> None:
    for observer, kinds in observers[-1:]:
        if kind in kinds:
            observer(owner, name, kind, tensor, *dims)


class Layer(nn.Module):
    """Adds to the residual stream, and routes."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.out = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        tell(self.router, "router_logits", "router_logits", logits.detach(), 0, 0, 1)
        tell(self.router, "router_scores", "router_scores", logits.detach().softmax(-1), 0, 0, 1)
        return x + self.out(x).sin()


class Model(nn.Module):
    """Layers and logits that tensor parallelism divides, [sequence, batch, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.output_layer = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            before, x = x, layer(x)
            tell(layer, "residual_accumulator", "residual_accumulator", before, None, 0, 1)
            with torch.no_grad():
                tell(layer, "residual_contribution", "residual_contribution", x - before, None)
        logits: Tensor = self.output_layer(x)
        tell(self.output_layer, "output_logits", "output_logits", logits, -1, 0, 1)
        self.seen = logits.detach().double()
        tell(object(), "of another model", "output_logits", logits)
        return logits


class Wrapper(nn.Module):
    """As Megatron's Float16Module and DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 2, 6)).square().sum().backward()
    optimizer.step()


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    name = "megatron.core.tensor_observation"
    points: Any = ModuleType(name)
    points.capture_tensor_observations = capture_tensor_observations
    for package in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, name, points)
    from hookstats.integrations import megatron

    yield megatron.observe
    monkeypatch.delitem(sys.modules, megatron.__name__)


def test_tensors_have_their_modules_names_and_gradients(observe: Open) -> None:
    torch.manual_seed(0)
    model = Model()
    wrapped = Wrapper(Wrapper(model))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with hs.watch(wrapped, optimizer, every=1) as w, observe(wrapped):
        step(wrapped, optimizer)
        record = w.latest
    assert not observers
    named = {key for key in record if key[0].endswith(("accumulator", "_logits"))}
    assert named == {
        ("layers.0.residual_accumulator", "output"),  # the batch has no gradient
        ("layers.1.residual_accumulator", "output"),
        ("layers.1.residual_accumulator", "grad_output"),
        ("layers.0.router.router_logits", "output"),
        ("layers.1.router.router_logits", "output"),
        ("output_layer.output_logits", "output"),
        ("output_layer.output_logits", "grad_output"),
    }
    for kind in ("output", "grad_output"):
        assert record["layers.1.residual_accumulator", kind].count.tolist() == [8] * 6
    assert record["layers.1.router.router_logits", "output"].count.tolist() == [8] * 3
    logits = record["output_layer.output_logits", "output"]
    assert logits.count.tolist() == [64]  # divided along the channels: as a whole
    assert logits.mean.item() == pytest.approx(model.seen.mean().item(), rel=1e-5)
    gradient = record["output_layer.output_logits", "grad_output"]
    assert gradient.rms.item() == pytest.approx(2 * logits.rms.item(), rel=1e-5)


def test_the_kinds_are_chosen(observe: Open) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = ("router_scores", "residual_contribution")
    with hs.watch(model, optimizer, every=1) as w, observe(model, kinds):
        step(model, optimizer)
        named = {name for name, _ in w.latest if "residual" in name or "router_" in name}
    assert named == {
        f"layers.{i}.{name}"
        for i in range(2)
        for name in ("router.router_scores", "residual_contribution")
    }
    with (
        pytest.raises(ValueError, match=r"^kinds = 'router_scores': expected a tuple"),
        observe(model, "router_scores"),
    ):
        pass


def test_stages_have_the_names_that_they_have_in_the_watch(observe: Open) -> None:
    stages = [Layer(), Model()]
    with hs.watch(stages, every=1) as w, observe(stages):
        stages[1](stages[0](torch.randn(4, 2, 6)))
        w.step()
        assert {"0.router.router_logits", "1.output_layer.output_logits"} <= {
            n for n, _ in w.latest
        }


def test_the_example_of_the_documentation_runs(
    observe: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "trainers" / "megatron.md").read_text("utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(code, {"model": model, "optimizer": optimizer, "train": lambda: step(model, optimizer)})
    run = hs.open_run("runs/gpt")
    named = {name for name, _ in run[0] if "residual" in name or "_logits" in name}
    expected = {"output_layer.output_logits"}
    for i in range(2):
        expected |= {f"layers.{i}.residual_accumulator", f"layers.{i}.router.router_logits"}
    assert named == expected


def test_the_training_keeps_every_bit(observe: Open) -> None:
    results = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watched:
            with hs.watch(model, optimizer, every=1), observe(model):
                step(model, optimizer)
        else:
            step(model, optimizer)
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *results))
