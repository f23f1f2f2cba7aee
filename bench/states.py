"""What, State: what a call of update_ is asked for, and the state that the call fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.accuracy import as_statistics
from bench.eager import Statistics
from hookstats import ChannelStats, LinearBins, LogBins
from hookstats.stats import state

CHANNEL_BINS = LinearBins(64, -4.0, 4.0)
BINS = LogBins()
CPU = torch.device("cpu")


@dataclass(frozen=True)
class What:
    """The histograms that are asked for besides the moments and tallies."""

    channel_bins: LinearBins | None = None
    bins: LogBins | None = None
    sample: int = 1
    """One of how many elements `bins` count."""

    @property
    def sampling(self) -> Tensor | None:
        """update_'s argument: the step, then `sample` of the tensor's histogram and of others."""
        return None if self.sample == 1 else torch.tensor([0, self.sample, 1])


EVERYTHING = What(CHANNEL_BINS, BINS)


class State:
    """An empty state."""

    def __init__(self, channels: int, what: What, device: torch.device = CPU) -> None:
        def slots(bins: LinearBins | LogBins | None, *shape: int) -> tuple[Tensor | None, ...]:
            if bins is None:
                return None, None
            counts = torch.zeros(*shape, bins.slots, dtype=torch.int64, device=device)
            return counts, bins.descriptor(device)

        self.arguments: tuple[Any, ...] = (
            state.identity_moments(channels, device),
            state.identity_tallies(channels, device),
            *slots(what.bins),
            *slots(what.channel_bins, channels),
        )
        """Those of update_ behind the tensor and its dimension of channels."""
        self._what = what

    def statistics(self) -> Statistics:
        """What is in it by now, on the CPU."""
        tensors: list[Any] = [None if each is None else each.cpu() for each in self.arguments]
        moments, tallies, counts, _, channel_counts, _ = tensors
        stats = ChannelStats(
            moments,
            tallies,
            counts=counts,
            bins=self._what.bins,
            channel_counts=channel_counts,
            channel_bins=self._what.channel_bins,
        )
        return as_statistics(stats)


def empty_lists(xs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Moments, tallies and counts in BINS of every tensor, channels first, for update_many_."""
    device, rows = xs[0].device, [len(x) for x in xs]
    moments = state.identity_moments(sum(rows), device).split(rows)
    tallies = state.identity_tallies(sum(rows), device).split(rows)
    counts = torch.zeros(len(xs), BINS.slots, dtype=torch.int64, device=device).unbind()
    return list(moments), list(tallies), list(counts)
