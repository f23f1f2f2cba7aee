"""Sampled histograms by other means, element by element in plain Python; and states of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from support.oracle import DTYPES, State, accumulate, rows, slot_counts
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


def chosen_blocks(blocks: int, every: int, step: int) -> list[int]:
    """The blocks that are counted, group by group."""
    seed = _mix((step & _LOW) ^ _mix(step >> 32))
    found = []
    for group in range(-(-blocks // every)):
        fraction = group * 0x9E3779B9 + seed & _LOW
        here = min(every, blocks - group * every)
        found.append(group * every + (fraction * here >> 32))
    return found


def positions_of(x: Tensor, channel_dim: int | None, masked: int = 0) -> Tensor:
    """int64, of the shape of `x`: the positions of core/sample.h, where a mask covers the first
    `masked` dimensions; no dimension is expanded but that of the channels."""
    channel = [] if channel_dim is None else [channel_dim % x.dim()]
    rest = [d for d in range(masked, x.dim()) if d not in channel and x.shape[d] > 1]
    rest.sort(key=lambda d: -x.stride()[d])
    inner: list[int] = []
    many = [c for c in channel if x.shape[c] > 1]
    while rest and (not inner or x.stride(rest[-1]) == x.stride(inner[0]) * x.shape[inner[0]]):
        if not inner and many and x.stride(many[0]) < x.stride(rest[-1]):
            break  # channels are the fastest
        inner = [rest.pop(), *inner]
    order = [*range(masked), *rest, *channel, *inner]
    order += [d for d in range(x.dim()) if d not in order]
    found = torch.arange(x.numel()).view([x.shape[d] for d in order])
    return found.permute([order.index(d) for d in range(x.dim())])


def mask_of(x: Tensor, channel_dim: int | None, every: int, step: int, masked: int = 0) -> Tensor:
    """bool, of the shape of `x`; see `positions_of`."""
    mask = torch.zeros(-(-x.numel() // 64), dtype=torch.bool)
    mask[chosen_blocks(len(mask), every, step)] = True
    return mask[positions_of(x, channel_dim, masked) // 64]


def sampling(step: int, every: int, channel_every: int) -> Tensor:
    """The argument of the operators."""
    return torch.tensor([step, every, channel_every])


def check_counts(
    got: State, x: Tensor, channel_dim: int | None, bins: Bins, channel_bins: Bins, how: Tensor
) -> None:
    """Assert that the histograms count what they should, exactly."""
    step, every, channel_every = (int(n) for n in how)
    values = rows(x, channel_dim)
    where = f"{tuple(x.shape)} {x.stride()} {x.dtype} {how.tolist()}"
    assert got.counts is not None
    assert got.channel_counts is not None
    mask = rows(mask_of(x, channel_dim, every, step), channel_dim) > 0
    expected = slot_counts(values[mask], bins)
    np.testing.assert_array_equal(got.counts.numpy(), expected, where)
    mask = rows(mask_of(x, channel_dim, channel_every, step), channel_dim) > 0
    for channel, (each, chosen) in enumerate(zip(values, mask, strict=True)):
        expected = slot_counts(each[chosen], channel_bins)
        counts = got.channel_counts[channel].numpy()
        np.testing.assert_array_equal(counts, expected, f"channel {channel}, {where}")


def layouts(values: Tensor) -> Iterator[tuple[Tensor, int | None]]:
    """`values` [C, n] in memory with channels first, between and last, and without channels."""
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
                how = sampling(3, 2, 5)
                got = accumulate(ops.update_, x, channel_dim, LINEAR, LOG, how=how)
                for counts in (got.counts, got.channel_counts):
                    assert counts is not None
                    found.update(counts.numpy().tobytes())
    large = normal(300, 1000).float()
    got = accumulate(ops.update_, large, 0, LINEAR, LOG, how=sampling(1 << 40, 0, 0))
    for counts in (got.counts, got.channel_counts):
        assert counts is not None
        found.update(counts.numpy().tobytes())
    return found.hexdigest()
