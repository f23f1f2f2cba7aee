"""Statistics by other means, NumPy with 80-bit sums: what every implementation is held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.stats import state
from hookstats.stats.bins import Bins, LinearBins, LogBins

Array = NDArray[np.float64]

FLOATS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)


class State(NamedTuple):
    """What update_ fills."""

    moments: Tensor
    tallies: Tensor
    counts: Tensor | None
    channel_counts: Tensor | None


def accumulate(
    update: Callable[..., None],
    x: Tensor,
    channel_dim: int | None,
    bins: Bins | None = None,
    channel_bins: Bins | None = None,
    into: State | None = None,
    how: Tensor | None = None,
    mask: Tensor | None = None,
) -> State:
    """Call `update`, hookstats::update_ or one like it, on `into` or else on an empty state.

    `how` is the sampling, `mask` says which rows of `x` are kept.
    """
    if into is None:
        channels = 1 if channel_dim is None else x.shape[channel_dim]
        into = State(
            state.identity_moments(channels),
            state.identity_tallies(channels),
            None if bins is None else torch.zeros(bins.slots, dtype=torch.int64),
            None
            if channel_bins is None
            else torch.zeros(channels, channel_bins.slots, dtype=torch.int64),
        )
    update(
        x,
        channel_dim,
        into.moments,
        into.tallies,
        into.counts,
        None if bins is None else bins.descriptor("cpu"),
        into.channel_counts,
        None if channel_bins is None else channel_bins.descriptor("cpu"),
        *(() if how is None and mask is None else (how, mask)),
    )
    return into


def rows(x: Tensor, channel_dim: int | None) -> Array:
    """The values of `x`, [channels, n]."""
    x = x.detach()
    narrow = x.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = (x.float() if narrow else x.resolve_neg()).numpy().astype(np.float64)
    if channel_dim is None:
        return values.reshape(1, -1)
    channels = values.shape[channel_dim]
    per_channel = values.size // channels if channels else 0
    return np.moveaxis(values, channel_dim, 0).reshape(channels, per_channel)


def check(
    got: State,
    x: Tensor,
    channel_dim: int | None,
    bins: Bins | None = None,
    channel_bins: Bins | None = None,
) -> None:
    """Assert that `got` is the state of `x`: the moments nearly, all else exactly."""
    channels = rows(x, channel_dim)
    moments, tallies = got.moments.numpy(), got.tallies.numpy()
    assert moments.shape == (len(channels), 5)
    for channel, values in enumerate(channels):
        where = f"channel {channel} of {len(channels)}, {tuple(x.shape)} {x.stride()} {x.dtype}"
        check_channel(moments[channel], tallies[channel], values, where)
    if bins is not None:
        assert got.counts is not None
        np.testing.assert_array_equal(got.counts.numpy(), slot_counts(channels.ravel(), bins))
    if channel_bins is not None:
        assert got.channel_counts is not None
        for counts, values in zip(got.channel_counts.numpy(), channels, strict=True):
            np.testing.assert_array_equal(counts, slot_counts(values, channel_bins))


def check_channel(moments: Array, tallies: NDArray[np.int64], values: Array, where: str) -> None:
    """Assert that one channel's state is that of `values`."""
    finite = values[np.isfinite(values)]
    assert tallies.tolist() == [
        finite.size,
        np.isnan(values).sum(),
        (values == np.inf).sum(),
        (values == -np.inf).sum(),
        (values == 0).sum(),
    ], where
    if finite.size == 0:
        assert moments.tolist() == list(state.IDENTITY[: moments.shape[-1]]), where
        return
    mean, m2, least, most, l1 = moments
    wide = finite.astype(np.longdouble)
    expected_mean = wide.mean()
    expected_var = np.square(wide - expected_mean).mean()
    assert (least, most) == (finite.min(), finite.max()), where
    assert abs(mean - expected_mean) <= 1e-6 * (abs(expected_mean) + expected_var**0.5), where
    # A variance of zero may come out as the square of the rounding of a float64 mean.
    rounding = np.finfo(np.float64).eps * float(np.abs(finite).max())
    error = abs(m2 / finite.size - expected_var)
    assert error <= 1e-5 * expected_var + np.square(np.longdouble(rounding)), (where, error)
    assert abs(l1 - np.abs(wide).sum()) <= 1e-6 * np.abs(wide).sum(), where


def slot_counts(values: Array, bins: Bins) -> NDArray[np.int64]:
    """The histogram [slots] of the finite `values`."""
    finite = values[np.isfinite(values)]
    if isinstance(bins, LinearBins):
        slots = linear_slots(finite, bins)
    else:
        assert isinstance(bins, LogBins)
        slots = log_slots(finite, bins)
    return np.bincount(slots, minlength=bins.slots)


def linear_slots(values: Array, bins: LinearBins) -> NDArray[np.int64]:
    """The slot of each value, from the edges as the definition has them."""
    edges = torch.linspace(bins.lo, bins.hi, bins.bins + 1, dtype=torch.float32)
    edges64 = edges.numpy().astype(np.float64)
    slots = np.searchsorted(edges64, values, side="right")
    return np.where(values == edges64[-1], bins.bins, slots)


def log_slots(values: Array, bins: LogBins) -> NDArray[np.int64]:
    """The slot of each value, from its exponent and significand by frexp."""
    magnitude = np.abs(values)
    beyond = magnitude > np.finfo(np.float32).max
    rounded = np.where(beyond, 0, magnitude).astype(np.float32)
    toward_zero = np.where(
        rounded.astype(np.float64) > magnitude, np.nextafter(rounded, np.float32(0)), rounded
    ).astype(np.float64)
    significand, exponent = np.frexp(toward_zero)  # 0.5 <= significand < 1
    octave = exponent.astype(np.int64) - 1
    parts = 1 << bins.subdivision_bits
    nth = (octave + 127) * parts + np.floor((2 * significand - 1) * parts).astype(np.int64)
    subnormal = toward_zero < 2.0**-126
    nth[subnormal] = np.floor(toward_zero[subnormal] * 2.0**126 * parts).astype(np.int64)

    first = (bins.min_exponent + 127) * parts
    per_sign = (bins.max_exponent - bins.min_exponent + 1) * parts
    nth -= first
    if first > 0:  # one more bin for what lies between zero and the first octave
        nth = np.maximum(nth, -1) + 1
        per_sign += 1
    nth[beyond | (nth > per_sign)] = per_sign
    slot = 1 + per_sign + np.where(values > 0, 1 + nth, -1 - nth)
    return np.where(values == 0, 1 + per_sign, slot)
