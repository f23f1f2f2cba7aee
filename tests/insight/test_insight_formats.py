"""insight.formats: shares lost in a number format, against torch's own casts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hookstats.insight.formats import (
    FORMATS,
    Format,
    best_scale,
    over,
    over_bounds,
    under,
    under_bounds,
)
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.stats.histogram import Histogram

DTYPES = {
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
SCALES = (2.0**-40, 2.0**-3, 1.0, 2.0**9, 2.0**100)
EXACT_OVER = {"fp8_e4m3": 4, "fp8_e5m2": 3}
"""By format, how many subdivision bits make every share over exact."""


def wide(n: int = 4000, octaves: int = 30, around: int = 0) -> Tensor:
    """float32 of both signs, their magnitudes spread over octaves; a tenth of them zeros."""
    exponents = torch.empty(n).uniform_(around - octaves / 2, around + octaves / 2)
    values = torch.exp2(exponents) * torch.randn(n).sign()
    values[::10] = 0.0
    return values


def hist_of(x: Tensor, bins: LogBins | LinearBins | None = None) -> Histogram:
    hist = channel_stats(x, None if x.dim() == 1 else 0, LogBins() if bins is None else bins).hist
    assert hist is not None
    return hist


def lost(x: Tensor, name: str, scale: float) -> tuple[float, float]:
    """The shares of `x` that torch's cast makes zero and cannot hold; scaled in float64."""
    scaled = x.double() * scale
    gone, too_great = cast_away(scaled if name in ("fp16", "bf16") else scaled.float(), name)
    return (gone & (x != 0)).double().mean().item(), too_great.double().mean().item()


def cast_away(values: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Where torch's cast to the format makes `values` zero, and where it cannot hold them."""
    cast = values.to(DTYPES[name]).double()
    too_great = ~cast.isfinite()
    if name == "fp8_e4m3":  # newer versions of torch clip to 448 what older ones make NaN
        too_great |= (cast.abs() == 448) & (values.abs() > 464)
    return cast == 0, too_great


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_is_what_torch_says(name: str) -> None:
    form, about = FORMATS[name], torch.finfo(DTYPES[name])
    assert form.name == name
    assert form.max == about.max
    assert form.min_normal == about.smallest_normal
    assert form.min_subnormal == about.smallest_normal * about.eps


@pytest.mark.parametrize("name", FORMATS)
def test_the_thresholds_are_where_torch_rounds_away(name: str) -> None:
    form, step = FORMATS[name], 1 + 2.0**-10
    values = torch.tensor([form.over / step, form.over * step], dtype=torch.float32)
    assert cast_away(values, name)[1].tolist() == [False, True]
    values = torch.tensor([form.under / step, form.under * step], dtype=torch.float32)
    assert values.to(DTYPES[name]).double().tolist() == [0, form.min_subnormal]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bits", [0, 3, 4, 7])
def test_shares_against_a_cast(name: str, scale: float, bits: int) -> None:
    form = FORMATS[name]
    # Centred on each of the thresholds, so that many values are on either side.
    for threshold in (form.over, form.under):
        x = wide(around=int(math.log2(threshold / scale))) if scale < 2.0**50 else wide()
        x = x.where(x.isfinite(), 1.0)
        gone, infinite = lost(x, name, scale)
        hist = hist_of(x, LogBins(bits))
        for share, bounds, true in (
            (under(hist, name, scale), under_bounds(hist, name, scale), gone),
            (over(hist, name, scale), over_bounds(hist, form, scale), infinite),
        ):
            assert bounds[0].item() <= share.item() <= bounds[1].item()
            assert bounds[0].item() - 1e-12 <= true <= bounds[1].item() + 1e-12
        if form.under / scale > 2.0**-126:  # no subnormal float32
            assert under(hist, name, scale).item() == pytest.approx(gone, abs=1e-12)
        if bits >= EXACT_OVER.get(name, 8):
            assert over(hist, name, scale).item() == pytest.approx(infinite, abs=1e-12)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.sampled_from(list(FORMATS)),
    st.integers(-60, 60),
    st.integers(0, 7),
)
def test_bounds_hold_for_any_values(
    values: list[float], name: str, exponent: int, bits: int
) -> None:
    x, form, scale = torch.tensor(values, dtype=torch.float64), FORMATS[name], 2.0**exponent
    hist = hist_of(x.float(), LogBins(bits))
    magnitude = x.abs() * scale
    for bounds, share, certain, possible in (
        (
            under_bounds(hist, form, scale),
            under(hist, form, scale),
            (magnitude < form.under) & (x != 0),
            (magnitude <= form.under) & (x != 0),
        ),
        (
            over_bounds(hist, form, scale),
            over(hist, form, scale),
            magnitude > form.over,
            magnitude >= form.over,
        ),
    ):
        low, high = (bound.item() for bound in bounds)
        assert low <= share.item() <= high
        assert low <= possible.double().mean().item() + 1e-12
        assert high >= certain.double().mean().item() - 1e-12
        assert 0 <= low <= high <= 1


