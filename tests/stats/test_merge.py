"""Merging: any split, order and grouping of the values gives the state of the whole."""

from __future__ import annotations

import math
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracle import State, accumulate, check
from torch import Tensor

from hookstats.kernels import ops
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats import state
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.reference import merge_

LINEAR = LinearBins(8, -100.0, 100.0)
LOG = LogBins(1)

any_float64 = st.floats(min_value=-1e100, max_value=1e100) | st.sampled_from(
    [0.0, -0.0, math.nan, math.inf, -math.inf, 1e6 + 1e-3, 1e6]
)
small_integers = st.integers(-1000, 1000).map(float)


def pieces(values: Tensor, shuffle: random.Random) -> list[Tensor]:
    """The columns of `values` [C, n] in any order, cut anywhere; pieces may be empty."""
    n = values.shape[1]
    order = shuffle.sample(range(n), n)
    cuts = sorted(shuffle.choices(range(n + 1), k=shuffle.randrange(8)))
    return list(values[:, order].tensor_split(cuts, dim=1))


SUBNORMAL = 5e-324  # the least step of float64


def merge_in_any_grouping(parts: list[ChannelStats], shuffle: random.Random) -> ChannelStats:
    parts = list(parts)
    while len(parts) > 1:
        one = parts.pop(shuffle.randrange(len(parts)))
        two = parts.pop(shuffle.randrange(len(parts)))
        parts.append(one.merge(two))
    return parts[0]


def check_equal(got: ChannelStats, whole: ChannelStats) -> None:
    """Counts, min, max and histograms to the bit; mean, m2 and l1 to 1e-12 of their scale.

    Values of magnitude up to M enter a mean with a rounding of M * eps each, whatever the mean,
    so the scale of the mean is M and not its own size. A deviation of size d from such a mean is
    off by M * eps, which moves d**2 by d * M * eps: n of them give m2 the scale m2 + n * std * M.
    Where all deviations are below the rounding of M, m2 is its square: n * (M * eps)**2. Means of
    subnormal numbers are rounded to whole subnormal steps.
    """
    assert torch.equal(got.tallies, whole.tallies)
    assert torch.equal(got.min, whole.min)
    assert torch.equal(got.max, whole.max)
    assert got.hist is not None
    assert whole.hist is not None
    assert torch.equal(got.hist.slot_counts, whole.hist.slot_counts)

    n = whole.count.clamp(min=1).double()
    largest = torch.where(whole.count > 0, whole.amax, 0.0)
    m2 = whole.moments[:, state.M2]
    error = (got.moments - whole.moments).abs()
    assert (error[:, state.MEAN] <= 1e-12 * largest + n * SUBNORMAL).all()
    scale = m2 + (n * m2).sqrt() * largest
    rounding = n * (1e-15 * largest).square() + n * SUBNORMAL
    assert (error[:, state.M2] <= 1e-12 * scale + rounding).all()
    assert (error[:, state.L1] <= 1e-12 * whole.l1_norm).all()


@settings(max_examples=4 * settings().max_examples)
@given(
    values=st.lists(st.tuples(any_float64, any_float64), max_size=40),
    shuffle=st.randoms(use_true_random=False),
)
def test_any_split_order_and_grouping_is_the_whole(
    values: list[tuple[float, float]], shuffle: random.Random
) -> None:
    x = torch.tensor(values, dtype=torch.float64).view(-1, 2).T
    parts = [channel_stats(piece, 0, LOG) for piece in pieces(x, shuffle)]
    check_equal(merge_in_any_grouping(parts, shuffle), channel_stats(x, 0, LOG))


@settings(max_examples=4 * settings().max_examples)
@given(
    values=st.lists(st.tuples(small_integers, small_integers), max_size=100),
    shuffle=st.randoms(use_true_random=False),
)
def test_integers_in_float32_merge_exactly(
    values: list[tuple[float, float]], shuffle: random.Random
) -> None:
    """All that adds up is exact; mean and m2 are as good as float32 runs make them."""
    x = torch.tensor(values, dtype=torch.float32).view(-1, 2).T
    parts = [channel_stats(piece, 0, LINEAR) for piece in pieces(x, shuffle)]
    got = merge_in_any_grouping(parts, shuffle)
    assert got.hist is not None
    merged = State(got.moments, got.tallies, None, got.hist.slot_counts)
    check(merged, x, 0, channel_bins=LINEAR)
    assert got.l1_norm.tolist() == [float(sum(map(abs, row))) for row in x.tolist()]


@given(
    values=st.lists(st.tuples(any_float64, any_float64), max_size=40),
    shuffle=st.randoms(use_true_random=False),
)
def test_accumulating_in_place_is_merging(
    values: list[tuple[float, float]], shuffle: random.Random
) -> None:
    """As over the micro-batches of a step: one state, many updates."""
    x = torch.tensor(values, dtype=torch.float64).view(-1, 2).T
    into: State = accumulate(ops.update_, x[:, :0], 0, channel_bins=LOG)
    for piece in pieces(x, shuffle):
        accumulate(ops.update_, piece, 0, channel_bins=LOG, into=into)
    got = ChannelStats(
        into.moments, into.tallies, channel_counts=into.channel_counts, channel_bins=LOG
    )
    check_equal(got, channel_stats(x, 0, LOG))


@given(values=st.lists(st.lists(any_float64, min_size=3, max_size=3), max_size=20))
def test_channels_merge_into_the_tensor(values: list[list[float]]) -> None:
    x = torch.tensor(values, dtype=torch.float64).view(-1, 3)
    check_equal(channel_stats(x, 1, LOG).per_tensor(), channel_stats(x, None, LOG))


def test_merging_equal_means_keeps_them() -> None:
    """A constant stays a constant: its variance does not grow from rounding."""
    s = channel_stats(torch.full((7, 1), 0.1), 1)
    merged = s
    for _ in range(50):
        merged = merged.merge(s)
    assert merged.mean.tolist() == torch.tensor([0.1]).double().tolist()
    assert merged.var.tolist() == [0.0]


def test_a_small_group_far_away_counts() -> None:
    """The term between the groups, which naive merging of variances forgets."""
    near, far = torch.zeros(10_000, dtype=torch.float64), torch.tensor([1e6], dtype=torch.float64)
    merged = channel_stats(near).merge(channel_stats(far))
    whole = torch.cat((near, far))
    torch.testing.assert_close(merged.mean[0], whole.mean(), rtol=1e-12, atol=0)
    torch.testing.assert_close(merged.var[0], whole.var(correction=0), rtol=1e-12, atol=0)


def test_merging_in_place_is_merging() -> None:
    x, y = torch.randn(5, 3), torch.randn(9, 3) + 100
    one, two = channel_stats(x, 1), channel_stats(y, 1)
    merged = one.merge(two)
    merge_(one.moments, one.tallies, two.moments, two.tallies)
    torch.testing.assert_close(one.moments, merged.moments, rtol=1e-12, atol=0)
    assert torch.equal(one.tallies, merged.tallies)
