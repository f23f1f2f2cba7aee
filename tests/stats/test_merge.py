"""Merging: any split, order and grouping of the values or of rows gives the state of the whole."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracle import State, accumulate, check
from torch import Tensor

from hookstats.kernels import ops
from hookstats.kernels.of_tensor import channel_stats
from hookstats.kernels.ops import drain_
from hookstats.records.sparse import Float64, Int64
from hookstats.stats import state
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.merge import merge, offsets_of
from hookstats.stats.reference import merge_
from hookstats.stats.state import (
    COUNT,
    IDENTITY,
    L1,
    M2,
    MAX,
    MEAN,
    MIN,
    identity_moments,
    identity_tallies,
)

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


@pytest.mark.check
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


States = tuple[Float64, Int64]
Merge = Callable[[Float64, Int64, Int64], States]

CHANNELS = st.lists(st.sampled_from([*range(10), 31, 33]), max_size=9)


def merged(moments: Float64, tallies: Int64, offsets: Int64) -> States:
    """By `merge`, of runs of rows."""
    groups = len(offsets) - 1
    return merge(moments, tallies, np.repeat(np.arange(groups), np.diff(offsets)), groups)


def drained(moments: Float64, tallies: Int64, offsets: Int64) -> States:
    """By `drain_`, of rows in blocks of one site or two."""
    cuts = sorted({0, *offsets[::2].tolist(), len(moments)}) if len(moments) else [0, 0]
    blocks = [
        [torch.tensor(np.ascontiguousarray(state[first:last])) for first, last in pairwise(cuts)]
        for state in (moments, tallies)
    ]
    none = torch.zeros(0, dtype=torch.int64)
    found = drain_(*blocks, [], [], none, [], torch.from_numpy(offsets))
    return found[2].numpy().T, found[3].numpy().T


def one_by_one(moments: Float64, tallies: Int64) -> States:
    """All rows merged one after the other."""
    into = identity_moments(1), identity_tallies(1)
    for row in range(len(moments)):
        merge_(*into, torch.tensor(moments[row : row + 1]), torch.tensor(tallies[row : row + 1]))
    return into[0].numpy()[0], into[1].numpy()[0]


both = pytest.mark.parametrize("merge_runs", [merged, drained])


def _rows(rng: np.random.Generator, rows: int) -> States:
    """Channels of one to forty values, or of none: as a double buffer's records have them."""
    moments, tallies = np.empty((5, rows)), rng.integers(0, 3, (5, rows))
    moments[:] = np.array(IDENTITY)[:, None]
    tallies[COUNT] = rng.integers(0, 41, rows) * (rng.random(rows) < 0.7)
    for row in np.flatnonzero(tallies[COUNT]).tolist():
        values = rng.standard_normal(tallies[COUNT, row]) + rng.choice([0.0, 3.0])
        away = values - values.mean()
        moments[[MEAN, MIN, MAX, L1], row] = (
            values.mean(),
            values.min(),
            values.max(),
            np.abs(values).sum(),
        )
        moments[M2, row] = (away**2).sum()
    return moments.T, tallies.T


@both
@given(CHANNELS, st.integers(0, 2**32 - 1))
def test_runs_of_rows_are_merged_as_one_row_after_the_other(
    merge_runs: Merge, channels: list[int], seed: int
) -> None:
    offsets = offsets_of(channels)
    moments, tallies = _rows(np.random.default_rng(seed), int(offsets[-1]))
    before = moments.tobytes(), tallies.tobytes()

    found, total = merge_runs(moments, tallies, offsets)

    assert (moments.tobytes(), tallies.tobytes()) == before
    assert found.shape == (len(channels), 5)
    for group, (first, last) in enumerate(pairwise(offsets)):
        expected = one_by_one(moments[first:last], tallies[first:last])
        assert total[group].tolist() == expected[1].tolist()
        np.testing.assert_allclose(found[group], expected[0], rtol=1e-10, atol=1e-10)


@both
def test_equal_means_stay_equal_and_infinite_moments_add_nothing_that_is_no_number(
    merge_runs: Merge,
) -> None:
    offsets = np.array([0, 3, 5])
    moments = np.array([IDENTITY] * 5)
    moments[:, MEAN] = 0.1
    moments[2, MEAN] = 0.0  # of a channel without values
    moments[3, M2] = np.inf
    tallies = np.zeros((5, 5), np.int64)
    tallies[:, COUNT] = 7, 3, 0, 5, 5

    found, total = merge_runs(moments, tallies, offsets)

    assert found[:, MEAN].tolist() == [0.1, 0.1]
    assert found[:, M2].tolist() == [0.0, np.inf]
    assert total[:, COUNT].tolist() == [10, 10]


def test_pieces_of_the_same_channels_merge_as_their_values_together() -> None:
    x = torch.randn(60, 7, dtype=torch.float64) * 3 + 100
    x[:20, 1] = torch.nan  # a piece without values
    x[:, 2] = torch.inf  # none at all
    x[20:, 3] = torch.nan  # only one with values
    x[:, 4] = 0.1
    x[5, 5] = -torch.inf
    pieces = [channel_stats(piece, 1) for piece in x.split([20, 3, 37])]
    found = merge(
        np.concatenate([piece.moments.numpy() for piece in pieces]),
        np.concatenate([piece.tallies.numpy() for piece in pieces]),
        np.tile(np.arange(7), 3),
        7,
    )
    whole = channel_stats(x, 1)
    expected = whole.moments.numpy()
    np.testing.assert_array_equal(found[1], whole.tallies.numpy())
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    assert found[0][4, MEAN] == 0.1  # to the last bit


def test_infinite_sums_of_equal_means_stay_infinite() -> None:
    stats = channel_stats(torch.tensor([[1e200], [-1e200]], dtype=torch.float64), 1)
    found = stats.merge(stats)
    assert found.mean.item() == 0
    assert found.moments[0, M2].item() == np.inf


def test_two_rows_a_group_have_the_same_bits_in_every_order() -> None:
    moments, tallies = _rows(np.random.default_rng(0), 2000)
    group_of_row = np.tile(np.arange(1000), 2)
    expected = merge(moments, tallies, group_of_row, 1000)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(2000)
        found = merge(moments[order], tallies[order], group_of_row[order], 1000)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_rows_in_no_group_are_left_out_and_groups_without_rows_are_empty() -> None:
    moments, tallies = _rows(np.random.default_rng(1), 5)
    found = merge(moments, tallies, np.array([4, -1, 1, -1, -1]), 6)
    for group, row in ((4, 0), (1, 2)):
        assert found[0][group].tolist() == moments[row].tolist()
        assert found[1][group].tolist() == tallies[row].tolist()
    for group in (0, 2, 3, 5):
        assert found[0][group].tolist() == list(IDENTITY)
        assert not found[1][group].any()