def test_nothing_is_over_below_the_threshold() -> None:
    hist = hist_of(torch.tensor([1.0, 463.0, -463.0]))  # in the bin that holds 464
    assert over_bounds(hist, "fp8_e4m3") == (0.0, 0.0)
    assert over(hist_of(torch.tensor([1.0, 500.0])), "fp8_e4m3").item() == 0.5


def test_channels_have_scales_of_their_own() -> None:
    x = torch.stack([wide(), wide(around=-30)])
    scales = torch.tensor([1.0, 2.0**20])
    hist = hist_of(x)
    for i in range(2):
        one = hist_of(x[i])
        for share in (under, over):
            expected = share(one, "fp8_e4m3", scales[i].item())
            assert share(hist, "fp8_e4m3", scales)[i] == expected.item()


@pytest.mark.parametrize("name", FORMATS)
def test_the_best_scale_loses_least(name: str) -> None:
    x = torch.stack([torch.randn(4000) * 1e-5, wide(octaves=60), wide(octaves=20, around=15)])
    hist = hist_of(x, LogBins(7))
    best = best_scale(hist, name)
    exponents = range(-100, 101)
    totals = torch.tensor([[sum(lost(row, name, 2.0**e)) for e in exponents] for row in x])
    for row, total, scale in zip(x, totals, best.tolist(), strict=True):
        assert math.frexp(scale)[0] == 0.5
        assert sum(lost(row, name, scale)) == pytest.approx(total.min().item(), abs=1e-3)
        # Twice of it loses more: it is the greatest of several as good.
        assert scale == 2.0**127 or sum(lost(row, name, 2 * scale)) > total.min().item() - 1e-3
    if name == "fp8_e4m3":
        amax = x[0].abs().max().item()
        assert 224 < amax * best[0].item() < 2 * 464


def test_an_outlier_is_given_up() -> None:
    x = torch.cat((torch.randn(10_000), torch.tensor([1e9])))
    hist = hist_of(x)
    best = best_scale(hist, "fp8_e4m3")
    assert over(hist, "fp8_e4m3", best).item() == pytest.approx(1 / 10_001)
    assert under(hist, "fp8_e4m3", best).item() < 1e-3
    assert under(hist, "fp8_e4m3", 448 / 1e9).item() > 0.99


def test_tensors_without_values_to_lose() -> None:
    zeros, nothing = hist_of(torch.zeros(3)), hist_of(torch.full((3,), torch.nan))
    for form in FORMATS:
        assert best_scale(zeros, form).item() == 1
        assert best_scale(nothing, form).item() == 1
        assert under(zeros, form).item() == over(zeros, form).item() == 0
        assert math.isnan(under(nothing, form).item())
        assert math.isnan(over(nothing, form).item())


def test_narrow_log_bins_bound_what_they_hold_together() -> None:
    x = wide(octaves=40)
    hist = hist_of(x, LogBins(3, -4, 4))
    for share, bounds, true in (
        (under(hist, "fp8_e4m3"), under_bounds(hist, "fp8_e4m3"), lost(x, "fp8_e4m3", 1.0)[0]),
        (over(hist, "fp8_e4m3"), over_bounds(hist, "fp8_e4m3"), lost(x, "fp8_e4m3", 1.0)[1]),
    ):
        assert bounds[0].item() <= share.item() <= bounds[1].item()
        assert bounds[0].item() <= true <= bounds[1].item()


def test_what_is_refused() -> None:
    hist = hist_of(torch.ones(3))
    with pytest.raises(ValueError, match="form = 'fp4': expected a Format or one of fp8_e4m3"):
        under(hist, "fp4")
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"scale = .*: expected finite numbers above 0"):
            over(hist, "fp16", scale)
    with pytest.raises(ValueError, match=r"hist has bins LinearBins\(.*expected LogBins"):
        best_scale(hist_of(torch.ones(3), LinearBins(4, -1.0, 1.0)), "fp16")


def test_a_format_of_ones_own() -> None:
    e2m1 = Format("fp4_e2m1", 6.0, 1.0, 0.5)
    assert (e2m1.over, e2m1.under) == (7.0, 0.25)
    hist = hist_of(torch.tensor([0.2, 0.3, 6.9, 7.5]))
    assert under(hist, e2m1).item() == over(hist, e2m1).item() == 0.25
