"""The peers of one call of update_: Read, Update, InTorch; What is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from accuracy import FLOAT32, HOOKSTATS, as_statistics, check
from eager import Statistics
from sample import Sample

from hookstats import ChannelStats, LinearBins, LogBins, ops, state


@dataclass(frozen=True)
class What:
    """The histograms that are asked for besides the moments and tallies."""

    channel_bins: LinearBins | None = None
    bins: LogBins | None = None


class Read:
    """The floor: a sum over the same bytes."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def prepare(self) -> None:
        """Read it all once, so that every peer finds caches and threads in the same state."""
        self.sample.words.sum()

    def run(self) -> None:
        self._sum = self.sample.words.sum()

    def check(self) -> None:
        """Assert that the last result is right."""
        assert int(self._sum) == int(self.sample.words.numpy().sum())  # both wrap around


class Update(Read):
    """update_ on an empty state."""

    def __init__(self, sample: Sample, what: What) -> None:
        super().__init__(sample)
        self._what = what

    def prepare(self) -> None:
        channels, what = self.sample.channels, self._what
        self._moments = state.identity_moments(channels)
        self._tallies = state.identity_tallies(channels)
        self._counts = self._descriptor = None
        if what.bins is not None:
            self._counts = torch.zeros(what.bins.slots, dtype=torch.int64)
            self._descriptor = what.bins.descriptor("cpu")
        self._channel_counts = self._channel_descriptor = None
        if what.channel_bins is not None:
            self._channel_counts = torch.zeros(channels, what.channel_bins.slots, dtype=torch.int64)
            self._channel_descriptor = what.channel_bins.descriptor("cpu")
        super().prepare()

    def run(self) -> None:
        ops.update_(
            self.sample.x,
            self.sample.channel_dim,
            self._moments,
            self._tallies,
            self._counts,
            self._descriptor,
            self._channel_counts,
            self._channel_descriptor,
        )

    def check(self) -> None:
        stats = ChannelStats(
            self._moments,
            self._tallies,
            counts=self._counts,
            bins=self._what.bins,
            channel_counts=self._channel_counts,
            channel_bins=self._what.channel_bins,
        )
        check(as_statistics(stats), self.sample.expected, HOOKSTATS)


class InTorch(Read):
    """`eager.statistics`, or what torch.compile made of it."""

    def __init__(self, sample: Sample, what: What, statistics: Callable[..., Statistics]) -> None:
        super().__init__(sample)
        self._what = what
        self._statistics = statistics

    def prepare(self) -> None:
        self._found: Statistics = {}  # gives the last result's memory back
        super().prepare()

    def run(self) -> None:
        sample, what = self.sample, self._what
        self._found = self._statistics(sample.rows, sample.axis, what.channel_bins, what.bins)

    def check(self) -> None:
        check(self._found, self.sample.expected, FLOAT32)
