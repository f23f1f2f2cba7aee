"""The report: what it says of a run is what was recorded, and it is one small file."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.samples import BINS, record_of, sample
from torch import Tensor

import hookstats as hs
from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.summary import summarise
from hookstats.rules import DeadChannels, Monitor
from hookstats.runs.run import Run
from hookstats.runs.writer import RunWriter
from hookstats.show import page as report
from hookstats.show.distribution import QUANTILES, choose_axis, distributions
from hookstats.show.overview import Overview, execution_order, overview
from hookstats.show.page.content import content, ranges, starts
from hookstats.show.page.curves import curves
from hookstats.show.page.payload import Payload, bfloat16
from hookstats.stats import state

HEADER = {"bins": BINS, "channel_bins": None, "model": "Net"}


def write(out: Path, steps: int, make: Any = None, header: dict[str, Any] = HEADER) -> Run:
    """A run of the records that `make(step)` gives."""
    make = make or (lambda step: sample(step, channel_bins=None))
    writer = RunWriter(out, header)
    for step in range(steps):
        writer.write(make(step))
    writer.close()
    return hs.open_run(out)


def values_of(step: int) -> dict[tuple[str, str], tuple[Tensor, int | None]]:
    """Two layers; the second comes in odd steps only, has a dead channel and in step 5 a NaN."""
    generator = torch.Generator().manual_seed(step)
    first = torch.randn(6, 4, generator=generator, dtype=torch.float64) * (step + 1)
    second = torch.randn(5, 3, 2, generator=generator, dtype=torch.float64)
    second[:, 1] = 0.0
    if step == 5:
        second[2, 0, 1] = torch.nan
    data: dict[tuple[str, str], tuple[Tensor, int | None]] = {("a", "output"): (first, 1)}
    if step % 2:
        data["b", "output"] = second, 1
    return data


def make_record(step: int) -> hs.StepRecord:
    return record_of(values_of(step), step, channel_bins=None)


@pytest.mark.parametrize("columns", [1, 3, 4, 10, 99])
def test_a_column_says_what_the_values_of_its_steps_say_together(
    tmp_path: Path, columns: int
) -> None:
    steps = 10
    view = overview(write(tmp_path, steps, make_record), columns=columns)
    assert len(view.spans) == min(columns, steps)
    assert [step for span in view.spans for step in range(*span)] == list(range(steps))
    for t, span in enumerate(view.spans):
        for s, site in enumerate(view.sites):
            key = site.name, site.kind
            seen = [values_of(n)[key] for n in range(*span) if key in values_of(n)]
            assert view.observed[t, s] == len(seen)
            if seen:
                x = torch.cat([x.transpose(0, 1).flatten(1) for x, _ in seen], 1)  # [channels, n]
                check_column(view, t, s, x)


def check_column(view: Overview, t: int, s: int, x: Tensor) -> None:
    whole, channels = channel_stats(x, bins=BINS), channel_stats(x, 0)
    np.testing.assert_array_equal(view.tallies[t, s], whole.tallies[0].numpy())
    np.testing.assert_allclose(view.moments[t, s], whole.moments[0].numpy(), rtol=1e-10)
    assert whole.hist is not None
    row = view.hist[t].dense(int(view.hist_rows[s]), BINS.slots)
    np.testing.assert_array_equal(row, whole.hist.slot_counts[0].numpy())
    shown = view.channels[s]
    assert shown is not None
    np.testing.assert_allclose(shown.rms[t], channels.rms.numpy(), rtol=1e-10)
    np.testing.assert_array_equal(shown.nonfinite[t], channels.nan.numpy() > 0)
    np.testing.assert_array_equal(shown.dead[t], (channels.zero == channels.count).numpy())


def test_a_changing_number_of_channels_has_statistics_but_no_channels(tmp_path: Path) -> None:
    def make(step: int) -> hs.StepRecord:
        return record_of({("a", "output"): (torch.ones(2, 3 + step), 1)}, step, channel_bins=None)

    view = overview(write(tmp_path, 3, make), columns=1)
    assert view.channels == (None,)
    assert view.tallies[0, 0, state.COUNT] == 2 * (3 + 4 + 5)
    assert payload_of(report.render(hs.open_run(tmp_path)))["sites"][0]["uneven"]


def test_of_ranks_with_and_without_higher_moments_the_page_has_what_both_have(
    tmp_path: Path,
) -> None:
    for rank, moments, steps in ((0, 2, 2), (1, 4, 3)):  # the last step is of the second alone
        writer = RunWriter(tmp_path / "run", {**HEADER, "moments": moments}, rank=rank)
        for step in range(steps):
            writer.write(record_of(values_of(step), step, rank, channel_bins=None, moments=moments))
        writer.close()
    run = hs.open_run(tmp_path / "run")
    assert overview(run).moments.shape[0::2] == (3, len(state.MOMENTS))
    assert report.write(run, tmp_path / "run.html").stat().st_size > 0


def test_every_record_is_handed_on_once_and_in_order(tmp_path: Path) -> None:
    seen: list[int] = []
    overview(write(tmp_path, 7), columns=3, each=lambda record: seen.append(record.step))
    assert seen == list(range(7))


def test_a_step_set_apart_has_a_column_of_its_own(tmp_path: Path) -> None:
    run = write(tmp_path, 30, make_record)
    view = overview(run, columns=3, each=lambda record: record.step in (0, 7, 8, 9, 29))
    assert view.spans == ((0, 1), (1, 7), (7, 8), (8, 9), (9, 10), (10, 20), (20, 30))
    everything = overview(run, columns=3, each=lambda record: True)
    assert everything.spans == ((0, 1), (1, 2), (2, 3), (3, 10), (10, 20), (20, 30))


def test_the_page_and_the_alert_count_the_same_dead_channels(tmp_path: Path) -> None:
    def make(step: int) -> hs.StepRecord:
        """Four channels die at step 100; a fifth is zero in every third step alone."""
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(step)).abs() + 0.1
        x[:, :4] *= step < 100
        x[:, 4] *= step % 3 != 1
        return record_of({("relu", "output"): (x, 1)}, step, channel_bins=None)

    run = write(tmp_path, 400, make)
    monitor = Monitor([DeadChannels()])
    view = overview(run, columns=20, each=monitor.examine)
    packed = payload_of(
        f'<script id="payload">{content(run, view, monitor.alerts).pack()}</script>'
    )
    (alert,) = packed["alerts"]
    assert alert["step"] == 109
    (column,) = (
        t for t, (first, last, _) in enumerate(packed["spans"]) if first <= alert["step"] <= last
    )
    assert packed["spans"][column] == [109, 109, 1]
    high, low = packed["arrays"]["dead"].reshape(2, -1)
    shown = int(high[column]) << 8 | int(low[column])
    (found,) = summarise(run[alert["step"]])
    stats = run[alert["step"]]["relu", "output"]
    dead = hs.insight.dead(stats)
    assert shown == found.dead == int(dead.sum()) == 5
    assert run["relu", "output"]["relu", "output"].channels.dead[109].tolist() == dead.tolist()
    assert f"has {shown} dead channels of 8" in alert["message"]


def test_curves_are_means_of_what_was_logged(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER)
    for step in range(0, 12, 2):
        writer.write(make_record(step))
    for step in range(12):
        loss = {4: np.nan, 8: np.inf, 9: 1.0}.get(step, step + 0.123456789)
        values = {"val_loss": 9.0, "loss": loss, "lr/0": 0.5}
        writer.write_scalars(step, 0.0, values if step not in (10, 11) else {"lr/0": 0.5})
    writer.close()
    run = hs.open_run(tmp_path)
    view = overview(run, columns=6)
    found = curves(run, view, {0: 3.0, 2: np.nan})
    assert [curve["name"] for curve in found] == ["loss", "lr/0", "grad_norm"]
    assert found[0]["values"] == [0.623457, 2.62346, "nan", 6.62346, "inf", None]
    assert found[1]["values"] == [0.5] * 6
    assert found[2]["values"] == [3.0, "nan", None, None, None, None]
    nothing = write(tmp_path / "nothing", 2)
    assert curves(nothing, overview(nothing), {}) == []


def test_sites_are_in_order_of_execution() -> None:
    keys = [("head", "grad_output"), ("conv", "output"), ("conv.bias", "param_grad")]
    keys += [("head", "output"), ("conv", "grad_output"), ("lost", "grad_output")]
    ordered = [keys[i] for i in execution_order(keys)]
    assert [name for name, _ in ordered] == ["conv", "conv.bias", "conv", "head", "head", "lost"]


@pytest.mark.parametrize(
    "bins", [BINS, hs.LogBins(), hs.LogBins(0, -2, 1), hs.LinearBins(16, -1.0, 2.0)]
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_quantiles_are_those_of_the_library(bins: Any, scale: float) -> None:
    columns, expected, ends = [], [], []
    for seed in range(4):
        x = torch.randn(500, generator=torch.Generator().manual_seed(seed)) * scale
        x[: 100 * seed] = 0.0
        hist = channel_stats(x, bins=bins).hist
        assert hist is not None
        counts = hist.slot_counts[0].numpy()
        columns.append((np.flatnonzero(counts).astype(np.int32), counts[counts > 0]))
        expected.append(hist.quantile(QUANTILES)[:, 0].numpy())
        ends.append([float(x.min()), float(x.max())])
    found = distributions(bins, columns, *np.array(ends).T, 40)
    assert found is not None
    np.testing.assert_allclose(found.quantiles, np.transpose(expected), rtol=1e-12)
    np.testing.assert_allclose(found.shares.sum(0), 1.0)


def test_shares_are_those_of_the_values_where_bins_are_fine() -> None:
    bins = hs.LogBins(7)
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    hist = channel_stats(x, bins=bins).hist
    assert hist is not None
    counts = hist.slot_counts[0].numpy()
    column = (np.flatnonzero(counts).astype(np.int32), counts[counts > 0])
    found = distributions(bins, [column], np.array([x.min()]), np.array([x.max()]), 30)
    assert found is not None
    exact, _ = np.histogram(x.numpy(), found.axis.values(31))
    np.testing.assert_allclose(found.shares[:, 0], exact / len(x), atol=2e-4)


def test_an_explosion_leaves_room_for_the_rest() -> None:
    usual, exploded = np.full(9, 1.0), np.append(np.full(8, 1.0), 1e30)
    quantiles = np.tile(np.array([[-0.9], [-0.3], [0.0], [0.3], [0.9]]), 9)
    axis, clipped = choose_axis(quantiles, -usual, usual), choose_axis(quantiles, -usual, exploded)
    assert axis is not None
    assert clipped is not None
    assert clipped.hi < 5 * axis.hi  # without the limit, 36 times
    assert clipped.position(np.array([1e30])) == 1.0


def test_without_finite_values_there_is_no_axis() -> None:
    none = np.full(2, np.inf)
    empty = (np.zeros(0, np.int32), np.zeros(0, np.int64))
    assert distributions(BINS, [empty] * 2, none, -none, 8) is None


@given(st.floats(width=64, allow_nan=False))
def test_bfloat16_is_near(x: float) -> None:
    (decoded,) = (bfloat16(np.array([x])).astype(np.uint32) << 16).view(np.float32).tolist()
    if np.isinf(x) or x == 0:
        assert decoded == x
    elif abs(x) < 2.0**-126:
        assert abs(decoded) <= 2.0**-126
    else:
        assert decoded == pytest.approx(np.clip(x, -3.39e38, 3.39e38), rel=2**-8)


def test_bfloat16_keeps_nan_and_rounds_to_even() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    expected = x.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(bfloat16(x.numpy()), expected)
    assert np.isnan((bfloat16(np.array([np.nan])).astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([], ""), ([3], "3"), ([0, 1, 2, 7, 9, 10], "0\u20132, 7, 9\u201310")],
)
def test_numbers_are_said_in_ranges(numbers: list[int], said: str) -> None:
    assert ranges(numbers) == said
    assert ranges(list(range(0, 100, 2))).endswith(", and 30 more ranges")


@given(st.integers(1, 300), st.data())
def test_groups_are_nearly_equal(count: int, data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, count))
    sizes = np.diff([*starts(count, groups), count])
    assert sizes.sum() == count
    assert sizes.min() >= 1
    assert np.ptp(sizes) <= 1


def payload_of(page: str) -> dict[str, Any]:
    """The description in a page, and its arrays by name."""
    found = re.search(r'<script id="payload"[^>]*>([^<]*)</script>', page)
    assert found
    whole = zlib.decompress(base64.b64decode(found[1]))
    size = int.from_bytes(whole[:4], "little")
    description: dict[str, Any] = json.loads(whole[4 : 4 + size])
    at, arrays = 4 + size, {}
    for name, length in description["lengths"]:
        arrays[name] = np.frombuffer(whole[at : at + length], np.uint8)
        at += length
    assert at == len(whole)
    return {**description, "arrays": arrays}


def test_a_payload_unpacks() -> None:
    payload = Payload()
    payload.add("a", np.array([[1, 2], [3, 255]], np.uint8))
    payload.add("b", np.array([0x1234, 0xFF00], np.uint16))
    payload.describe(name="层</script>")
    unpacked = payload_of(f'<script id="payload">{payload.pack()}</script>')
    assert unpacked["name"] == "层</script>"
    assert unpacked["arrays"]["a"].tolist() == [1, 2, 3, 255]
    assert unpacked["arrays"]["b"].tolist() == [0x12, 0xFF, 0x34, 0x00]


@pytest.mark.parametrize("bins", [None, BINS, hs.LinearBins(5, -1.0, 1.0)])
def test_odd_sites_have_a_report(tmp_path: Path, bins: Any) -> None:
    header = {**HEADER, "bins": bins}
    run = write(tmp_path, 3, lambda step: sample(step, bins=bins, channel_bins=None), header)
    unpacked = payload_of(report.render(run))
    named = {(site["name"], site["kind"]) for site in unpacked["sites"]}
    assert named == set(run[0].keys())
    assert sum(n for *_, n in unpacked["spans"]) == 3


def test_the_file_loads_nothing(tmp_path: Path) -> None:
    page = report.render(write(tmp_path, 2))
    assert re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'\s>]+)", page) == [
        "data:,",
        "#heatmap",
        *re.findall(r"data:image/png;base64,[\w+/=]+", page),
    ]
    assert not re.search(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in page


def test_write_gives_the_path_and_names_what_is_wrong(tmp_path: Path) -> None:
    run = write(tmp_path / "run <b>", 2)
    path = report.write(run, str(tmp_path / "page.html"))
    assert path == tmp_path / "page.html"
    assert "<title>run &lt;b&gt;</title>" in path.read_text("utf-8")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        report.write(run, tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="expected a run with steps, found none yet"):
        report.render(write(tmp_path / "empty", 0))
    with pytest.raises(ValueError, match="columns = 0: expected an integer, 1 or more"):
        overview(run, columns=0)


def test_alerts_are_told_the_worst_first(tmp_path: Path) -> None:
    unpacked = payload_of(report.render(write(tmp_path, 30, make_record), "default"))
    first, *_ = unpacked["alerts"]
    assert (first["rule"], first["severity"], first["step"]) == ("non-finite", "error", 5)
    assert unpacked["sites"][first["site"]]["name"] == first["name"] == "b"
    severities = [alert["severity"] for alert in unpacked["alerts"]]
    assert severities == sorted(severities)


def test_a_damaged_part_is_left_out_and_named(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=0)
    for step in range(3):
        writer.write(sample(step, channel_bins=None))
    writer.close()
    bad = sorted((tmp_path / "parts").iterdir())[1]
    bad.write_bytes(bad.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="left out"):
        unpacked = payload_of(report.render(hs.open_run(tmp_path, skip_damaged=True)))
    assert [span[0] for span in unpacked["spans"]] == [0, 2]
    (trouble,) = unpacked["troubles"]
    assert bad.name in trouble


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """100 layers of 64 channels over 1000 steps; the values change as noise does: packs badly."""
    layers, channels, steps, batch = 100, 64, 1000, 16
    rng = np.random.default_rng(0)
    bins = hs.LogBins()
    x = torch.randn(batch, channels, generator=torch.Generator().manual_seed(0))
    data = {(f"layers.{i}", "output"): (x * 1.05**i, 1) for i in range(layers)}
    base = record_of(data, bins=bins, channel_bins=None)
    slots, middle = base.hist.slots, bins.bins // 2 + 1
    sign = np.sign(slots - middle)

    def make(step: int) -> hs.StepRecord:
        octaves = rng.integers(-2, 3, layers).repeat(np.diff(base.hist.offsets))
        factor = rng.lognormal(0.0, 0.5, (len(base.moments), 1))
        powers = factor ** np.array([1, 2, 1, 1, 1])
        hist = type(base.hist)(
            base.hist.offsets, (slots + 8 * sign * octaves).astype(np.int32), base.hist.counts
        )
        return type(base)(
            **{**vars(base), "step": step, "moments": base.moments * powers, "hist": hist}
        )

    return write(tmp_path_factory.mktemp("long"), steps, make, {**HEADER, "bins": bins})


@pytest.mark.check
def test_a_long_run_is_a_small_file_and_leaves_no_step_out(long_run: Run) -> None:
    packed = content(long_run, overview(long_run)).pack()
    assert len(packed) < 1.2e6
    unpacked = payload_of(f'<script id="payload">{packed}</script>')
    assert sum(n for *_, n in unpacked["spans"]) == 1000
    assert len(unpacked["spans"]) <= 240
    assert len(unpacked["sites"]) == 100
