"""Statistics are on the CPU whatever device tensors are made on by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.modules import take_step
from torch import Tensor, nn

import hookstats as hs
from hookstats import rules
from hookstats.cli import doctor
from hookstats.records.record import StepRecord
from hookstats.show import page, terminal

SITE = "0", "output"


@contextmanager
def meta_by_default() -> Iterator[None]:
    """As "cuda" by default, but on every machine: what is made on it cannot be read."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[StepRecord, hs.Run]:
    """Three steps, begun on the CPU and ended with another default; the last of them, and all."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(16, 4)
    with meta_by_default():
        bins = hs.LogBins()
        watch = hs.watch(model, optimizer, channel_bins=bins, out=tmp_path, rules="default")
        with watch as w:
            for _ in range(3):
                take_step(optimizer, model(x).square().mean())
    assert w.coverage().failures == {}
    return w.latest, hs.open_run(tmp_path)


def statistics(stats: hs.ChannelStats) -> dict[str, Tensor]:
    """All that can be asked of statistics with histograms."""
    names = ("count", "nan", "mean", "var", "min", "max", "amax", "l1_norm", "l2_norm", "dead")
    found = {name: getattr(stats, name) for name in names}
    whole = stats.per_tensor()
    for name, hist in (("hist", stats.hist), ("tensor_hist", stats.tensor_hist)):
        assert hist is not None
        found[name] = hist.counts
        found[f"{name}.edges"] = hist.edges
        found[f"{name}.quantile"] = hist.quantile([0.1, 0.5])
    found["moments"] = stats.moments
    found["variance"] = stats.variance(1)
    found["whole"] = whole.rms
    found["merged"] = stats.merge(stats).mean
    return found


@pytest.mark.parametrize(
    "view",
    [
        lambda record: statistics(record[SITE]),
        lambda record: statistics(record["0.weight", "param_grad"]),
    ],
)
def test_statistics_are_on_the_cpu(
    view: Callable[[StepRecord], dict[str, Tensor]], trained: tuple[StepRecord, hs.Run]
) -> None:
    record, run = trained
    expected = view(record)
    for source in (record, run[2]):
        with meta_by_default():
            got = view(source)
        assert {name: value.device.type for name, value in got.items()} == dict.fromkeys(got, "cpu")
        for name, value in got.items():
            assert torch.equal(value.nan_to_num(), expected[name].nan_to_num()), name


def test_what_people_see_does_not_depend_on_the_default(
    trained: tuple[StepRecord, hs.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    record, run = trained
    with meta_by_default():
        assert "min" in repr(record[SITE])
        terminal.render(record)
        assert "output" in capsys.readouterr().out
        assert "<html" in page.render(run)
        assert rules.replay(run) == []
        assert run["0", "output"][SITE].mean.shape == (3,)
        assert not doctor._self_test().broken
