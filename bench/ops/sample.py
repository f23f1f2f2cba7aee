"""Layout, DISTRIBUTIONS, Sample: a tensor to take statistics of, and the right ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor

from bench.eager import Statistics
from bench.states import EVERYTHING, State
from hookstats.stats import reference

BEYOND = 5.0
"""In the place of what is not finite, for peers that cannot take it: outside of the linear bins."""


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory, and which of its dimensions has the channels."""

    shape: tuple[int, ...]
    """In the order of memory."""
    axis: int | None
    """The channels' place in `shape`; None for the whole tensor."""
    order: tuple[int, ...] = ()
    """The permutation of `shape` that a model sees, where it is another one."""


def _normal(elements: int, rng: Generator) -> Tensor:
    # Not torch's, whose values depend on the instruction set.
    return torch.from_numpy(rng.standard_normal(elements, np.float32))


def _uniform(elements: int, rng: Generator) -> Tensor:
    return torch.from_numpy(rng.random(elements, np.float32))


def _gaussian(elements: int, dtype: torch.dtype, rng: Generator) -> Tensor:
    """With one NaN, +inf, -inf and zero."""
    values = _normal(elements, rng)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    values[torch.arange(1, 5) * (elements // 5)] = special
    return values


def _finite(elements: int, dtype: torch.dtype, rng: Generator) -> Tensor:
    return _normal(elements, rng)


def _constant(elements: int, dtype: torch.dtype, rng: Generator) -> Tensor:
    return torch.full((elements,), 0.5)


def _zeros(elements: int, dtype: torch.dtype, rng: Generator) -> Tensor:
    """99% zeros, as behind a ReLU or in the gradient of an embedding."""
    return torch.where(_uniform(elements, rng) < 0.01, _normal(elements, rng), 0.0)


def _heavy_tail(elements: int, dtype: torch.dtype, rng: Generator) -> Tensor:
    """Cauchy."""
    return _normal(elements, rng) / _normal(elements, rng)


def _nan(elements: int, dtype: torch.dtype, rng: Generator) -> Tensor:
    """1% NaN: every block takes the exact path."""
    return torch.where(_uniform(elements, rng) < 0.01, torch.nan, _normal(elements, rng))


def _subnormal(elements: int, dtype: torch.dtype, rng: Generator) -> Tensor:
    return _uniform(elements, rng) * torch.finfo(dtype).smallest_normal


Distribution = Callable[[int, torch.dtype, Generator], Tensor]
DISTRIBUTIONS: dict[str, Distribution] = {
    "Gaussian": _gaussian,
    "constant": _constant,
    "99% zeros": _zeros,
    "heavy tail": _heavy_tail,
    "1% NaN": _nan,
    "subnormals": _subnormal,
}
FINITE = "finite Gaussian"
"""For what is repeated: what is not finite would be in every block."""


class Sample:
    """A tensor of one layout, dtype and distribution, and its statistics in float64."""

    cold = True
    """Whether it is to be in memory, rather than in a cache, when it is read."""

    def __init__(
        self, name: str, layout: Layout, dtype: torch.dtype, distribution: str = "Gaussian"
    ) -> None:
        make = _finite if distribution == FINITE else DISTRIBUTIONS[distribution]
        values = make(prod(layout.shape), dtype, default_rng(0))
        self.name = name
        self.memory = values.to(dtype).view(layout.shape)
        self.x = self.memory.permute(layout.order) if layout.order else self.memory
        """As a model sees it."""
        self.channel_dim = layout.axis
        if layout.axis is not None and layout.order:
            self.channel_dim = layout.order.index(layout.axis)
        self.rows = self.memory.view(1, -1) if layout.axis is None else self.memory
        """In the order of memory, with the channels in dimension `axis`."""
        self.axis = layout.axis or 0
        self.words = self.memory.view(-1).view(torch.int64)
        """The same bytes, to be read and nothing else."""
        self.channels = self.rows.shape[self.axis]

    def kept_warm(self) -> Sample:
        """Itself, to be in a cache as far as it fits there."""
        self.cold = False
        return self

    @property
    def elements(self) -> int:
        return self.x.numel()

    @cached_property
    def finite(self) -> Tensor:
        """`rows`, with BEYOND for what is not finite."""
        return torch.where(self.rows.isfinite(), self.rows, BEYOND)

    @cached_property
    def by_channel(self) -> Tensor:
        """`finite` as float64 [elements of a channel, channels]."""
        return self.finite.movedim(self.axis, -1).reshape(-1, self.channels).double()

    @cached_property
    def expected(self) -> Statistics:
        """What `eager.statistics` should give."""
        made = State(self.channels, EVERYTHING)
        reference.update_(self.x, self.channel_dim, *made.arguments)
        return made.statistics()
