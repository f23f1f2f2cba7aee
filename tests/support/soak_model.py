"""A small model that counts what its own modules do, and fails where it is told to: the training of
the soak, and the truth that recordings are compared with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 8
WIDTHS = {"first": 16, "relu": 16, "last": 4}
"""The channels of each watched module."""


class FaultError(RuntimeError):
    """The error of a user's own code."""


class Truth:
    """What happened in the open step, by site."""

    def __init__(self) -> None:
        self.disturbed = False
        """An interrupt or a pause came in the step: how much was observed cannot be told."""
        self.calls: Counter[str] = Counter()
        """The calls of each module."""
        self.gradients: Counter[str] = Counter()
        """The gradients of outputs that came."""
        self.sums = dict.fromkeys(WIDTHS, 0.0)
        """The sums of the outputs, float64."""

    def to_json(self) -> dict[str, Any]:
        return {
            "disturbed": self.disturbed,
            "calls": dict(self.calls),
            "gradients": dict(self.gradients),
            "sums": self.sums,
        }


class Gate(torch.autograd.Function):
    """The identity, whose backward raises if the model says so, and says that it was reached."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, net: Net, name: str) -> Tensor:
        ctx.net, ctx.name = net, name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.net.fails_backward == ctx.name:
            raise FaultError(f"in the backward of {ctx.name}")
        ctx.net.truth.gradients[ctx.name] += 1
        return gradients[0], None, None


class Net(nn.Module):
    """Three modules, each followed by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, WIDTHS["first"])
        self.relu = nn.ReLU()
        self.last = nn.Linear(WIDTHS["relu"], WIDTHS["last"])
        self.truth = Truth()
        self.fails_forward: str | None = None
        self.fails_backward: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        for name in WIDTHS:
            if self.fails_forward == name:
                raise FaultError(f"in the forward of {name}")
            x = getattr(self, name)(x)
            self.truth.calls[name] += 1
            self.truth.sums[name] += float(x.detach().double().sum())
            x = Gate.apply(x, self, name)
        return x
