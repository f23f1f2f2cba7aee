"""merge() of the rows of groups, and the same by `drain_`, against one row merged after another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookstats.kernels.of_tensor import channel_stats
from hookstats.kernels.ops import drain_
from hookstats.records.sparse import Float64, Int64
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
