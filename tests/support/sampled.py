"""Sampled histograms by other means, element by element in plain Python; and states of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from support.oracle import DTYPES, State, fold, rows, slot_counts
from support.values import LINEAR, LOG, normal, of_dtype
from torch import Tensor

from hookstats.kernels import ops
from hookstats.stats.bins import Bins

_LOW = 0xFFFFFFFF


def _mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x85EBCA6B & _LOW
    h ^= h >> 13
    h = h * 0xC2B2AE35 & _LOW
    return h ^ h >> 16


def _times(a: int, b: int) -> int:
    """In the field of 8 elements, modulo x**3 + x + 1."""
    product = 0
    for bit in range(3):
        product ^= (a << bit) * (b >> bit & 1)
    for bit in (4, 3):
        product ^= (0b1011 << (bit - 3)) * (product >> bit & 1)
    return product


def chosen_units(units: int, every: int, step: int) -> list[int]:
    """The units that are counted, group by group."""
    seed = _mix((step & _LOW) ^ _mix(step >> 32))
    found = []
    for group in range(-(-units // every)):
        turn = _mix(((group >> 3) + 0x9E3779B9 & _LOW) ^ seed)
        eighth = _times(1 + (turn * 7 >> 32), group & 7) ^ turn & 7
        fraction = eighth << 29 | _mix(group ^ seed) >> 3
        here = min(every, units - group * every)
        found.append(group * every + (fraction * here >> 32))
    return found


def mask_of(x: Tensor, every: int, step: int) -> Tensor:
    """bool, of the shape of `x`, which has no expanded dimensions."""
    mask = torch.zeros(x.numel(), dtype=torch.bool)
    for unit in chosen_units(-(-x.numel() // 16), every, step):
        mask[unit * 16 : unit * 16 + 16] = True
    return mask.view(x.shape)


def sampling(step: int, every: int, channel_every: int) -> Tensor:
    """The argument of the operators."""
    return torch.tensor([step, every, channel_every])


def fold_sampled(
    update: Callable[..., None],
    x: Tensor,
    channel_dim: int | None,
    bins: Bins | None,
    channel_bins: Bins | None,
    how: Tensor,
) -> State:
    """An empty state into which `x` was folded, with the sampling `how`."""

    def sampled(*arguments: object) -> None:
        update(*arguments, how)

    return fold(sampled, x, channel_dim, bins, channel_bins)


def check_counts(
    got: State, x: Tensor, channel_dim: int | None, bins: Bins, channel_bins: Bins, how: Tensor
) -> None:
    """Assert that the histograms count what they should, exactly."""
    step, every, channel_every = (int(n) for n in how)
    values = rows(x, channel_dim)
    where = f"{tuple(x.shape)} {x.stride()} {x.dtype} {how.tolist()}"
    assert got.counts is not None
    assert got.channel_counts is not None
    mask = rows(mask_of(x, every, step), channel_dim) > 0
    expected = slot_counts(values[mask], bins)
    np.testing.assert_array_equal(got.counts.numpy(), expected, where)
    mask = rows(mask_of(x, channel_every, step), channel_dim) > 0
    for channel, (each, chosen) in enumerate(zip(values, mask, strict=True)):
        expected = slot_counts(each[chosen], channel_bins)
        counts = got.channel_counts[channel].numpy()
        np.testing.assert_array_equal(counts, expected, f"channel {channel}, {where}")


def layouts(values: Tensor) -> Iterator[tuple[Tensor, int | None]]:
    """`values` [C, n] in memory in logical order and out of it; with channels first, between and
    last, and without channels."""
    channels, n = values.shape
    outer = next(k for k in (4, 3, 2, 1) if n % k == 0)
    between = values.view(channels, outer, n // outer).transpose(0, 1).contiguous()
    gaps = torch.zeros(channels, 2 * n + 1, dtype=values.dtype)[:, 1 : 2 * n + 1 : 2]
    gaps.copy_(values)
    yield values, 0
    yield values, 1
    yield values, None
    yield values.T, 0
    yield values.T, 1
    yield values.T, None
    yield between, 1
    yield between, 2
    yield between.permute(0, 2, 1).contiguous().permute(0, 2, 1), 1
    yield between.permute(1, 2, 0).contiguous().permute(2, 0, 1), 1
    yield between.transpose(0, 1), 1
    yield gaps, 0
    yield gaps, 1
    yield gaps, None


def digest_of_sample() -> str:
    """What the operator counts in some tensors of every dtype and layout, as one number."""
    found = hashlib.sha256()
    for dtype in DTYPES:
        for n in (31, 33, 997):
            for x, channel_dim in layouts(of_dtype(dtype, 5, n)):
                got = fold_sampled(ops.update_, x, channel_dim, LINEAR, LOG, sampling(3, 2, 5))
                for counts in (got.counts, got.channel_counts):
                    assert counts is not None
                    found.update(counts.numpy().tobytes())
    large = normal(300, 1000).float()
    got = fold_sampled(ops.update_, large, 0, LINEAR, LOG, sampling(1 << 40, 0, 0))
    for counts in (got.counts, got.channel_counts):
        assert counts is not None
        found.update(counts.numpy().tobytes())
    return found.hexdigest()
