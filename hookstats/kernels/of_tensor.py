"""channel_stats(): the statistics of one tensor, in one read of it."""

from __future__ import annotations

import torch
from torch import Tensor

from hookstats._torch import FakeTensor, has_storage, is_freed, is_functorch_wrapped_tensor
from hookstats.kernels import ops
from hookstats.kernels.backends import home
from hookstats.kernels.sampling import Sampling
from hookstats.stats import reference, state
from hookstats.stats.arguments import check_integer
from hookstats.stats.bins import EXPECTED_BINS, Bins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.mask import EXPECTED, check_fits


def channel_stats(
    x: Tensor,
    channel_dim: int | None = None,
    bins: Bins | None = None,
    *,
    step: int = 0,
    mask: Tensor | None = None,
) -> ChannelStats:
    """The statistics of every channel of one tensor, in one read of it.

    Args:
        x: a tensor with any strides, on any device; float32, float64, float16, bfloat16,
            float8_e4m3fn, float8_e5m2, an integer dtype or bool. It is detached and never changed.
        channel_dim: the dimension of `x` that has the channels, negative from the end; None takes
            the whole tensor as one channel.
        bins: LinearBins or LogBins for one histogram per channel; None for no histograms.
        step: decides which elements bins with `sample` count.
        mask: bool or integers [batch, time], on the device of `x`, for `x` [batch, time, ...] or
            [batch * time, ...]: where it is 0, as for padding, the row is left out of everything,
            without a copy of `x`. Or [rows], for `x` [rows, ...]. None keeps all rows.
    Returns:
        The statistics of `x.shape[channel_dim]` channels, on the CPU.
    Raises:
        ValueError: x is sparse, nested, meta, fake, without storage (freed), inside a torch.func
            transform, or of another dtype; x has no dimension channel_dim; bins, step or mask is of
            another type; mask does not fit, for example because channel_dim is one of its
            dimensions, or because x contains attention weights, [batch, heads, time, time].
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"x = {type(x).__name__}: expected a torch.Tensor")
    if reason := _without_data(x) or reference.unsupported(x):
        raise ValueError(f"x has {reason}: expected {reference.SUPPORTED}")
    if bins is not None and not isinstance(bins, Bins):
        raise ValueError(f"bins = {bins!r}: expected {EXPECTED_BINS}")
    step = check_integer("step", step, 0)
    channels = reference.channel_count(x, channel_dim)
    if mask is not None:
        mask = _checked(mask, x, channel_dim)
    x = x.detach().resolve_neg()
    device = home(x.device)
    sums = state.identity_moments(channels, device)
    tallies = state.identity_tallies(channels, device)
    counts = descriptor = None
    if bins is not None:
        counts = torch.zeros(channels, bins.slots, dtype=torch.int64, device=device)
        descriptor = bins.descriptor(device)
    sampling = Sampling(None, bins, step).on(x.device)
    ops.update_(x, channel_dim, sums, tallies, None, None, counts, descriptor, sampling, mask)
    return ChannelStats(
        sums.cpu(),
        tallies.cpu(),
        channel_counts=None if counts is None else counts.cpu(),
        channel_bins=bins,
    )


def _checked(mask: Tensor, x: Tensor, channel_dim: int | None) -> Tensor:
    """The mask as operators take it."""
    if not isinstance(mask, Tensor):
        raise ValueError(f"mask = {type(mask).__name__}: expected {EXPECTED}")
    if reason := _without_data(mask):
        raise ValueError(f"mask has {reason}: expected {EXPECTED}")
    check_fits(mask, x, channel_dim)
    if mask.device != x.device:
        raise ValueError(f"mask is on {mask.device}: expected {x.device}, the device of x")
    return mask.detach()


def _without_data(x: Tensor) -> str | None:
    """Why the values of `x` cannot be read; None if they can."""
    if x.is_meta:
        return "device meta"
    if isinstance(x, FakeTensor):
        return "no data (a FakeTensor)"
    if is_functorch_wrapped_tensor(x):
        return "no data of its own (inside a torch.func transform)"
    return "no storage" if has_storage(x) and is_freed(x) else None
