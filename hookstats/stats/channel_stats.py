"""ChannelStats: the statistics of the channels of a tensor, and what follows from them."""

from __future__ import annotations

import numpy as np

from hookstats.stats import state
from hookstats.stats.bins import Bins
from hookstats.stats.derived import Columns, Statistics, columns_of, dead, statistic, variance
from hookstats.stats.histogram import Histogram, check_channels
from hookstats.stats.lazy_torch import torch
from hookstats.stats.merge import merge
from hookstats.stats.sample import merged_counts


class ChannelStats(Statistics["torch.Tensor", "torch.Tensor"]):
    """The statistics of C channels; of a whole tensor, C = 1.

    Every statistic is a tensor [C] on the CPU: counts are int64, all others float64. The counts
    `nan`, `posinf` and `neginf` apart, statistics are over the finite values. A channel without
    finite values has NaN for mean, var, std and rms, +inf for min, -inf for max and amax, and 0 for
    the norms. Tensors are shared, not copied: read them, never write to them.

    Args:
        moments: float64 [C, 5], the columns `hookstats.stats.state.MOMENTS`.
        tallies: int64 [C, 5], the columns `hookstats.stats.state.TALLIES`.
    """

    def __init__(
        self,
        moments: torch.Tensor,
        tallies: torch.Tensor,
        *,
        counts: torch.Tensor | None = None,
        bins: Bins | None = None,
        channel_counts: torch.Tensor | None = None,
        channel_bins: Bins | None = None,
        missing: str | None = None,
    ) -> None:
        """Take a state on the CPU as `hookstats::update_` leaves it.

        counts, bins: int64 [slots], the histogram of the whole tensor, and its bins; or None.
        channel_counts, channel_bins: int64 [C, slots], the histograms of the channels; or None.
        missing: why the tensor stands here as one channel, where it has several; or None.
        """
        if (counts is None) != (bins is None) or (channel_counts is None) != (channel_bins is None):
            raise ValueError("counts and bins, channel_counts and channel_bins: expected in pairs")
        self.moments = moments
        self.tallies = tallies
        self._counts = counts
        self._bins = bins
        self._channel_counts = channel_counts
        self._channel_bins = channel_bins
        self._missing = missing

    def _of(self, name: str) -> torch.Tensor:
        # NumPy: small tensors, and torch might start the threads that training computes with.
        return torch.from_numpy(statistic(name, self._columns))

    @property
    def _columns(self) -> Columns:
        return columns_of(self.moments.numpy(), self.tallies.numpy())

    def variance(self, correction: float = 0) -> torch.Tensor:
        """float64 [C]: sum of squared deviations / (count - correction); NaN where that is <= 0.

        0 is the population variance, 1 the unbiased estimate, as in torch.var.
        """
        return torch.from_numpy(variance(self._columns, correction))

    @property
    def dead(self) -> torch.Tensor:
        """bool [C]: whether a channel has finite values, all of them zero; see `insight.dead`.

        Raises:
            ValueError: the channels were not kept.
        """
        if self._missing is not None:
            raise ValueError(self._missing)
        return torch.from_numpy(dead(self._columns))

    @property
    def hist(self) -> Histogram | None:
        """One histogram per channel; None without `channel_bins`."""
        if self._channel_counts is None or self._channel_bins is None:
            return None
        return Histogram(self._channel_bins, self._channel_counts, self.min, self.max, self.count)

    @property
    def tensor_hist(self) -> Histogram | None:
        """One histogram of the whole tensor (its C is 1); None without `bins`."""
        if self._counts is None or self._bins is None:
            return None
        moments, tallies = self._whole()
        return Histogram(
            self._bins,
            self._counts[None],
            moments[:, state.MIN],
            moments[:, state.MAX],
            tallies[:, state.COUNT],
        )

    def merge(self, other: ChannelStats) -> ChannelStats:
        """The statistics of the values of both, merged channel by channel.

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
        moments, tallies = merge(
            np.concatenate((self.moments.numpy(), other.moments.numpy())),
            np.concatenate((self.tallies.numpy(), other.tallies.numpy())),
            np.tile(np.arange(len(self)), 2),
            len(self),
        )
        hist, tensor_hist = (
            None if mine is None or theirs is None else mine.merge(theirs)
            for mine, theirs in (
                (self.hist, other.hist),
                (self.tensor_hist, other.tensor_hist),
            )
        )
        return ChannelStats(
            torch.from_numpy(moments),
            torch.from_numpy(tallies),
            counts=None if tensor_hist is None else tensor_hist.slot_counts[0],
            bins=self._bins,
            channel_counts=None if hist is None else hist.slot_counts,
            channel_bins=self._channel_bins,
            missing=self._missing or other._missing,
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
            channel_counts=None
            if hist is None
            else merged_counts(hist.slot_counts[:, None], hist.count[:, None]),
            channel_bins=None if hist is None else hist.bins,
        )

    def _whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The moments [1, 5] and tallies [1, 5] of all channels; the identity where C = 0."""
        one = np.zeros(len(self), np.int64)
        moments, tallies = merge(self.moments.numpy(), self.tallies.numpy(), one, 1)
        return torch.from_numpy(moments), torch.from_numpy(tallies)

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
