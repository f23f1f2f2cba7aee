"""insight.coarsen: fewer bins, the same counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hookstats.insight.histograms import coarsen
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.histogram import Histogram

BINS = (
    LogBins(),
    LogBins(0),
    LogBins(5),
    LogBins(3, -4, 3),
    LinearBins(5, -1.0, 1.0),
    LinearBins(1000, -3.0, 3.0),
)


def hist_of(x: Tensor, bins: Bins) -> Histogram:
    hist = channel_stats(x, None, bins).hist
    assert hist is not None
    return hist


def check(x: Tensor, bins: Bins, most: int) -> tuple[np.ndarray, np.ndarray]:
    """What holds for any tensor."""
    hist = hist_of(x, bins)
    counts, edges = coarsen(hist, most)
    assert (counts.dtype, edges.dtype) == (np.int64, np.float64)
    assert len(edges) == len(counts) + 1 <= most + 1
    assert counts.sum() == len(x)
    assert counts[0] > 0
    assert counts[-1] > 0
    assert np.isfinite(edges).all()
    assert (np.diff(edges) >= 0).all()
    assert edges[0] <= x.min() <= x.max() <= edges[-1]
    known = set(bins.edges().double().tolist()) | {hist.min.item(), hist.max.item()}
    assert known.issuperset(edges.tolist())
    # Up to each inner edge as many values as there are: those that equal it may be on either side.
    reached, sorted_ = counts.cumsum()[:-1], x.double().sort().values.numpy()
    assert (np.searchsorted(sorted_, edges[1:-1], "left") <= reached).all()
    assert (reached <= np.searchsorted(sorted_, edges[1:-1], "right")).all()
    return counts, edges


@pytest.mark.check
@pytest.mark.parametrize("bins", BINS, ids=str)
@pytest.mark.parametrize("most", [8, 30, 512])
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False)
        | st.sampled_from([0.0, 1.0, -1.0, 2.0**-20, 8.0, -16.0]),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=30)
def test_counts_are_those_of_the_values(bins: Bins, most: int, values: list[float]) -> None:
    check(torch.tensor(values), bins, most)


def test_log_bins_keep_their_resolution_for_the_greatest() -> None:
    x = torch.randn(100_000)
    hist = hist_of(x, LogBins())
    counts, edges = check(x, LogBins(), 512)
    old = hist.edges.numpy()
    kept = old[(np.abs(old) >= 2.0**-28) & (np.abs(old) <= np.abs(edges).max())]
    assert np.isin(kept[(kept > edges[0]) & (kept < edges[-1])], edges).all()
    assert 2 * 8 * 28 < len(counts) <= 512


def test_subdivision_is_given_up_for_range() -> None:
    x = torch.randn(100_000)
    _, edges = check(x, LogBins(), 65)
    ratios = edges[-10:][1:] / edges[-10:][:-1]
    assert ratios.max() == 1.5  # 1 bit: 1, 1.5, 2
    assert edges[edges > 0].min() < 2.0**-13


def test_one_sign_has_all_the_room() -> None:
    one, _ = check(torch.randn(100_000).abs() + 1e-6, LogBins(), 65)
    both, _ = check(torch.randn(100_000), LogBins(), 65)
    assert len(one) > 0.9 * len(both)


@pytest.mark.parametrize("bins", BINS[:4], ids=str)
def test_zeros_have_a_bin_around_zero(bins: LogBins) -> None:
    counts, edges = check(torch.zeros(7), bins, 64)
    assert counts.tolist() == [7]
    assert edges[0] < 0 < edges[1]


def test_what_is_refused_and_what_is_empty() -> None:
    counts, edges = coarsen(hist_of(torch.full((2,), torch.nan), LogBins()), 64)
    assert len(counts) == len(edges) == 0
    several = channel_stats(torch.ones(2, 3), 0, LogBins()).hist
    assert several is not None
    with pytest.raises(ValueError, match="hist has 2 channels: expected one"):
        coarsen(several, 64)
    with pytest.raises(ValueError, match="most = 7: expected 8 or more"):
        coarsen(hist_of(torch.ones(2), LogBins()), 7)
