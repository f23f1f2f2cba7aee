"""What steps do to a sample of the weights, against the whole weights in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.modules import take_step
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer

import hookstats as hs
from hookstats.hooks import step_sample

KINDS = ("param_grad",)


def model_of(dtype: torch.dtype = torch.float32, *, linear: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    if linear:
        return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False)).to(dtype)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    return model.to(dtype)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().double() for p in model.parameters() if p.dim() > 1]


def backward(model: nn.Module, optimizer: Optimizer) -> Tensor:
    """The gradients of the weights, as one vector."""
    optimizer.zero_grad()
    model(torch.randn(5, 2, 4, 4, dtype=next(model.parameters()).dtype)).square().sum().backward()
    every = [p.grad for p in model.parameters() if p.dim() > 1]
    return torch.cat([g.double().flatten() for g in every if g is not None])


MAKE: list[Callable[[Any], Optimizer]] = [
    lambda p: SGD(p, lr=0.01, momentum=0.9, foreach=True),
    lambda p: AdamW(p, lr=0.01, foreach=False),
    lambda p: AdamW(p, lr=0.01, fused=True),
    lambda p: Muon(p, lr=0.01),
]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sample_of_all_elements_is_exact(
    make: Callable[[Any], Optimizer], dtype: torch.dtype
) -> None:
    model = model_of(dtype, linear=make is MAKE[-1]).to(memory_format=torch.channels_last)
    optimizer = make(model.parameters())
    last: Tensor | None = None
    with hs.watch(model, optimizer, kinds=KINDS, every=1) as w:
        for _ in range(3):
            gradients = backward(model, optimizer)
            before = weights(model)
            optimizer.step()
            pairs = zip(before, weights(model), strict=True)
            ratios = [((now - was).norm() / was.norm()).item() for was, now in pairs]
            scalars = w.latest.scalars
            assert scalars["update_ratio/0"] == pytest.approx(sum(ratios) / 2, rel=1e-5)
            assert ("gradient_cosine/0" in scalars) == (last is not None)
            if last is not None:
                cosine = nn.functional.cosine_similarity(last, gradients, 0).item()
                assert scalars["gradient_cosine/0"] == pytest.approx(cosine, rel=1e-5)
            last = gradients


def test_each_of_two_optimizers_is_of_the_step_that_it_is_in() -> None:
    model = model_of()
    optimizers = [SGD([layer.weight], lr=0.01) for layer in (model[0], model[2])]
    with hs.watch(model, optimizers, kinds=KINDS, every=1) as w:
        for _ in range(3):
            backward(model, optimizers[0])
            for layer in (model[0], model[2]):
                layer.weight.grad = layer.weight.detach() * (w.open_step + 1)
            for optimizer in optimizers:
                optimizer.step()
            scalars = w.latest.scalars
            for i in range(2):
                ratio = scalars[f"update_ratio/{i}"]
                assert ratio == pytest.approx(0.01 * w.open_step, rel=1e-4)


def test_a_sample_is_spread_over_all_columns_and_keeps_its_place() -> None:
    weight = nn.Parameter(torch.arange(640 * 64.0).view(640, 64))
    parts = [step_sample._part(weight, place, 128, of_gradients=False) for place in (3, 3, 4)]
    first, again, other = [part.tolist() for part in parts if part is not None]
    assert first == again != other
    assert len({value % 64 for value in first}) == 64
    assert max(first) - min(first) > 0.9 * weight.numel()


@pytest.mark.parametrize("every", [1, 3])
def test_cosines_are_those_of_steps_in_a_row(every: int, tmp_path: Path) -> None:
    model = model_of()
    optimizer = SGD(model.parameters(), lr=0.0)
    gradients = []
    with hs.watch(model, optimizer, kinds=KINDS, every=every, out=tmp_path, rules=False):
        for _ in range(8):
            gradients.append(backward(model, optimizer))
            optimizer.step()
    found = hs.open_run(tmp_path).scalars["gradient_cosine/0"]
    assert found.steps.tolist() == [step for step in range(1, 8) if step % every == 0]
    for step, value in zip(found.steps.tolist(), found.values.tolist(), strict=True):
        pair = gradients[step - 1], gradients[step]
        expected = nn.functional.cosine_similarity(*pair, 0).item()
        assert value == pytest.approx(expected, rel=1e-5)
    ratios = hs.open_run(tmp_path).scalars["update_ratio/0"]
    assert ratios.steps.tolist() == list(range(0, 8, every))
    assert not ratios.values.any()


def test_groups_are_numbered_as_learning_rates_are() -> None:
    model = model_of()
    model[2].weight.data.zero_()
    convolution = SGD(model[0].parameters(), lr=0.1)
    groups = [{"params": [model[2].weight]}, {"params": [model[2].bias], "lr": 0.0}]
    linear = SGD(groups, lr=0.1)
    with hs.watch(model, [convolution, linear], kinds=KINDS, every=1) as w:
        backward(model, linear)
        convolution.step()
        linear.step()
        scalars = w.latest.scalars
    assert {name for name in scalars if name.startswith("update")} == {
        f"update_ratio/{i}" for i in range(3)
    }
    assert scalars["lr/2"] == scalars["update_ratio/2"] == 0.0
    assert math.isnan(scalars["update_ratio/1"])  # its weights were all zero


def test_what_cannot_be_sampled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    model[1].weight = nn.Parameter(torch.randn(4, 2).t())  # no gaps, and not in order
    optimizer = SGD(model.parameters(), lr=0.1)

    def step() -> None:
        take_step(optimizer, model(torch.arange(5)).square().sum())

    with hs.watch(model, optimizer, kinds=KINDS, every=1) as w:
        for _ in range(2):
            step()
        scalars = w.latest.scalars
        assert scalars["update_ratio/0"] > 0
        assert "gradient_cosine/0" not in scalars
        monkeypatch.setattr(step_sample, "foreach_norm", None)
        with pytest.warns(RuntimeWarning, match="sampling an optimizer's steps failed: TypeError"):
            step()
        step()
        assert "update_ratio/0" not in w.latest.scalars
