"""A block of modules to trace, its input, and the names of its calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hookstats.tensors.trace import Trace


class Block(nn.Module):
    """Its activation is called twice, its child has a child, and its output has two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, Tensor]:
        h = self.act(self.first(x) * scale)
        return self.act(self.second(h)), torch.tensor([1, 2])


NAMES = ["", "first", "act", "second", "second.0", "second.1", "act"]
"""Of the modules that a call of `Block` calls, in their order."""

X, SCALE = torch.linspace(-1, 1, 15).view(5, 3), torch.full((4,), 2.0)
"""What `Block` takes; the second by name."""


def names(result: Trace) -> list[str]:
    """Of the modules, a call after the other."""
    return [call.name for call in result.calls]
