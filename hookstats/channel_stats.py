"""channel_stats(): the statistics of one tensor; ChannelStats and Histogram: what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from hookstats import ops, reference, state
from hookstats.bins import Bins


@dataclass(frozen=True, eq=False, repr=False)
class Histogram:
    """How many finite values fell into each bin, for C channels or (C = 1) a whole tensor.

    All tensors are on the CPU and shared, not copied: read them, never write to them.

    Args:
        bins: the LinearBins or LogBins.
        slot_counts: int64 [C, bins + 2], underflow, the bins in ascending order of value, overflow.
        min, max: float64 [C], the extremes of the finite values; +inf and -inf where there are
            none.
    """

    bins: Bins
    slot_counts: Tensor
    min: Tensor
    max: Tensor

    @property
    def counts(self) -> Tensor:
        """int64 [C, bins]: values in each bin."""
        return self.slot_counts[:, 1:-1]

    @property
    def underflow(self) -> Tensor:
        """int64 [C]: finite values below every bin."""
        return self.slot_counts[:, 0]

    @property
    def overflow(self) -> Tensor:
        """int64 [C]: finite values above every bin."""
        return self.slot_counts[:, -1]

    @property
    def edges(self) -> Tensor:
        """[bins + 1], ascending: bin i lies between edges i and i + 1."""
        return self.bins.edges()

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """The values that the fractions `q` of the finite values do not exceed.

        Linear between the edges of the bin that holds the quantile; no bin reaches beyond min or
        max, underflow begins at min and overflow ends at max. NaN where there is no finite value.

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

    def merge(self, other: Histogram) -> Histogram:
        """The histogram of the values of both.

        Raises:
            ValueError: `other` has other bins or another number of channels.
        """
        _check_channels(self, other)
        if self.bins != other.bins:
            raise ValueError(f"other = {other}: expected bins {self.bins}")
        return Histogram(
            self.bins,
            self.slot_counts + other.slot_counts,
            torch.minimum(self.min, other.min),
            torch.maximum(self.max, other.max),
        )

    def __len__(self) -> int:
        """The number of channels."""
        return len(self.slot_counts)

    def __repr__(self) -> str:
        return f"Histogram(channels={len(self)}, bins={self.bins})"


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
        _check_channels(self, other)
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


def channel_stats(
    x: Tensor, channel_dim: int | None = None, bins: Bins | None = None
) -> ChannelStats:
    """The statistics of every channel of one tensor, in one read of it.

    Args:
        x: a strided tensor of any strides and device; float32, float64, float16, bfloat16,
            float8_e4m3fn, float8_e5m2, an integer dtype or bool. It is detached, never changed.
        channel_dim: the dimension of `x` with the channels, negative from the end; None takes the
            whole tensor as one channel.
        bins: LinearBins or LogBins for one histogram a channel; None for none.
    Returns:
        The statistics of `x.shape[channel_dim]` channels, on the CPU.
    Raises:
        ValueError: x is sparse, nested, meta, fake, inside a torch.func transform, or of another
            dtype; x has no dimension channel_dim; bins is something else.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"x = {type(x).__name__}: expected a torch.Tensor")
    if reason := _without_data(x) or reference.unsupported(x):
        raise ValueError(f"x has {reason}: expected {reference.SUPPORTED}")
    if bins is not None and not isinstance(bins, Bins):
        raise ValueError(f"bins = {bins!r}: expected LinearBins, LogBins or None")
    channels = reference.channel_count(x, channel_dim)
    x = x.detach().resolve_neg()
    device = torch.device("cpu") if x.device.type == "mps" else x.device  # mps has no float64
    moments = state.identity_moments(channels, device)
    tallies = state.identity_tallies(channels, device)
    counts = descriptor = None
    if bins is not None:
        counts = torch.zeros(channels, bins.slots, dtype=torch.int64, device=device)
        descriptor = bins.descriptor(device)
    ops.update_(x, channel_dim, moments, tallies, None, None, counts, descriptor)
    return ChannelStats(
        moments.cpu(),
        tallies.cpu(),
        channel_counts=None if counts is None else counts.cpu(),
        channel_bins=bins,
    )


def _without_data(x: Tensor) -> str | None:
    """Why the values of `x` cannot be read; None where they can."""
    if x.is_meta:
        return "device meta"
    if isinstance(x, FakeTensor):
        return "no data (a FakeTensor)"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "no data of its own (inside a torch.func transform)"
    return None


def _check_channels(mine: Histogram | ChannelStats, other: Histogram | ChannelStats) -> None:
    if len(mine) != len(other):
        raise ValueError(f"other has {len(other)} channels: expected {len(mine)}")


def _sum(mine: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if mine is None or other is None else mine + other
