"""ChannelStats: the statistics of the channels of a tensor, and what follows from them."""

from __future__ import annotations

import torch
from torch import Tensor

from hookstats.stats import state
from hookstats.stats.bins import Bins
from hookstats.stats.histogram import Histogram, check_channels


class ChannelStats:
    """The statistics of C channels; of a whole tensor, C = 1.

    Every statistic is a tensor [C] on the CPU: int64 where it counts, else float64. All but the
    counts `nan`, `posinf` and `neginf` are over the finite values. A channel without any has NaN
    for mean, var, std and rms, +inf for min, -inf for max and amax, and 0 for the norms.
    Tensors are shared, not copied: read them, never write to them.

    Args:
        moments: float64 [C, 5], the columns `hookstats.state.MOMENTS`.
        tallies: int64 [C, 5], the columns `hookstats.state.TALLIES`.
    """

    def __init__(
        self,
        moments: Tensor,
        tallies: Tensor,
        *,
        counts: Tensor | None = None,
        bins: Bins | None = None,
        channel_counts: Tensor | None = None,
        channel_bins: Bins | None = None,
    ) -> None:
        """Take a state on the CPU as `hookstats::update_` leaves it.

        counts, bins: int64 [slots], the histogram of the whole tensor, and its bins; or None.
        channel_counts, channel_bins: int64 [C, slots], the histograms of the channels; or None.
        """
        if (counts is None) != (bins is None) or (channel_counts is None) != (channel_bins is None):
            raise ValueError("counts and bins, channel_counts and channel_bins: expected in pairs")
        self.moments = moments
        self.tallies = tallies
        self._counts = counts
        self._bins = bins
        self._channel_counts = channel_counts
        self._channel_bins = channel_bins

    @property
    def count(self) -> Tensor:
        """int64 [C]: finite values."""
        return self.tallies[:, state.COUNT]

    @property
    def nan(self) -> Tensor:
        """int64 [C]: NaNs."""
        return self.tallies[:, state.NAN]

    @property
    def posinf(self) -> Tensor:
        """int64 [C]: positive infinities."""
        return self.tallies[:, state.POSINF]

    @property
    def neginf(self) -> Tensor:
        """int64 [C]: negative infinities."""
        return self.tallies[:, state.NEGINF]

    @property
    def zero(self) -> Tensor:
        """int64 [C]: zeros of either sign."""
        return self.tallies[:, state.ZERO]

    @property
    def mean(self) -> Tensor:
        """float64 [C]: arithmetic mean."""
        return torch.where(self.count > 0, self.moments[:, state.MEAN], torch.nan)

    @property
    def var(self) -> Tensor:
        """float64 [C]: population variance; `variance` has the others."""
        return self.variance(correction=0)

    def variance(self, correction: float = 0) -> Tensor:
        """float64 [C]: sum of squared deviations / (count - correction); NaN where that is <= 0.

        0 is the population variance, 1 the unbiased estimate, as in torch.var.
        """
        freedom = self.count.to(torch.float64) - correction
        return torch.where(freedom > 0, self.moments[:, state.M2] / freedom, torch.nan)

    @property
    def std(self) -> Tensor:
        """float64 [C]: population standard deviation."""
        return self.var.sqrt()

    @property
    def min(self) -> Tensor:
        """float64 [C]: least value."""
        return self.moments[:, state.MIN]

    @property
    def max(self) -> Tensor:
        """float64 [C]: greatest value."""
        return self.moments[:, state.MAX]

    @property
    def amax(self) -> Tensor:
        """float64 [C]: greatest magnitude."""
        return torch.maximum(-self.min, self.max)

    @property
    def l1_norm(self) -> Tensor:
        """float64 [C]: sum of magnitudes."""
        return self.moments[:, state.L1]

    @property
    def l2_norm(self) -> Tensor:
        """float64 [C]: square root of the sum of squares."""
        mean_part = self.count.to(torch.float64).sqrt() * self.moments[:, state.MEAN]
        return torch.hypot(self.moments[:, state.M2].sqrt(), mean_part)

    @property
    def rms(self) -> Tensor:
        """float64 [C]: square root of the mean of squares."""
        return self.l2_norm / self.count.to(torch.float64).sqrt()

    @property
    def hist(self) -> Histogram | None:
        """One histogram a channel; None if not asked for."""
        if self._channel_counts is None or self._channel_bins is None:
            return None
        return Histogram(self._channel_bins, self._channel_counts, self.min, self.max)

    @property
    def tensor_hist(self) -> Histogram | None:
        """One histogram of the whole tensor (its C is 1); None if not asked for."""
        if self._counts is None or self._bins is None:
            return None
        moments, _ = self._whole()
        return Histogram(
            self._bins, self._counts[None], moments[:, state.MIN], moments[:, state.MAX]
        )

    def merge(self, other: ChannelStats) -> ChannelStats:
        """The statistics of the values of both, channel by channel.

        Raises:
            ValueError: `other` has another number of channels or other bins.
        """
        check_channels(self, other)
        for name, mine, theirs in (
            ("tensor_hist", self._bins, other._bins),
            ("hist", self._channel_bins, other._channel_bins),
        ):
            if mine != theirs:
                raise ValueError(f"other has {name} with bins {theirs}: expected {mine}")
        moments, tallies = state.combine(
            torch.stack((self.moments, other.moments)), torch.stack((self.tallies, other.tallies))
        )
        return ChannelStats(
            moments,
            tallies,
            counts=_sum(self._counts, other._counts),
            bins=self._bins,
            channel_counts=_sum(self._channel_counts, other._channel_counts),
            channel_bins=self._channel_bins,
        )

    def per_tensor(self) -> ChannelStats:
        """All channels as one; its `hist` is `tensor_hist`, or else the sum of the channels'."""
        moments, tallies = self._whole()
        hist = self.hist if self.tensor_hist is None else self.tensor_hist
        return ChannelStats(
            moments,
            tallies,
            counts=self._counts,
            bins=self._bins,
            channel_counts=None if hist is None else hist.slot_counts.sum(0, keepdim=True),
            channel_bins=None if hist is None else hist.bins,
        )

    def _whole(self) -> tuple[Tensor, Tensor]:
        """The moments and tallies, [1, 5] each, of all channels; the identity where C = 0."""
        return state.combine(
            torch.cat((state.identity_moments(1), self.moments))[:, None],
            torch.cat((state.identity_tallies(1), self.tallies))[:, None],
        )

    def __len__(self) -> int:
        """The number of channels."""
        return len(self.moments)

    def __repr__(self) -> str:
        moments, tallies = self._whole()
        whole = ChannelStats(moments, tallies)
        parts = [f"channels={len(self)}", f"count={int(whole.count)}"]
        parts += [f"{name}={float(getattr(whole, name)):.4g}" for name in _SHOWN]
        parts += [f"{name}={n}" for name in _NON_FINITE if (n := int(getattr(whole, name)))]
        return f"ChannelStats({', '.join(parts)})"


_SHOWN = ("mean", "std", "min", "max")  # in a repr, of all channels as one
_NON_FINITE = ("nan", "posinf", "neginf")  # where there are any


def _sum(mine: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if mine is None or other is None else mine + other
