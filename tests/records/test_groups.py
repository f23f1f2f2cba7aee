"""The rows of each site merged as `stats.state.combine` does, in NumPy and by `take_`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookstats.arena.taken import Sizes, Taken
from hookstats.kernels.ops import take_
from hookstats.records.groups import per_site
from hookstats.records.sparse import Float64, Int64
from hookstats.stats.state import COUNT, IDENTITY, L1, M2, MAX, MEAN, MIN, combine

CHANNELS = st.lists(st.sampled_from([*range(10), 31, 33]), max_size=9)

Merge = Callable[[Float64, Int64, Int64], tuple[Float64, Int64]]


def taken(moments: Float64, tallies: Int64, offsets: Int64) -> tuple[Float64, Int64]:
    """`per_site` by `take_`, of rows in blocks of one site or two."""
    cuts = sorted({0, *offsets[::2].tolist(), len(moments)}) if len(moments) else [0, 0]
    blocks = [
        [torch.tensor(np.ascontiguousarray(state[first:last])) for first, last in pairwise(cuts)]
        for state in (moments, tallies)
    ]
    sizes = Sizes(len(moments), len(offsets) - 1, hist=0, channel_hist=0)
    found, none = Taken(sizes), torch.zeros(0, dtype=torch.int64)
    take_(*blocks, [], [], none, [], torch.from_numpy(offsets), *found.into)
    return found.whole_moments, found.whole_tallies


both = pytest.mark.parametrize("merge", [per_site, taken])


def _rows(rng: np.random.Generator, rows: int) -> tuple[Float64, Int64]:
    """Channels of one to forty values, or of none: as an arena's records have them."""
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
def test_sites_are_merged_as_groups_are(merge: Merge, channels: list[int], seed: int) -> None:
    offsets = np.append(0, np.cumsum(channels, dtype=np.int64))
    moments, tallies = _rows(np.random.default_rng(seed), int(offsets[-1]))
    before = moments.tobytes(), tallies.tobytes()

    merged, total = merge(moments, tallies, offsets)

    assert (moments.tobytes(), tallies.tobytes()) == before
    assert merged.shape == (len(channels), 5)
    for site, (first, last) in enumerate(pairwise(offsets)):
        assert total[site].tolist() == tallies[first:last].sum(0).tolist()
        if total[site, COUNT] == 0:
            assert merged[site].tolist() == list(IDENTITY)
            continue
        expected, _ = combine(
            torch.from_numpy(moments[first:last].copy())[:, None],
            torch.from_numpy(tallies[first:last].copy())[:, None],
        )
        np.testing.assert_allclose(merged[site], expected[0].numpy(), rtol=1e-10, atol=1e-10)


@both
def test_equal_means_stay_equal_and_infinite_moments_add_nothing_that_is_no_number(
    merge: Merge,
) -> None:
    offsets = np.array([0, 3, 5])
    moments = np.array([IDENTITY] * 5)
    moments[:, MEAN] = 0.1
    moments[2, MEAN] = 0.0  # of a channel without values
    moments[3, M2] = np.inf
    tallies = np.zeros((5, 5), np.int64)
    tallies[:, COUNT] = 7, 3, 0, 5, 5

    merged, total = merge(moments, tallies, offsets)

    assert merged[:, MEAN].tolist() == [0.1, 0.1]
    assert merged[:, M2].tolist() == [0.0, np.inf]
    assert total[:, COUNT].tolist() == [10, 10]
