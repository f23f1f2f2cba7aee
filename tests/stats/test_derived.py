"""Derived statistics: their definitions on awkward data, and one implementation for all readers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from hookstats.stats import state
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import STATISTICS, statistic_names


def stats_of(*channels: NDArray[np.float64], higher: bool = True) -> ChannelStats:
    """The statistics of the finite `channels`, by the definitions of the columns."""
    moments, tallies = [], []
    for x in channels:
        mean = x.mean() if x.size else 0.0
        away = (x - mean).astype(np.longdouble)
        extremes = (x.min(), x.max()) if x.size else (np.inf, -np.inf)
        powers = [float((away**power).sum()) for power in (2, 3, 4)]
        row = [mean, powers[0], *extremes, float(np.abs(x).sum())]
        moments.append([*row, *powers[1:]] if higher else row)
        tallies.append([x.size, 0, 0, 0, int((x == 0).sum())])
    return ChannelStats(
        torch.tensor(moments, dtype=torch.float64), torch.tensor(tallies, dtype=torch.int64)
    )


def test_norms_of_numbers_whose_squares_are_beyond_float64() -> None:
    huge, tiny = np.full(4, 1e200), np.full(4, 1e-200)
    found = stats_of(huge, tiny, higher=False)
    assert found.l2_norm.tolist() == pytest.approx([2e200, 2e-200], rel=1e-15)
    assert found.rms.tolist() == [1e200, 1e-200]


def test_the_l2_norm_loses_nothing_to_a_rounded_mean_square() -> None:
    # sqrt(count) * rms rounds m2 / count first: to zero, where m2 is the least number there is.
    least = 5e-324
    moments = torch.tensor([[0.0, least, -1e-162, 1e-162, 2e-162]], dtype=torch.float64)
    tallies = torch.tensor([[1000, 0, 0, 0, 998]])
    assert ChannelStats(moments, tallies).l2_norm.item() == np.sqrt(least)
    # Elsewhere the norm is right to the last bits.
    x = np.random.default_rng(0).normal(3.0, 1.0, 999)
    exact = np.sqrt(float(sum(Fraction(v) ** 2 for v in x.tolist())))
    assert stats_of(x).l2_norm.item() == pytest.approx(exact, rel=4e-16)


def test_the_rms_of_equal_values_is_their_magnitude() -> None:
    moments = torch.tensor([[-0.1, 0.0, -0.1, -0.1, 0.7]], dtype=torch.float64)
    assert ChannelStats(moments, torch.tensor([[7, 0, 0, 0, 0]])).rms.item() == 0.1


@pytest.mark.parametrize("name", ["skewness", "kurtosis"])
def test_skewness_and_kurtosis_are_those_of_scipy(name: str) -> None:
    random = np.random.default_rng(1)
    channels = [
        random.normal(size=1000),
        random.exponential(size=333),
        random.normal(1e6, 1.0, 5000),
        np.array([1.0, 2.0, 9.0]),
        np.array([1.0, 2.0]),
    ]
    of = {"skewness": scipy_stats.skew, "kurtosis": scipy_stats.kurtosis}[name]
    expected = [of(x, bias=True) for x in channels]
    assert getattr(stats_of(*channels), name).tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["skewness", "kurtosis"])
@pytest.mark.parametrize("x", [[], [2.0], [0.1] * 10, [0.1, 0.1 + 2e-17], [0.0] * 3])
@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::scipy.stats._axis_nan_policy.SmallSampleWarning")
def test_skewness_and_kurtosis_are_nan_where_those_of_scipy_are(name: str, x: list[float]) -> None:
    of = {"skewness": scipy_stats.skew, "kurtosis": scipy_stats.kurtosis}[name]
    assert np.isnan(of(np.array(x), bias=True))
    assert getattr(stats_of(np.array(x)), name).isnan().item()


def test_without_higher_moments_skewness_says_how_to_ask_for_them() -> None:
    found = stats_of(np.arange(3.0), higher=False)
    for name in ("skewness", "kurtosis"):
        with pytest.raises(ValueError, match="not asked for; ask with moments=4"):
            getattr(found, name)


def test_higher_moments_merge_in_any_split() -> None:
    random = np.random.default_rng(2)
    x = random.exponential(size=900) + 10.0
    whole = stats_of(x)
    for cuts in ([0, 900], [1, 2, 899], [300, 600], [450]):
        parts = [stats_of(part) for part in np.split(x, cuts)]
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merge(part)
        for name in statistic_names(higher=True):
            got, expected = getattr(merged, name), getattr(whole, name)
            torch.testing.assert_close(got, expected, rtol=1e-11, atol=0.0)
    together = stats_of(*np.split(x, [100, 100, 500])).per_tensor()
    torch.testing.assert_close(together.kurtosis, whole.kurtosis, rtol=1e-11, atol=0.0)


def test_merging_with_no_values_changes_no_bit() -> None:
    some, none = stats_of(np.array([1.0, 2.5, -7.0])), stats_of(np.zeros(0))
    for merged in (some.merge(none), none.merge(some)):
        assert torch.equal(merged.moments, some.moments)


def test_every_statistic_of_the_table_is_a_property_and_the_other_way_round() -> None:
    found = stats_of(np.arange(6.0), np.zeros(3))
    for name, one in STATISTICS.items():
        values = getattr(found, name)
        assert values.shape == (2,)
        assert values.dtype == (torch.int64 if one.scale == "count" else torch.float64)
    assert set(state.TALLIES) <= STATISTICS.keys()
