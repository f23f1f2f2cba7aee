"""Derived statistics: their definitions on awkward data, and one implementation for all readers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats import state
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import STATISTICS
from hookstats.stats.histogram import Histogram


def stats_of(*channels: NDArray[np.float64]) -> ChannelStats:
    """The statistics of the finite `channels`, by the definitions of the columns."""
    moments, tallies = [], []
    for x in channels:
        mean = x.mean() if x.size else 0.0
        away = (x - mean).astype(np.longdouble)
        extremes = (x.min(), x.max()) if x.size else (np.inf, -np.inf)
        moments.append([mean, float((away**2).sum()), *extremes, float(np.abs(x).sum())])
        tallies.append([x.size, 0, 0, 0, int((x == 0).sum())])
    return ChannelStats(
        torch.tensor(moments, dtype=torch.float64), torch.tensor(tallies, dtype=torch.int64)
    )


def test_norms_of_numbers_whose_squares_are_beyond_float64() -> None:
    huge, tiny = np.full(4, 1e200), np.full(4, 1e-200)
    found = stats_of(huge, tiny)
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


def test_moments_merge_in_any_split() -> None:
    random = np.random.default_rng(2)
    x = random.exponential(size=900) + 10.0
    whole = stats_of(x)
    for cuts in ([0, 900], [1, 2, 899], [300, 600], [450]):
        parts = [stats_of(part) for part in np.split(x, cuts)]
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merge(part)
        for name in STATISTICS:
            got, expected = getattr(merged, name), getattr(whole, name)
            torch.testing.assert_close(got, expected, rtol=1e-11, atol=0.0)


def histogram_of(x: NDArray[np.float64], bins: Bins | None = None) -> Histogram:
    found = channel_stats(torch.from_numpy(x), None, bins or LogBins()).hist
    assert found is not None
    return found


@pytest.mark.parametrize("scale", [1e-30, 1.0, -3e30])
@pytest.mark.parametrize("seed", range(3))
def test_skewness_and_kurtosis_of_histograms_are_nearly_those_of_scipy(
    seed: int, scale: float
) -> None:
    random = np.random.default_rng(seed)
    n = 20_000
    for name, x in {
        "normal": random.normal(size=n),
        "normal around 1": random.normal(1.0, 1.0, n),
        "normal around -2": random.normal(-2.0, 1.0, n),
        "uniform": random.uniform(size=n),
        "uniform around 0": random.uniform(-1.0, 1.0, n),
        "exponential": random.exponential(size=n),
        "gamma": random.gamma(0.5, size=n),
        "beta": random.beta(2.0, 5.0, n),
        "laplace": random.laplace(size=n),
        "logistic": random.logistic(size=n),
        "lognormal": random.lognormal(0.0, 0.5, n),
        "relu": np.maximum(random.normal(size=n), 0.0),
        "two values": random.choice([1.0, 3.0], n),
    }.items():
        found, s, k = histogram_of(x * scale), scipy_stats.skew(x * scale), scipy_stats.kurtosis(x)
        assert abs(found.skewness.item() - s) <= 0.02 + abs(s) / 50, name
        assert abs(found.kurtosis.item() - k) <= (k + 3) / 50, name


@pytest.mark.parametrize("seed", range(3))
def test_of_heavy_tails_a_few_values_decide(seed: int) -> None:
    x = np.random.default_rng(seed).standard_t(3, 20_000)
    found, s, k = histogram_of(x), scipy_stats.skew(x), scipy_stats.kurtosis(x)
    third = (np.abs(x - x.mean()) ** 3).mean() / x.std() ** 3
    assert abs(found.skewness.item() - s) <= 3 / 17 * third
    assert abs(found.kurtosis.item() - k) <= 4 / 17 * (k + 3)


def test_skewness_and_kurtosis_of_linear_bins_by_channel() -> None:
    x = np.random.default_rng(0).normal(1.0, 1.0, (20_000, 2)) ** [1, 2]
    found = channel_stats(torch.from_numpy(x), 1, LinearBins(512, -4.0, 36.0)).hist
    assert found is not None
    assert found.skewness.tolist() == pytest.approx(scipy_stats.skew(x).tolist(), abs=0.02)
    assert found.kurtosis.tolist() == pytest.approx(
        scipy_stats.kurtosis(x).tolist(), rel=0.01, abs=0.05
    )


@pytest.mark.parametrize("x", [[], [2.0], [0.1] * 10, [0.0] * 3, [100.0, 101.0, 103.0] * 9])
def test_values_that_bins_do_not_resolve_have_no_shape(x: list[float]) -> None:
    found = histogram_of(np.array(x))
    assert found.skewness.isnan().all()
    assert found.kurtosis.isnan().all()


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
