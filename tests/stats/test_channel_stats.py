"""channel_stats, ChannelStats and Histogram: what a user gets, and what is refused."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats as scipy_stats
from support.oracle import DTYPES, State, check
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats import state
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import STATISTICS
from hookstats.stats.histogram import Histogram

FLOAT_STATISTICS = ("mean", "var", "std", "min", "max", "l1_norm", "l2_norm", "rms", "amax")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both_histograms(x: Tensor, bins: Bins, channel_bins: Bins) -> ChannelStats:
    """What a watched site holds: one histogram of the tensor and one per channel."""
    whole, channels = channel_stats(x, None, bins), channel_stats(x, 1, channel_bins)
    assert whole.hist is not None
    assert channels.hist is not None
    return ChannelStats(
        channels.moments,
        channels.tallies,
        counts=whole.hist.slot_counts[0],
        bins=bins,
        channel_counts=channels.hist.slot_counts,
        channel_bins=channel_bins,
    )


def test_every_statistic_against_torch() -> None:
    x = normal(4, 3, 50) * 2 + 1
    s = channel_stats(x, channel_dim=1)
    rows = x.transpose(0, 1).reshape(3, -1)
    expected = {
        "mean": rows.mean(1),
        "var": rows.var(1, correction=0),
        "std": rows.std(1, correction=0),
        "min": rows.amin(1),
        "max": rows.amax(1),
        "l1_norm": rows.abs().sum(1),
        "l2_norm": rows.square().sum(1).sqrt(),
        "rms": rows.square().mean(1).sqrt(),
        "amax": rows.abs().amax(1),
    }
    assert tuple(expected) == FLOAT_STATISTICS
    for name, value in expected.items():
        torch.testing.assert_close(getattr(s, name), value, rtol=1e-12, atol=0)
    torch.testing.assert_close(s.variance(correction=1), rows.var(1), rtol=1e-12, atol=0)
    assert s.count.tolist() == [200] * 3
    assert len(s) == 3
    assert s.hist is None
    assert s.tensor_hist is None


def test_counts_by_hand() -> None:
    x = torch.tensor([[1.0, -0.0, 0.0, math.nan], [math.inf, -math.inf, -math.inf, -3.0]])
    s = channel_stats(x, channel_dim=0)
    assert s.count.tolist() == [3, 1]
    assert s.nan.tolist() == [1, 0]
    assert s.posinf.tolist() == [0, 1]
    assert s.neginf.tolist() == [0, 2]
    assert s.zero.tolist() == [2, 0]
    assert s.amax.tolist() == [1, 3]
    assert s.variance(correction=1)[1].isnan()


def test_dtypes_of_the_statistics() -> None:
    s = channel_stats(normal(4, 3).half(), 1, LogBins())
    for name in state.TALLIES:
        assert getattr(s, name).dtype == torch.int64
        assert getattr(s, name).shape == (3,)
    for name in FLOAT_STATISTICS:
        assert getattr(s, name).dtype == torch.float64
        assert getattr(s, name).shape == (3,)


def test_no_values_is_the_identity() -> None:
    for x, channel_dim, channels in (
        (torch.zeros(0, 3), 1, 3),
        (torch.zeros(3, 0), 0, 3),
        (torch.zeros(0), None, 1),
        (torch.full((2, 3), math.nan), 1, 3),
    ):
        s = channel_stats(x, channel_dim, LinearBins(4, 0.0, 1.0))
        assert s.hist is not None
        assert len(s) == channels
        assert not s.count.any()
        for name in ("mean", "var", "std", "rms"):
            assert getattr(s, name).isnan().all()
        assert (s.min == math.inf).all()
        assert (s.max == -math.inf).all()
        assert (s.amax == -math.inf).all()
        assert not s.l1_norm.any()
        assert not s.l2_norm.any()
        assert s.hist.quantile(0.5).isnan().all()
        whole = s.per_tensor()
        assert whole.mean.isnan()
        assert whole.min == math.inf


def test_no_channels() -> None:
    s = channel_stats(torch.zeros(3, 0), 1, LogBins())
    assert s.hist is not None
    assert len(s) == 0
    assert s.mean.shape == (0,)
    assert s.hist.quantile([0.1, 0.9]).shape == (2, 0)
    assert s.merge(s).count.shape == (0,)
    assert s.per_tensor().count.tolist() == [0]
    assert repr(s)


@pytest.mark.parametrize("bins", [None, LogBins(), LinearBins(8, -2.0, 2.0)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, bins: Bins | None) -> None:
    x = normal(20, 3).abs().mul(3).to(dtype)
    for channel_dim in (None, 0, 1, -1):
        s = channel_stats(x, channel_dim, bins)
        counts = None if s.hist is None else s.hist.slot_counts
        check(State(s.moments, s.tallies, None, counts), x, channel_dim, None, bins)


def test_histogram_reconciles() -> None:
    bins = LinearBins(8, -1.0, 1.0)
    hist = channel_stats(normal(100, 3), channel_dim=1, bins=bins).hist
    assert hist is not None
    assert hist.counts.shape == (3, 8)
    assert torch.equal(hist.edges, torch.linspace(-1, 1, 9))
    total = hist.counts.sum(1) + hist.underflow + hist.overflow
    assert total.tolist() == [100] * 3
    assert hist.underflow.all()
    assert hist.overflow.all()


@pytest.mark.parametrize("q", [0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize(
    "bins", [LinearBins(64, -3.0, 3.0), LinearBins(2, -0.5, 0.25), LogBins(), LogBins(1, -3, 0)]
)
def test_quantile_lies_in_the_bin_of_the_true_one(bins: Bins, q: float) -> None:
    x = normal(3, 1001)
    hist = channel_stats(x, 0, bins).hist
    assert hist is not None
    got = hist.quantile(q)
    edges = torch.cat((torch.tensor([-math.inf]), hist.edges, torch.tensor([math.inf]))).double()
    for channel, values in enumerate(x.sort(1).values):
        rank = max(math.ceil(q * 1001), 1)
        true = values[rank - 1]
        left = edges[edges <= true].amax().clamp(min=values[0])
        right = edges[edges >= true].amin().clamp(max=values[-1])
        assert left <= got[channel] <= right


def test_quantile_by_hand() -> None:
    hist = channel_stats(torch.tensor([0.5, 1.0, 1.5, 3.0]), bins=LinearBins(2, 0.0, 2.0)).hist
    assert hist is not None
    assert hist.slot_counts.tolist() == [[0, 1, 2, 1]]
    # Bins [0.5, 1), [1, 2] and overflow [2, 3] once they are cut to the values.
    assert hist.quantile([0.0, 0.25, 0.5, 0.75, 1.0]).flatten().tolist() == [0.5, 1, 1.5, 2, 3]
    assert hist.quantile(0.875).tolist() == [2.5]


def test_quantile_shapes_and_constants() -> None:
    hist = channel_stats(torch.full((5, 3), 0.3), 1, LogBins()).hist
    assert hist is not None
    assert hist.quantile(0.5).shape == (3,)
    assert hist.quantile([0.1, 0.5]).shape == (2, 3)
    assert hist.quantile(torch.rand(2, 4)).shape == (2, 4, 3)
    assert (hist.quantile([0.0, 0.3, 1.0]) == torch.tensor(0.3).double()).all()


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan, [0.5, 2.0]])
def test_quantile_refuses_what_is_no_fraction(q: Any) -> None:
    hist = channel_stats(normal(5), bins=LogBins()).hist
    assert hist is not None
    with pytest.raises(ValueError, match=r"q = .*expected fractions in 0..1"):
        hist.quantile(q)


def test_huge_values_have_a_quantile() -> None:
    x = torch.tensor([-1e308, 1e308, 3e38, 3.5e38], dtype=torch.float64)
    hist = channel_stats(x, bins=LogBins()).hist
    assert hist is not None
    assert hist.quantile([0.0, 1.0]).flatten().tolist() == [-1e308, 1e308]
    assert hist.underflow.tolist() == [1]
    assert hist.overflow.tolist() == [2]


def test_per_tensor_is_the_whole() -> None:
    x = normal(50, 4) * torch.tensor([1.0, 1e3, 1e-3, 1.0]) + torch.tensor([0.0, 1e4, 1.0, -5.0])
    bins = LogBins()
    parts, whole = channel_stats(x, 1, bins).per_tensor(), channel_stats(x, None, bins)
    assert len(parts) == 1
    for name in FLOAT_STATISTICS:
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=0)
    assert torch.equal(parts.tallies, whole.tallies)
    assert parts.hist is not None
    assert whole.hist is not None
    assert torch.equal(parts.hist.slot_counts, whole.hist.slot_counts)
    assert torch.equal(parts.hist.min, whole.min)


def test_per_tensor_prefers_the_tensors_histogram() -> None:
    s = both_histograms(normal(50, 4), LogBins(), LinearBins(4, -1.0, 1.0))
    assert s.tensor_hist is not None
    assert s.tensor_hist.counts.shape == (1, LogBins().bins)
    assert s.tensor_hist.min == s.min.min()
    assert s.tensor_hist.max == s.max.max()
    whole = s.per_tensor()
    assert whole.hist is not None
    assert whole.hist.bins == LogBins()
    assert torch.equal(whole.hist.slot_counts, s.tensor_hist.slot_counts)
    again = whole.per_tensor().hist
    assert again is not None
    assert torch.equal(again.slot_counts, whole.hist.slot_counts)
    assert channel_stats(normal(5, 4), 1).per_tensor().hist is None


def test_merge_is_the_whole_and_changes_neither() -> None:
    x = normal(60, 3)
    bins, channel_bins = LogBins(), LinearBins(4, -1.0, 1.0)
    one, two = (both_histograms(part, bins, channel_bins) for part in (x[:17], x[17:]))
    before = one.moments.clone(), one.tallies.clone()
    merged, whole = one.merge(two), both_histograms(x, bins, channel_bins)
    torch.testing.assert_close(merged.moments, whole.moments, rtol=1e-12, atol=1e-12)
    assert torch.equal(merged.tallies, whole.tallies)
    for got, expected in ((merged.hist, whole.hist), (merged.tensor_hist, whole.tensor_hist)):
        assert got is not None
        assert expected is not None
        assert torch.equal(got.slot_counts, expected.slot_counts)
    assert torch.equal(one.moments, before[0])
    assert torch.equal(one.tallies, before[1])


def test_histograms_merge() -> None:
    x = normal(60, 3)
    one, two, whole = (channel_stats(part, 1, LogBins()).hist for part in (x[:17], x[17:], x))
    assert one is not None
    assert two is not None
    assert whole is not None
    merged = one.merge(two)
    assert torch.equal(merged.slot_counts, whole.slot_counts)
    assert torch.equal(merged.quantile(0.3), whole.quantile(0.3))
    columns = one.slot_counts, one.min, one.max, one.count
    first = Histogram(LogBins(), *(column[:1] for column in columns))
    with pytest.raises(ValueError, match=r"other has 1 channels: expected 3"):
        one.merge(first)
    other = channel_stats(x, 1, LogBins(2)).hist
    assert other is not None
    with pytest.raises(ValueError, match=r"expected bins LogBins\(subdivision_bits=3"):
        one.merge(other)


def test_merge_refuses_what_is_not_alike() -> None:
    x = normal(10, 3)
    plain, log = channel_stats(x, 1), channel_stats(x, 1, LogBins())
    with pytest.raises(ValueError, match="other has 10 channels: expected 3"):
        plain.merge(channel_stats(x, 0))
    with pytest.raises(ValueError, match=r"other has hist with bins LogBins.*: expected None"):
        plain.merge(log)
    with pytest.raises(ValueError, match="expected LogBins"):
        log.merge(channel_stats(x, 1, LinearBins(4, 0.0, 1.0)))


def test_a_state_comes_from_numpy_arrays() -> None:
    s = channel_stats(normal(10, 3), 1, LogBins())
    assert s.hist is not None
    arrays = [t.numpy().copy() for t in (s.moments, s.tallies, s.hist.slot_counts)]
    moments, tallies, counts = map(torch.from_numpy, arrays)
    twin = ChannelStats(moments, tallies, channel_counts=counts, channel_bins=LogBins())
    assert twin.hist is not None
    assert torch.equal(twin.hist.quantile(0.5), s.hist.quantile(0.5))
    assert repr(twin) == repr(s)
    with pytest.raises(ValueError, match="in pairs"):
        ChannelStats(moments, tallies, channel_counts=counts)


def test_pickle() -> None:
    s = channel_stats(normal(10, 3), 1, LogBins())
    twin = pickle.loads(pickle.dumps(s))
    assert torch.equal(twin.moments, s.moments)
    assert twin.hist.bins == LogBins()


def test_repr_is_short() -> None:
    s = channel_stats(torch.tensor([[1.0, 2.0, math.nan, 3.0]]), 0, LogBins())
    assert repr(s) == "ChannelStats(channels=1, count=3, mean=2, std=0.8165, min=1, max=3, nan=1)"
    assert repr(s.hist).startswith("Histogram(channels=1, bins=LogBins(")


def test_inference_tensors_and_negative_bits() -> None:
    with torch.inference_mode():
        x = normal(4, 3)
        inside = channel_stats(x, 1, LogBins())
    outside = channel_stats(x, 1, LogBins())
    merged = inside.merge(outside)
    assert merged.count.tolist() == [8] * 3
    negative = torch.complex(normal(4, 3), normal(4, 3, seed=1)).conj().imag
    assert negative.is_neg()
    assert torch.equal(channel_stats(negative, 1).max, -normal(4, 3, seed=1).amin(0))


def quantised() -> Tensor:
    return torch._empty_affine_quantized([4, 3], scale=1.0, zero_point=0, dtype=torch.quint8)


def nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(4, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(4, 3, dtype=torch.complex64), "x has dtype torch.complex64: expected"),
        (quantised, "x has dtype torch.quint8: expected a strided tensor of bfloat16, bool"),
        (lambda: torch.ones(4, 3).to_sparse(), "x has layout torch.sparse_coo"),
        (lambda: torch.ones(4, 3, device="meta"), "x has device meta"),
        (fake, "x has no data (a FakeTensor)"),
        (nested, "x has a nested tensor"),
        (lambda: np.ones((4, 3)), "x = ndarray: expected a torch.Tensor"),
        (lambda: None, "x = NoneType"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*:UserWarning")
def test_refused_tensors_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        channel_stats(make(), 1, LogBins())


def test_torch_func_is_refused() -> None:
    with pytest.raises(ValueError, match=r"inside a torch.func transform"):
        torch.vmap(lambda row: channel_stats(row).mean)(normal(4, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channel_dim": 2}, "channel_dim = 2: expected None or a dimension of x, which has shape"),
        ({"channel_dim": -3}, "channel_dim = -3"),
        ({"channel_dim": "last"}, "channel_dim = 'last'"),
        ({"channel_dim": True}, "channel_dim = True: expected None or a dimension"),
        ({"bins": 64}, "bins = 64: expected LinearBins(64, lo=-4.0, hi=4.0), LogBins() or None"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        channel_stats(normal(4, 3), **arguments)


def test_a_scalar_has_no_dimension() -> None:
    assert channel_stats(torch.tensor(2.0)).mean.tolist() == [2.0]
    with pytest.raises(ValueError, match="channel_dim = 0"):
        channel_stats(torch.tensor(2.0), 0)


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
