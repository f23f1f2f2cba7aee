"""Layout, Sample: a tensor to take statistics of, and the right ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from accuracy import as_statistics
from torch import Tensor

from hookstats import ChannelStats, LinearBins, LogBins, reference, state

CHANNEL_BINS = LinearBins(64, -4.0, 4.0)
BINS = LogBins()


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory, and which of its dimensions has the channels."""

    shape: tuple[int, ...]
    """In the order of memory."""
    axis: int | None
    """The channels' place in `shape`; None for the whole tensor."""
    order: tuple[int, ...] = ()
    """The permutation of `shape` that a model sees, where it is another one."""


class Sample:
    """A Gaussian tensor with one NaN, +inf, -inf and zero, and its statistics in float64."""

    def __init__(self, name: str, layout: Layout, dtype: torch.dtype) -> None:
        elements = int(np.prod(layout.shape))
        values = torch.randn(elements, generator=torch.Generator().manual_seed(0))
        special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
        values[torch.arange(1, 5) * (elements // 5)] = special
        self.name = name
        memory = values.to(dtype).view(layout.shape)
        self.x = memory.permute(layout.order) if layout.order else memory
        """As a model sees it."""
        self.channel_dim = layout.axis
        if layout.axis is not None and layout.order:
            self.channel_dim = layout.order.index(layout.axis)
        self.rows = memory.view(1, -1) if layout.axis is None else memory
        """In the order of memory, with the channels in dimension `axis`."""
        self.axis = layout.axis or 0
        self.words = memory.view(-1).view(torch.int64)
        """The same bytes, to be read and nothing else."""
        self.channels = self.rows.shape[self.axis]
        self.expected = self._expected()

    @property
    def elements(self) -> int:
        return self.x.numel()

    @property
    def bytes(self) -> int:
        return self.x.numel() * self.x.element_size()

    def _expected(self) -> dict[str, Tensor]:
        moments = state.identity_moments(self.channels)
        tallies = state.identity_tallies(self.channels)
        counts = torch.zeros(BINS.slots, dtype=torch.int64)
        channel_counts = torch.zeros(self.channels, CHANNEL_BINS.slots, dtype=torch.int64)
        reference.update_(
            self.x,
            self.channel_dim,
            moments,
            tallies,
            counts,
            BINS.descriptor("cpu"),
            channel_counts,
            CHANNEL_BINS.descriptor("cpu"),
        )
        stats = ChannelStats(
            moments,
            tallies,
            counts=counts,
            bins=BINS,
            channel_counts=channel_counts,
            channel_bins=CHANNEL_BINS,
        )
        return as_statistics(stats)
