"""The gradient noise scale, against the whole gradients of micro-batches in fp64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import hookstats as hs
from hookstats.hooks import noise_scale

KINDS = ("param_grad", "noise_scale")


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    return model.to(memory_format=torch.channels_last)


def weights(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.dim() > 1]


def of_micro_batches(model: nn.Module, several: Tensor) -> Tensor:
    """The gradients of the weights by micro-batch, float64 [micro-batches, elements]."""
    found = []
    model = copy.deepcopy(model)  # which has no hooks
    for x in several:
        gradients = torch.autograd.grad(model(x).square().mean(), weights(model))
        found.append(torch.cat([g.double().flatten() for g in gradients]))
    return torch.stack(found)


def trace_and_norm(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The trace of the covariance of a micro-batch's gradient, and the squared norm of the true
    gradient: by the unbiased covariance of the samples."""
    trace = gradients.var(0, correction=1).sum()
    return trace, gradients.mean(0).square().sum() - trace / len(gradients)


def test_it_is_that_of_the_whole_gradients(tmp_path: Path) -> None:
    model = model_of()
    optimizer = SGD(model.parameters(), lr=0.1)
    averages = torch.zeros(2, dtype=torch.float64)
    expected = []
    with hs.watch(model, optimizer, kinds=KINDS, every=1, out=tmp_path):
        for n in (4, 1, 2, 3, 3):
            several = torch.randn(n, 5, 2, 4, 4) + 1
            gradients = of_micro_batches(model, several)
            for x in several:
                (model(x).square().mean() * 256).backward()  # the scale of a loss scaler
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            if n > 1:
                averages = 0.9 * averages + torch.stack(trace_and_norm(gradients))
                expected.append((averages[0] / averages[1]).item())
            optimizer.step()
            optimizer.zero_grad()
    found = hs.open_run(tmp_path).scalars["noise_scale/0"]
    assert found.steps.tolist() == [0, 2, 3, 4]
    assert found.values.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_sample_of_the_elements_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = []
    for many in (noise_scale.ELEMENTS, 512):
        monkeypatch.setattr(noise_scale, "ELEMENTS", many)
        torch.manual_seed(0)
        model = nn.Linear(128, 64)
        optimizer = SGD(model.parameters(), lr=0.0)
        with hs.watch(model, optimizer, kinds=KINDS, every=1) as w:
            for _ in range(8):
                for _ in range(4):
                    model(torch.randn(4, 128) + 0.5).square().mean().backward()
                optimizer.step()
            scales.append(w.latest.scalars["noise_scale/0"])
    assert scales[0] != scales[1] == pytest.approx(scales[0], rel=0.2)


@pytest.mark.parametrize("how", ["closure", "one"])
def test_it_needs_micro_batches_of_one_step(how: str) -> None:
    model = model_of()
    optimizer = SGD(model.parameters(), lr=0.1)

    def closure() -> Any:
        loss = model(torch.randn(5, 2, 4, 4)).square().mean()
        loss.backward()
        return loss

    with hs.watch(model, optimizer, kinds=KINDS, every=1) as w:
        for _ in range(3):
            if how == "closure":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        assert "noise_scale/0" not in w.latest.scalars


def test_the_training_keeps_every_bit_and_no_hook_stays() -> None:
    results = []
    for watched in (False, True):
        model = model_of()
        optimizer = AdamW(model.parameters(), lr=0.01)
        w = hs.watch(model, optimizer, kinds=KINDS, every=2) if watched else None
        for _ in range(5):
            for _ in range(2):
                model(torch.randn(5, 2, 4, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([p.detach().clone() for p in model.parameters()])
        if w is not None:
            assert w.latest.scalars["noise_scale/0"] > 0
            w.close()
            assert not any(p._backward_hooks for p in model.parameters())
    assert all(map(torch.equal, *results))
