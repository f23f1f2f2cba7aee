"""The inputs of the model as a whole, which are recorded by default."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.modules import network
from torch import Tensor, nn
from torch.optim import SGD

import hookstats as hs
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


class Tokens(nn.Module):
    """Token ids, a mask, and images."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, ids: Tensor, images: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.norm(self.embed(ids)) + images.mean()
        return hidden if mask is None else hidden * mask[..., None]


def call(model: Any, length: int = 5) -> Tensor:
    ids = torch.arange(2 * length).reshape(2, length) % 10
    result: Tensor = model(ids, torch.ones(2, 3, 4, 4), mask=ids > 0)
    return result


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.check)])
def test_what_the_model_is_called_with_is_recorded(compiled: bool) -> None:
    model = Tokens()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        function = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for length in (5, 7, 8, 9):
            call(function, length).sum().backward()
            optimizer.step()
            record = w.latest
            ids, mask = record["", "input"], record["", "input.mask"]
            assert ids.count.tolist() == [2 * length]
            assert ids.max.item() == 9
            assert ids.mean.item() == (torch.arange(2 * length) % 10).double().mean().item()
            assert mask.count.tolist() == [2 * length]
            assert mask.zero.item() == 1 + (length > 5)
            assert record["", "input[1]"].count.tolist() == [32] * 3
        info = {(s.name, s.kind): s for s in record.sites}
        assert info["", "input"].channel_dim is None
        assert info["", "input"].dtype == "int64"
        assert info["", "input[1]"].channel_dim == 1
        assert w.coverage()["", "input.mask"].observed == 4
        assert ("embed", "input") not in record


def test_a_bad_batch_is_seen_at_the_door() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, rules="default") as w:
        model(torch.tensor([[1.0, float("nan"), 2.0]])).sum().backward()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            optimizer.step()
            first = w.alerts[0]  # waits for the thread that warns
        assert any("non-finite: step 0: input of" in str(one.message) for one in told)
        assert (first.site, first.kind) == ("", "input")


@pytest.mark.parametrize(
    "arguments",
    [
        {"kinds": ("output",)},
        {"kinds": ("output", "grad_output", "param_grad")},
        {"include": "0"},
        {"exclude": nn.Sequential},
    ],
)
def test_who_says_what_to_watch_gets_that(arguments: dict[str, Any]) -> None:
    model = network()
    with watch(model, **arguments) as w:
        model(torch.ones(2, 3)).sum().backward()
        w.step()
        assert "" not in {name for name, _ in w.latest}
        assert not model._forward_pre_hooks or len(model._forward_pre_hooks) == 1


def test_each_of_several_models_has_its_inputs() -> None:
    models = {"a": network(), "b": network()}
    with watch(models) as w:
        models["a"](models["b"](torch.ones(2, 3)) @ torch.ones(2, 3)).sum().backward()
        w.step()
        assert w.latest["b", "input"].max.max() == 1
        assert w.latest["a", "input"].count.sum() == 6


@pytest.mark.parametrize("container", [nn.ModuleDict, lambda parts: nn.ModuleList(parts.values())])
def test_a_model_without_a_forward_has_no_input_to_miss(container: Any) -> None:
    model = container({"a": network(), "b": network()})
    with watch(model) as w:
        for part in model.children():
            part(torch.ones(2, 3)).sum().backward()
        w.step()
        assert ("", "input") not in {(row.name, row.kind) for row in w.coverage().rows}
        assert "never called" not in w.coverage().summary(None, has_loss=True)


def test_a_model_that_is_one_layer_has_its_input_once() -> None:
    model = nn.Linear(3, 1)
    with watch(model) as w:
        model(torch.ones(2, 3)).sum().backward()
        w.step()
        assert list(w.latest)[:2] == [("", "input"), ("", "output")]
        assert w.coverage()["", "input"].forwards == 1


def test_runs_have_the_inputs(tmp_path: Path) -> None:
    model = Tokens()
    with watch(model, out=tmp_path / "run", channel_bins=hs.LinearBins(8, 0.0, 8.0)) as w:
        for _ in range(2):
            call(model).sum().backward()
            w.step()
    run = hs.open_run(tmp_path / "run")
    assert run["", "input"]["", "input"].count.tolist() == [10, 10]
    assert run[1]["", "input"].hist is not None
    assert run["", "input.mask"]["", "input.mask"].dtype == "bool"
