"""insight: shares and masks of channels, and what goes from layer to layer, against the tensors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.samples import record_of, sample, tensors
from torch import Tensor, nn

from hookstats.insight.channels import MARGIN, constant, dead, outlier, saturated, saturation
from hookstats.insight.layers import (
    NonFinite,
    first_nonfinite,
    gradient_to_weight,
    growth,
    per_tensor,
)
from hookstats.kernels.of_tensor import channel_stats
from hookstats.runs.run import open_run
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.watching.watch import watch


def test_per_tensor_has_a_row_a_site() -> None:
    record = sample()
    got = per_tensor(record)
    assert len(got) == len(record)
    for i, (x, _) in enumerate(tensors().values()):
        expected = channel_stats(x.double(), None, record.bins)
        assert torch.equal(got.tallies[i], expected.tallies[0])
        torch.testing.assert_close(got.moments[i], expected.moments[0], rtol=1e-6, atol=1e-6)
        assert got.hist is not None
        assert expected.hist is not None
        assert torch.equal(got.hist.counts[i], expected.hist.counts[0])
    assert per_tensor(sample(bins=None)).hist is None
    assert len(per_tensor(record_of({}))) == 0


def test_the_first_nonfinite_tensor() -> None:
    x = torch.zeros(4, 3)
    broken, worse = x.clone(), torch.full_like(x, torch.inf)
    broken[1, 2] = broken[2, 2] = torch.nan
    broken[3, 1] = -torch.inf
    record = record_of(
        {
            ("empty", "output"): (torch.zeros(2, 0), 1),
            ("a", "output"): (x, 1),
            ("b", "output"): (broken, 1),
            ("c", "output"): (worse, 1),
            ("d", "output"): (x, 1),
            ("c", "grad_output"): (worse, 1),
        },
        step=7,
        rank=2,
    )
    assert first_nonfinite(record) == NonFinite(7, 2, "b", "output", 1, 2, 0, 1, 2)
    assert first_nonfinite(record_of({("a", "output"): (x, 1)})) is None
    assert first_nonfinite(record_of({})) is None


class Poison(nn.Module):
    """Makes one channel NaN in one of its calls."""

    def __init__(self, call: int, channel: int) -> None:
        super().__init__()
        self.calls, self.call, self.channel = 0, call, channel

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls - 1 != self.call:
            return x
        mask = torch.arange(x.shape[-1]) == self.channel
        return torch.where(mask, torch.nan, x)


def test_the_first_nonfinite_tensor_of_a_run(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), Poison(3, 5), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, out=tmp_path / "run"):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    found = first_nonfinite(run)
    assert found is not None
    assert (found.step, found.site, found.kind, found.channel) == (3, "1", "output", 5)
    assert found.nan == 16
    assert first_nonfinite(run[2]) is None
    # From then on all is NaN, from the first layer on.
    later = first_nonfinite(run[4])
    assert later is not None
    assert (later.site, later.channel) == ("0", 0)


def test_gradient_to_weight() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].bias)
    model[0].bias.requires_grad = False
    with watch(model, kinds=("param", "param_grad", "output")) as w:
        model(torch.randn(5, 3)).square().sum().backward()
        w.step()
        got = gradient_to_weight(w.latest)
    assert list(got) == ["0.weight", "2.weight", "2.bias"]
    for name in ("0.weight", "2.weight"):
        parameter = model.get_parameter(name)
        assert parameter.grad is not None
        expected = (parameter.grad.double().norm() / parameter.double().norm()).item()
        assert got[name] == pytest.approx(expected, rel=1e-6)
    assert got["2.bias"] == math.inf


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_growth_with_depth(factor: float) -> None:
    noise = torch.randn(1000)
    noise /= noise.square().mean().sqrt()
    sites = {(f"layer{i}", "output"): (noise * factor**i, None) for i in range(12)}
    sites["layer4", "output"] = (torch.zeros(3), None)
    sites["layer6", "output"] = (torch.full((3,), torch.nan), None)
    sites["layer0", "grad_output"] = (torch.full((3,), 1e9), None)
    record = record_of(sites, bins=None, channel_bins=None)
    assert growth(record) == pytest.approx(factor, rel=1e-5)
    assert math.isnan(growth(record, "grad_output"))
    assert math.isnan(growth(record_of({})))


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
