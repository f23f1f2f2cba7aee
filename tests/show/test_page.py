"""The report: what it says of a run is what was recorded, and it is one small file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.payloads import numbers_of, payload_of, scripts_of
from support.samples import BINS, record_of, sample
from torch import Tensor

import hookstats as hs
from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.norms import gradient_norm
from hookstats.records.record import Table
from hookstats.records.summary import summarise
from hookstats.rules import DeadChannels
from hookstats.runs.run import Run
from hookstats.runs.writer import RunWriter
from hookstats.show import page as report
from hookstats.show.distribution import QUANTILES, choose_axis, distributions
from hookstats.show.overview import Overview, execution_order, norms_of, overview, spans_of
from hookstats.show.page.codes import LOG_FIRST, LOG_STEP, SHARES, bfloat16, magnitudes, shares
from hookstats.show.page.content import ranges, starts
from hookstats.show.page.curves import curves
from hookstats.show.page.numbers import add_numbers
from hookstats.show.page.payload import Payload, compress, planes
from hookstats.show.paired import paired
from hookstats.show.sampled import choose_steps, sampled
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
    run = write(tmp_path, steps, make_record)
    view = overview(run, cells=2 * columns)
    check_overview(view, min(columns, steps))
    narrow = overview(run)
    check_overview(narrow.merged(starts(steps, min(columns, steps)).tolist()), min(columns, steps))


def check_overview(view: Overview, columns: int) -> None:
    assert len(view.spans) == columns
    assert [step for span in view.spans for step in range(*span)] == list(range(10))
    for t, span in enumerate(view.spans):
        for s, site in enumerate(view.sites):
            key = site.name, site.kind
            seen = [values_of(n)[key] for n in range(*span) if key in values_of(n)]
            assert view.observed[t, s] == len(seen)
            if seen:
                x = torch.cat([x.transpose(0, 1).flatten(1) for x, _ in seen], 1)  # [channels, n]
                whole = channel_stats(x)
                np.testing.assert_array_equal(view.tallies[t, s], whole.tallies[0].numpy())
                moments = whole.moments[0].numpy()
                np.testing.assert_allclose(view.moments[t, s], moments, rtol=1e-10)
                assert view.dead[t, s] == int(site.name == "b")


def test_the_sampled_steps_are_as_they_were_recorded(tmp_path: Path) -> None:
    run = write(tmp_path, 10, make_record)
    view = overview(run)
    some = sampled(run, view)
    assert some.steps == tuple(range(10))
    for k, step in enumerate(some.steps):
        for s, site in enumerate(view.sites):
            key, shown = (site.name, site.kind), some.channels[s]
            assert shown is not None
            if key not in run[step]:
                assert np.isnan(shown.rms[k]).all()
                assert len(some.hist(s)[k][0]) == 0
                continue
            stats = run[step][key]
            np.testing.assert_allclose(shown.rms[k], stats.rms.numpy(), rtol=1e-10)
            np.testing.assert_array_equal(shown.nonfinite[k], stats.nan.numpy() > 0)
            np.testing.assert_array_equal(shown.dead[k], (stats.zero == stats.count).numpy())
            slots, counts = some.hist(s)[k]
            expected = run[step].hist.dense_row(list(run[step]).index(key), BINS.slots)
            np.testing.assert_array_equal(expected[slots], counts)
            assert expected.sum() == counts.sum()
            assert some.least[s, k] == float(stats.min.min())
            assert some.greatest[s, k] == float(stats.max.max())


def test_a_changing_number_of_channels_has_statistics_but_no_channels(tmp_path: Path) -> None:
    def make(step: int) -> hs.StepRecord:
        return record_of({("a", "output"): (torch.ones(2, 3 + step), 1)}, step, channel_bins=None)

    run = write(tmp_path, 3, make)
    view = overview(run, cells=1)
    assert view.uneven == {0}
    assert sampled(run, view).channels == (None,)
    assert view.tallies[0, 0, state.COUNT] == 2 * (3 + 4 + 5)
    assert payload_of(report.render(run))["sites"][0]["uneven"]


def test_steps_set_apart_and_their_neighbours_have_columns_of_their_own() -> None:
    assert spans_of(30, 3, [7]) == (
        *((0, 5), (5, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 20), (20, 30)),
    )
    assert spans_of(5, 1, [0, 4]) == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert choose_steps(range(0, 2000, 2), 1000, [1000])[38:44] == [
        *(962, 986, 998, 1000, 1002, 1012),
    ]


@given(st.integers(1, 3000), st.sampled_from([1, 150, 600]), st.integers(1, 40), st.integers(0, 9))
def test_steps_with_channels_stand_in_for_the_others(
    count: int, sites: int, every: int, first: int
) -> None:
    detailed = sorted({*range(min(first, count)), *range(0, count, every)})
    most = len(choose_steps(range(3000), sites))
    found = choose_steps(range(count), sites, (), detailed)
    assert (found[0], found[-1]) == (0, count - 1)
    of_detailed = choose_steps(detailed, sites)
    assert {*found} >= {*of_detailed}
    apart = count / most / 2
    for step in {*found[1:-1]} - {*of_detailed}:
        assert all(abs(step - other) > apart for other in of_detailed)
    assert max(np.diff(found), default=0) <= 4 * apart + 2


@given(st.integers(1, 500), st.integers(1, 40), st.sets(st.integers(0, 499), max_size=5))
def test_spans_leave_nothing_out(count: int, columns: int, apart: set[int]) -> None:
    spans = spans_of(count, columns, apart)
    assert [i for span in spans for i in range(*span)] == list(range(count))
    for i in apart:
        for near in range(max(0, i - 2), min(count, i + 3)):
            assert (near, near + 1) in spans


def test_the_page_and_the_alert_count_the_same_dead_channels(tmp_path: Path) -> None:
    def make(step: int) -> hs.StepRecord:
        """Four channels die at step 100; a fifth is zero in every third step alone."""
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(step)).abs() + 0.1
        x[:, :4] *= step < 100
        x[:, 4] *= step % 3 != 1
        return record_of({("relu", "output"): (x, 1)}, step, channel_bins=None)

    run = write(tmp_path, 400, make)
    packed = payload_of(report.render(run, [DeadChannels()]))
    (alert,) = packed["alerts"]
    assert alert["step"] == 109
    column = packed["spans"].index([109, 109, 1])
    shown = int(numbers_of(packed, "dead")[0, column]) - 1  # 0: unknown
    (found,) = summarise(run[alert["step"]])
    stats = run[alert["step"]]["relu", "output"]
    dead = hs.insight.dead(stats)
    assert shown == found.dead == int(dead.sum()) == 5
    assert run["relu", "output"]["relu", "output"].channels.dead[109].tolist() == dead.tolist()
    assert f"has {shown} dead channels of 8" in alert["message"]


def test_curves_are_what_was_logged(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER)
    for step in range(0, 12, 2):
        writer.write(make_record(step))
    for step in range(12):
        loss = {4: np.nan, 8: np.inf, 9: 1.0}.get(step, step + 0.123456789)
        values = {"val_loss": 9.0, "loss": loss, "lr/0": 0.5}
        if step == 6:
            del values["loss"]
        writer.write_scalars(step, 0.0, values if step not in (10, 11) else {"lr/0": 0.5})
    writer.close()
    run = hs.open_run(tmp_path)
    found = curves(run, overview(run))
    assert [curve["name"] for curve in found] == ["loss", "lr/0"]
    # Step 6 has no loss itself: its column has that of step 7.
    assert found[0]["values"] == [0.123457, 2.12346, "nan", 7.12346, "inf", None]
    assert found[1]["values"] == [0.5] * 6
    wide = curves(run, overview(run, cells=4))
    assert wide[0]["values"] == [1.62346, "nan", 7.12346, "inf"]
    window = curves(run, overview(run, [0, 2], cells=1))  # what comes later is not in its mean
    assert window[0]["values"] == [1.62346]
    nothing = write(tmp_path / "nothing", 2, make_record)
    assert curves(nothing, overview(nothing)) == []


def test_the_norm_of_the_gradients_is_that_of_the_record(tmp_path: Path) -> None:
    def make(step: int) -> hs.StepRecord:
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        y = torch.full((3,), {2: torch.nan, 3: torch.inf}.get(step, 1e-3))
        data = {("a.weight", "param_grad"): (x, 0), ("a.bias", "param_grad"): (y, 0)}
        return record_of({**data, ("a", "output"): (x, 1)}, step, channel_bins=None)

    run = write(tmp_path, 4, make)
    found = norms_of(overview(run))
    assert found is not None
    expected = [gradient_norm(run[step]) for step in range(4)]
    assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)


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
    least, greatest = np.array(ends).T
    found = distributions(bins, columns, least, greatest, 40)
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


def test_another_run_is_set_beside_in_the_same_steps_and_rows(tmp_path: Path) -> None:
    def doubled(step: int) -> hs.StepRecord:
        """Every second step, the layers the other way round, one of them unknown to the first."""
        data = {key: (2 * x, dim) for key, (x, dim) in reversed(values_of(2 * step).items())}
        extra = {("c", "output"): (torch.ones(2, 2), 1)}
        return record_of({**extra, **data}, 2 * step, channel_bins=None)

    run = write(tmp_path / "a", 10, make_record)
    other = write(tmp_path / "b", 4, doubled)
    view = overview(run)
    pair = paired(other, view)
    assert pair.sites == view.sites
    there = [[int(t in (0, 2, 4, 6)), 0] for t in range(10)]  # b comes in odd steps only
    np.testing.assert_array_equal(pair.observed, there)
    for t in (0, 2, 4, 6):
        np.testing.assert_array_equal(pair.moments[t, 0, :1], 2 * view.moments[t, 0, :1])
    wide = paired(other, overview(run, cells=2))
    assert wide.observed[:, 0].tolist() == [4]
    path = report.write(run, other=other)
    assert path == tmp_path / "a-b.html"
    unpacked = payload_of(path.read_text("utf-8"))
    assert [one["name"] for one in unpacked["others"]] == ["b"]
    assert not unpacked["ofRanks"]
    ours, theirs = numbers_of(unpacked, "rms")[0], numbers_of(unpacked, "b0.rms")[0]
    assert theirs[[1, 3, 5, 7, 8, 9]].tolist() == [0] * 6
    factor = round(np.log(2) / LOG_STEP)
    assert abs(theirs[[0, 2, 4, 6]] - ours[[0, 2, 4, 6]] - factor).max() <= 1


def test_a_window_of_steps_is_shown_whole(tmp_path: Path) -> None:
    run = write(tmp_path, 9)
    for steps, shown in (((3, 5), [3, 4, 5]), ((None, 1), [0, 1]), ((7, None), [7, 8])):
        unpacked = payload_of(report.render(run, steps=steps))
        assert [first for first, *_ in unpacked["spans"]] == shown
        assert [step for step, _ in unpacked["samples"]] == shown
        assert unpacked["run"]["steps"] == len(shown)
    with pytest.raises(ValueError, match=r"steps = 20:: expected some of the steps .*: 0 to 8"):
        report.render(run, steps=(20, None))


def test_a_window_without_a_site_of_the_same_part_is_shown(tmp_path: Path) -> None:
    """The second layer comes in odd steps alone; all steps are one part."""
    run = write(tmp_path, 6, make_record)
    assert {site.name for site in overview(run, [2, 3]).sites} == {"a", "b"}
    view = overview(run, [2, 4])
    assert [site.name for site in view.sites] == ["a"]
    assert view.uneven == frozenset()
    unpacked = payload_of(report.render(run, steps=(4, 4)))
    assert [site["name"] for site in unpacked["sites"]] == ["a"]


def test_alerts_are_told_the_worst_first(tmp_path: Path) -> None:
    unpacked = payload_of(report.render(write(tmp_path, 30, make_record), "default"))
    first, *_ = unpacked["alerts"]
    assert (first["rule"], first["severity"], first["step"]) == ("non-finite", "error", 5)
    assert unpacked["sites"][first["site"]]["name"] == first["name"] == "b"
    severities = [incident["severity"] for incident in unpacked["incidents"]]
    assert severities == sorted(severities)
    told = [n for incident in unpacked["incidents"] for n in incident["alerts"]]
    assert told == list(range(len(unpacked["alerts"])))
    assert unpacked["alertsInAll"] == sum(one["inAll"] for one in unpacked["incidents"])


def test_a_damaged_part_is_left_out_and_named(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=0)
    for step in range(3):
        writer.write(sample(step, channel_bins=None))
    writer.close()
    bad = sorted((tmp_path / "tensors").iterdir())[1]
    bad.write_bytes(bad.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="left out"):
        unpacked = payload_of(report.render(hs.open_run(tmp_path, skip_damaged=True)))
    assert [span[0] for span in unpacked["spans"]] == [0, 2]
    (trouble,) = unpacked["troubles"]
    assert bad.name in trouble


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


@given(st.floats(1e-130, 1e154))
def test_codes_of_magnitudes_are_near(x: float) -> None:
    (code,) = magnitudes(np.array([x])).tolist()
    assert np.exp((code - 2) * LOG_STEP + LOG_FIRST) == pytest.approx(x, rel=0.0051)


def test_codes_of_odd_magnitudes() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, 1e-300, 1e300])
    assert magnitudes(odd).tolist() == [0, 0, 0, 1, 2, 0xFFFF]


@given(st.floats(0, 1))
def test_codes_of_shares_are_near(x: float) -> None:
    (code,) = shares(np.array([x])).tolist()
    assert (code == 1, code == SHARES - 1) == (x == 0, x == 1)
    assert (code - 1) / (SHARES - 2) == pytest.approx(x, abs=0.0004)


@pytest.mark.parametrize("early", [None, ["b"], []])
def test_a_payload_unpacks(early: list[str] | None) -> None:
    payload = Payload()
    payload.add("a", np.array([[1, 2], [3, 255]], np.uint8))
    payload.add_block("b", compress(planes(np.array([[0x1234, 0xFF00], [7, 6]]), 2)))
    payload.describe(name="层</script>", arrays=[{"name": "b", "width": 2}], sites=[None, None])
    first, rest = payload.pack(early)
    assert bool(rest) == (early == [])
    unpacked = payload_of(scripts_of(first, rest))
    assert unpacked["name"] == "层</script>"
    assert list(unpacked["bytes"]["a"]) == [1, 2, 3, 255]
    assert numbers_of(unpacked, "b").tolist() == [[0x1234, 0xFF00], [7, 6]]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """100 layers of 64 channels over 1000 steps; the values change as noise does: packs badly."""
    layers, channels, steps, batch = 100, 64, 1000, 16
    rng = np.random.default_rng(0)
    bins = hs.LogBins()
    x = torch.randn(batch, channels, generator=torch.Generator().manual_seed(0))
    data = {(f"layers.{i}", "output"): (x * 1.05**i, 1) for i in range(layers)}
    base = record_of(data, bins=bins, channel_bins=None)
    hist = base.tensors.hist
    sign = np.sign(hist.slots - (bins.bins // 2 + 1))

    def noisy(table: Table) -> Table:
        factor = rng.lognormal(0.0, 0.5, table.rows)
        return table._replace(moments=table.moments * factor ** np.array([[1, 2, 1, 1, 1]]).T)

    def make(step: int) -> hs.StepRecord:
        octaves = rng.integers(-2, 3, layers).repeat(np.diff(hist.offsets))
        slots = (hist.slots + 8 * sign * octaves).astype(np.int32)
        moved = type(hist)(hist.offsets, slots, hist.counts)
        assert base.channels is not None
        return replace(
            base,
            step=step,
            tensors=noisy(base.tensors)._replace(hist=moved),
            channels=noisy(base.channels),
        )

    out = tmp_path_factory.mktemp("long")
    writer = RunWriter(out, {"bins": bins, "channel_bins": None, "model": "Net"})
    for step in range(steps):
        writer.write(make(step))
    writer.close()
    return hs.open_run(out)


@pytest.mark.check
def test_a_long_run_is_a_small_file_and_leaves_no_step_out(long_run: Run) -> None:
    page = report.render(long_run)
    assert len(page) < 4e6
    unpacked = payload_of(page)
    assert unpacked["spans"] == [[step, step, 1] for step in range(1000)]
    assert len(unpacked["sites"]) == 100
    assert 80 <= len(unpacked["samples"]) <= 240


def test_batches_read_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, {"bins": None, "channel_bins": None, "model": "Net"})
    for step in range(3):
        writer.write(
            record_of({("a", "output"): (torch.ones(2, 3), 1)}, step, bins=None, channel_bins=None)
        )
    writer.close()
    run = hs.open_run(tmp_path)
    (table,) = run.batches(["step", "zero", "count"])
    assert table.column_names == ["step", "zero", "count"]
    assert table.equals(run.table().select(table.column_names))
    with pytest.raises(ValueError, match=r"columns has 'zeros': .* did you mean"):
        run.batches(["zeros"])


@pytest.mark.check
def test_what_does_not_fit_is_wider_and_says_so(long_run: Run) -> None:
    alert = 501
    view = overview(long_run)
    payload = Payload()
    arrays = add_numbers(payload, view, [alert], 300_000)
    payload.describe(sites=[None] * 100, arrays=arrays)
    unpacked = payload_of(scripts_of(*payload.pack()))
    assert len(payload.pack()[0]) * 3 / 4 < 310_000  # with the head
    starts = {one["name"]: one["starts"] for one in unpacked["arrays"]}
    assert starts["seen"] is None
    assert len(starts["mean"]) < 600
    for merged in filter(None, starts.values()):
        assert merged[0] == 0
        exact = set(range(alert - 2, alert + 4))
        assert exact <= set(merged)  # each of them begins a column, and so has one of its own
    codes = numbers_of(unpacked, "rms")
    merged = starts["rms"] or list(range(1000))
    shown = np.exp((codes[7, merged.index(alert)] - 2) * LOG_STEP + LOG_FIRST)
    expected = float(long_run[alert].whole.rms[7])
    assert shown == pytest.approx(expected, rel=0.006)
