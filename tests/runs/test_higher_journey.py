"""Third and fourth moments on their way: from a tensor through runs to what people see."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from support.samples import BINS, record_of
from torch import Tensor

import hookstats as hs
from hookstats.cli import main
from hookstats.records.difference import compare
from hookstats.records.record import StepRecord
from hookstats.runs.run import Run
from hookstats.runs.writer import RunWriter
from hookstats.show import page
from hookstats.show.overview import overview
from hookstats.sinks import JSONL
from hookstats.sinks.charts import charts
from hookstats.stats.derived import statistic_names

NAMES = ("skewness", "kurtosis")
OF = {"skewness": scipy_stats.skew, "kurtosis": scipy_stats.kurtosis}


def values(step: int) -> Tensor:
    """[500, 3], skewed and heavy-tailed."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(500, 3, generator=generator, dtype=torch.float64).mul(0.5).exp() + step


def record(step: int, moments: int = 4) -> StepRecord:
    return record_of({("a", "output"): (values(step), 1)}, step, channel_bins=None, moments=moments)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    writer = RunWriter(tmp_path / "run", {"bins": BINS, "channel_bins": None})
    for step in range(6):
        writer.write(record(step))
    writer.close()
    return hs.open_run(tmp_path / "run")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_tensor_has_those_of_scipy(name: str, dtype: torch.dtype) -> None:
    x = values(3).to(dtype)
    found = hs.channel_stats(x, 1, moments=4)
    expected = OF[name](x.double().numpy(), axis=0, bias=True)
    np.testing.assert_allclose(getattr(found, name).numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("moments", [3, 5, True, "4", None])
def test_other_moments_are_refused(moments: object) -> None:
    with pytest.raises(ValueError, match=f"moments = {moments!r}: expected 2 or 4"):
        hs.channel_stats(torch.zeros(2), moments=moments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_keeps_them(run: Run, name: str) -> None:
    site = run["a", "output"]["a", "output"]
    assert site.higher
    for i in range(6):
        whole = OF[name](values(i).numpy(), axis=None, bias=True)
        assert getattr(site, name)[i] == pytest.approx(whole, abs=1e-9)
        of_channels = getattr(site.channels, name)[i]
        np.testing.assert_array_equal(of_channels, getattr(site.stats(i), name).numpy())
        np.testing.assert_allclose(of_channels, OF[name](values(i).numpy(), bias=True), atol=1e-9)


def test_what_people_see_has_them(run: Run, tmp_path: Path) -> None:
    sink = JSONL(tmp_path / "lines.jsonl")
    sink(record(0))
    sink.close()
    line = json.loads((tmp_path / "lines.jsonl").read_text())
    skewness = line["skewness"]
    assert skewness == pytest.approx(scipy_stats.skew(values(0).numpy(), axis=None), abs=1e-9)
    assert charts(record(0), NAMES, 0)[0]["output.skewness/a"] == skewness
    assert main(["export", str(run.path), "-o", str(tmp_path / "a.csv")]) == 0
    header = (tmp_path / "a.csv").read_text().splitlines()[0].replace('"', "").split(",")
    assert header[-len(statistic_names(higher=True)) :] == list(statistic_names(higher=True))
    view = overview(run, cells=2 * len(run[run.steps[-1]]))
    whole = np.concatenate([values(step).numpy().ravel() for step in range(3)])
    merged = hs.ChannelStats(torch.tensor(view.moments[0]), torch.tensor(view.tallies[0]))
    assert merged.kurtosis.item() == pytest.approx(scipy_stats.kurtosis(whole), abs=1e-9)
    packed = page.payload_of(run)._description
    assert [one["id"] for one in packed["statistics"]][6:8] == list(NAMES)
    run.plot.heatmap("skewness").savefig(tmp_path / "a.png")


def test_a_run_without_them_says_how_to_ask(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, {"bins": BINS, "channel_bins": None})
    writer.write(record(0, moments=2))
    writer.close()
    site = hs.open_run(tmp_path)["a", "output"]["a", "output"]
    assert not site.higher
    for statistics in (site, site.channels, site.stats(0)):
        with pytest.raises(ValueError, match="ask with moments=4"):
            statistics.skewness  # noqa: B018


def test_records_are_compared_by_them_where_both_have_them() -> None:
    x = values(0)
    record_a = record_of({("a", "output"): (x, 1)}, channel_bins=None, moments=4)
    mirrored = 2 * x.mean(0) - x  # the same mean and variance, the opposite skewness
    record_b = record_of({("a", "output"): (mirrored, 1)}, channel_bins=None, moments=4)
    found = {d.statistic for d in compare(record_a, record_b, rtol=1e-6).of(0)}
    assert "skewness" in found
    assert not found & {"mean", "var", "kurtosis"}
    narrow = record_of({("a", "output"): (x, 1)}, channel_bins=None)
    assert not compare(record_a, narrow)
