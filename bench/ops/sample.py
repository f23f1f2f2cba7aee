"""Layout, Sample: a tensor to take statistics of, and the right ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.random import default_rng
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


def _normal(elements: int) -> Tensor:
    # Not torch's, whose values depend on the instruction set.
    return torch.from_numpy(default_rng(0).standard_normal(elements, np.float32))


def _gaussian(elements: int) -> Tensor:
    """With one NaN, +inf, -inf and zero."""
    values = _normal(elements)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    values[torch.arange(1, 5) * (elements // 5)] = special
    return values


class Sample:
    """A Gaussian tensor of one layout and dtype, and its statistics in float64."""

    def __init__(
        self, name: str, layout: Layout, dtype: torch.dtype, *, finite: bool = False
    ) -> None:
        """finite: without NaN and infinities, which repeating would have in every block."""
        values = (_normal if finite else _gaussian)(prod(layout.shape))
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
