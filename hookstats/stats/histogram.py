"""Histogram: how many values fell into each bin, per channel or for a whole tensor."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from hookstats.stats.bins import Bins
from hookstats.stats.lazy_torch import torch
from hookstats.stats.sample import merged_counts


@dataclass(frozen=True, eq=False, repr=False)
class Histogram:
    """How many finite values fell into each bin, for C channels or (C = 1) a whole tensor.

    All tensors are on the CPU and shared, not copied: read them, never write to them.

    Args:
        bins: the LinearBins or LogBins.
        slot_counts: int64 [C, bins + 2], underflow, the bins in ascending order of value, overflow.
        min, max: float64 [C], the extremes of the finite values; +inf and -inf where there are
            none.
        count: int64 [C], the finite values.

    Where `bins` have a `sample`, the slots add up to `counted`, which is less than `count`.
    """

    bins: Bins
    slot_counts: torch.Tensor
    min: torch.Tensor
    max: torch.Tensor
    count: torch.Tensor

    @property
    def counted(self) -> torch.Tensor:
        """int64 [C]: the finite values that are in some slot; `count` where nothing is sampled."""
        return self.slot_counts.sum(1)

    @property
    def counts(self) -> torch.Tensor:
        """int64 [C, bins]: values in each bin."""
        return self.slot_counts[:, 1:-1]

    @property
    def underflow(self) -> torch.Tensor:
        """int64 [C]: finite values below every bin."""
        return self.slot_counts[:, 0]

    @property
    def overflow(self) -> torch.Tensor:
        """int64 [C]: finite values above every bin."""
        return self.slot_counts[:, -1]

    @property
    def edges(self) -> torch.Tensor:
        """[bins + 1], ascending: bin i lies between edges i and i + 1."""
        return self.bins.edges()

    def quantile(self, q: float | Sequence[float] | torch.Tensor) -> torch.Tensor:
        """The values that the fractions `q` of the finite values do not exceed.

        A quantile is interpolated linearly between the edges of its bin, and not between two values
        as `torch.quantile` does. No bin reaches beyond min or max; the underflow begins at min, and
        the overflow ends at max. NaN for channels without finite values, or none that was counted.

        Args:
            q: a fraction in 0..1, or several of any shape.
        Returns:
            float64 [C], or ``[*shape of q, C]``.
        Raises:
            ValueError: a fraction outside 0..1.
        """
        fractions = torch.as_tensor(q, dtype=torch.float64, device="cpu")
        if not bool(((fractions >= 0) & (fractions <= 1)).all()):
            raise ValueError(f"q = {q}: expected fractions in 0..1")
        channels = len(self.slot_counts)
        total = self.slot_counts.sum(1, keepdim=True)
        rank = fractions.reshape(1, -1) * total
        reached = self.slot_counts.contiguous().cumsum(1)  # values in a slot and all before it
        slot = torch.searchsorted(reached.to(torch.float64), rank)
        count = self.slot_counts.gather(1, slot)
        before = reached.gather(1, slot) - count
        inside = (rank - before) / count.clamp(min=1)
        infinity = torch.full((1,), torch.inf, dtype=torch.float64, device="cpu")
        bounds = torch.cat((-infinity, self.edges.to(torch.float64), infinity))
        bounds = bounds.expand(channels, -1).clamp(self.min[:, None], self.max[:, None])
        value = torch.lerp(bounds.gather(1, slot), bounds.gather(1, slot + 1), inside)
        return torch.where(total > 0, value, torch.nan).T.reshape(*fractions.shape, channels)

    @property
    def skewness(self) -> torch.Tensor:
        """float64 [C]: skewness, as ``scipy.stats.skew(x, bias=True)``; see `_shape`."""
        return self._shape(3)

    @property
    def kurtosis(self) -> torch.Tensor:
        """float64 [C]: excess kurtosis, 0 for a normal distribution, as
        ``scipy.stats.kurtosis(x, bias=True)``; see `_shape`."""
        return self._shape(4) - 3.0

    def _shape(self, power: int) -> torch.Tensor:
        """float64 [C]: the central moment of this power over the variance's power of power / 2.

        Each value counts as the middle of its bin, so it moves by at most half the bin's width: by
        1/17 of its magnitude with the default `LogBins`. Errors on both sides of the middle mostly
        cancel: skewness s is within 0.02 + |s| / 50 and the excess kurtosis k within (k + 3) / 50
        for normal, uniform, exponential, gamma, Laplace, logistic and log-normal values, if 0 is
        within two standard deviations of their mean. Where one value dominates, as in heavy tails,
        errors reach 3/17 of s and 4/17 of (k + 3).
        NaN where bins do not resolve the values: where all are equal, or the variance within bins
        is more than 1/50 of the variance, as of values whose mean is far from 0.
        """
        lowest, highest = self.min[:, None], self.max[:, None]
        edges = self.edges.to(torch.float64).expand(len(self), -1)
        bounds = torch.cat((lowest, edges.clamp(lowest, highest), highest), 1)
        counts = self.slot_counts.to(torch.float64)
        # An empty histogram has infinite bounds.
        bounds = bounds.where(counts.sum(1, keepdim=True) > 0, 0.0)
        share = counts / counts.sum(1, keepdim=True)
        low, width = bounds[:, :-1], bounds.diff(dim=1)
        scale = torch.maximum(-lowest, highest)  # so that no power overflows or vanishes
        middle = (low + width / 2) / scale
        middle = middle - (share * middle).sum(1, keepdim=True)
        variance = (share * middle**2).sum(1)
        within = (share * (width / scale) ** 2).sum(1) / 12
        moment = (share * middle**power).sum(1) / variance ** (power / 2)
        return moment.where(within * 50 <= variance, torch.nan)

    def merge(self, other: Histogram) -> Histogram:
        """The histogram of the values of both.

        Where the two counted different shares of their values, each weighs as many values as it
        has: the slots then have rounded counts, which add up to what both counted.

        Raises:
            ValueError: `other` has other bins or another number of channels.
        """
        check_channels(self, other)
        if self.bins != other.bins:
            raise ValueError(f"other = {other}: expected bins {self.bins}")
        return Histogram(
            self.bins,
            merged_counts(
                torch.stack((self.slot_counts, other.slot_counts)),
                torch.stack((self.count, other.count)),
            ),
            torch.minimum(self.min, other.min),
            torch.maximum(self.max, other.max),
            self.count + other.count,
        )

    def __len__(self) -> int:
        """The number of channels."""
        return len(self.slot_counts)

    def __repr__(self) -> str:
        return f"Histogram(channels={len(self)}, bins={self.bins})"


def check_channels(mine: Sized, other: Sized) -> None:
    """Raise a ValueError unless both have the same number of channels."""
    if len(mine) != len(other):
        raise ValueError(f"other has {len(other)} channels: expected {len(mine)}")
