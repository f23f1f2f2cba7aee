"""How a page stores numbers: each code is near its number, and a long run is a small file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.payloads import numbers_of, payload_of
from support.samples import record_of

import hookstats as hs
from hookstats.records.record import Table
from hookstats.runs.run import Run
from hookstats.runs.writer import RunWriter
from hookstats.show import page as report
from hookstats.show.overview import overview
from hookstats.show.page.codes import LOG_FIRST, LOG_STEP, SHARES, bfloat16, magnitudes, shares
from hookstats.show.page.numbers import add_numbers
from hookstats.show.page.payload import Payload, compress, planes


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


def test_a_payload_unpacks() -> None:
    payload = Payload()
    payload.add("a", np.array([[1, 2], [3, 255]], np.uint8))
    payload.add_block("b", compress(planes(np.array([[0x1234, 0xFF00], [7, 6]]), 2)))
    payload.describe(name="层</script>", arrays=[{"name": "b", "width": 2}], sites=[None, None])
    unpacked = payload_of(f'<script id="payload">{payload.pack()}</script>')
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
    unpacked = payload_of(f'<script id="payload">{payload.pack()}</script>')
    assert len(payload.pack()) * 3 / 4 < 310_000  # with the head
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
