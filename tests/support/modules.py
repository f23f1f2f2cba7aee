"""Small modules, and what tests of hooks do with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass
class ModelOutput(OrderedDict[str, Tensor]):
    """Like those of transformers: a dataclass and a mapping of the fields that are set."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    states: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if value is not None:
                self[name] = value


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def network(inplace: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace), nn.Linear(4, 2))


def convolutional() -> nn.Sequential:
    """Takes images of (1, 4, 4)."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3))


def take_step(optimizer: Optimizer, loss: Any) -> None:
    """One step of training by a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def double(t: Tensor) -> Tensor:
    return t * 2


def gradients_of(loss: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, tensors)
