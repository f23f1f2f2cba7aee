"""insight.channels: masks and shares against the raw values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hookstats.insight.channels import MARGIN, constant, dead, outlier, saturated, saturation
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.bins import LinearBins, LogBins

BINS = (None, LogBins(), LogBins(0), LinearBins(64, -2.0, 2.0), LinearBins(3, -0.1, 0.1))


def near_the_extreme(x: Tensor, margin: float = MARGIN) -> float:
    """The share of the finite values of `x` within `margin` of the greatest magnitude."""
    x = x[x.isfinite()].double().abs()
    return (x >= (1 - margin) * x.max()).double().mean().item() if len(x) else 0.0


def test_dead_and_constant() -> None:
    nan = torch.nan
    x = torch.tensor(
        [[0.0, -0.0, 0.0], [0.0, nan, 0.0], [0.0, 0.0, 1e-30], [2.0, 2.0, 2.0], [nan, nan, nan]]
    )
    x = torch.cat((x, torch.tensor([[5.0, nan, nan]])))
    stats = channel_stats(x, 0)
    assert dead(stats).tolist() == [True, True, False, False, False, False]
    assert constant(stats).tolist() == [True, True, False, True, False, False]


def test_outliers_are_of_another_size_than_the_median() -> None:
    x = torch.randn(8, 1000)
    x[0] = 0.0  # dead channels say nothing of the others
    x[1] = torch.nan
    x[5] *= 30
    x[6] *= 4
    stats = channel_stats(x, 0)
    rms = x[2:].double().square().mean(1).sqrt()
    assert (rms > 10 * rms.median()).nonzero().flatten().tolist() == [3]
    assert outlier(stats).nonzero().flatten().tolist() == [5]
    assert outlier(stats, 3.0).nonzero().flatten().tolist() == [5, 6]
    assert not outlier(channel_stats(torch.zeros(3, 2), 0)).any()
    with pytest.raises(ValueError, match=r"factor = 0.5: expected 1 or more"):
        outlier(stats, 0.5)


@pytest.mark.parametrize("bins", BINS)
@given(
    values=st.lists(st.floats(-3.0, 3.0, width=32), min_size=1, max_size=50),
    gain=st.floats(0.1, 10),
)
def test_saturation_is_never_more_than_there_is(bins, values: list[float], gain: float) -> None:
    x = (torch.tensor(values) * gain).tanh()[None]
    assert 0 <= saturation(channel_stats(x, 0, bins)).item() <= near_the_extreme(x) + 1e-9


@pytest.mark.parametrize("gain", [0.5, 2.0, 40.0])
def test_saturation_is_close_where_there_are_fine_bins(gain: float) -> None:
    x = (torch.randn(4, 5000) * gain).tanh()
    got = saturation(channel_stats(x, 0, LogBins(7)))
    true = torch.tensor([near_the_extreme(row) for row in x])
    assert torch.all(got.float() <= true)
    torch.testing.assert_close(got.float(), true, atol=0.02, rtol=0)
    moments = saturation(channel_stats(x, 0))
    assert torch.all(moments.float() <= true)
    if gain == 40:
        assert torch.all(moments > 0.5)


def test_saturated_or_not() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(1000, generator=generator)
    x = torch.stack(
        [
            normal,
            normal.relu(),
            (20 * normal).tanh(),
            (20 * normal).clamp(-1, 1),
            torch.full((1000,), 3.0),
            torch.zeros(1000),
            torch.full((1000,), torch.nan),
        ]
    )
    expected = [False, False, True, True, False, False, False]
    for bins in BINS:
        assert saturated(channel_stats(x, 0, bins)).tolist() == expected
    for share in (0.0, 1.5, torch.nan):
        with pytest.raises(ValueError, match=r"share = .*: expected a fraction"):
            saturated(channel_stats(x, 0), share)
    with pytest.raises(ValueError, match=r"margin = 1: expected a number between 0 and 1"):
        saturation(channel_stats(x, 0), 1)
