"""A small network, its gradients beside those recorded, and an optimizer that changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from support.expected import assert_stats
from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats.records.record import StepRecord

GRADIENTS = ("param_grad",)


def tanh_network() -> nn.Sequential:
    """Takes a `batch`; the same parameters every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 2))


def batch(step: int) -> Tensor:
    """Values of (5, 3), another at each step."""
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(step))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the gradients as they are."""
    named = model.named_parameters(remove_duplicate=True)
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_gradients(record: StepRecord, expected: dict[str, Tensor]) -> None:
    """Assert that the record has the gradients `expected`, and of no other parameter."""
    assert {name for name, kind in record if kind == "param_grad"} == set(expected)
    for name, gradient in expected.items():
        dim = 0 if gradient.dim() else None
        assert_stats(record[name, "param_grad"], [gradient], dim)


class Idle(Optimizer):
    """An optimizer that changes nothing, so that only hooks do something in its step."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        pass
