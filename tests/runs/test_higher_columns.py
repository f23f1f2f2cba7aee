"""Third and fourth moments in runs: columns that are there only where they were asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.samples import BINS, CHANNEL_BINS, assert_same, sample, tensors

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}
WHOLE = list(tensors()).index(("whole", "param_grad"))


def with_higher(step: int) -> StepRecord:
    """A record with third and fourth moments."""
    record = sample(step)
    rng = np.random.default_rng(step)
    more = rng.standard_normal((len(record.moments), 2)) * (record.tallies[:, :1] > 0)
    return replace(record, moments=np.concatenate([record.moments, more], 1))


def test_third_and_fourth_moments_are_an_optional_group(tmp_path: Path) -> None:
    records = [sample(0), with_higher(1), with_higher(2), sample(3)]
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=3600)
    for record in records:
        writer.write(record)
    writer.close()
    run = open_run(tmp_path)
    for record in records:
        stored = run[record.step]
        np.testing.assert_array_equal(stored.moments[:, 5:], record.moments[:, 5:], strict=True)
        if record.step in (0, 3):
            assert_same(stored, record)
    parts = sorted((tmp_path / "parts").iterdir())
    assert ["m3" in pq.read_schema(part).names for part in parts] == [False, True, False]
    rows = run.table().to_pylist()
    assert {row["step"] for row in rows if row["m3"] is not None} == {1, 2}
    row = rows[len(tensors()) + WHOLE]
    assert [row["tensor_m3"]] == row["m3"] == [with_higher(1)["whole", "param_grad"].moments[0, 5]]
    assert pa.table(run).schema.equals(run.schema)
    assert run["whole", "*"]["whole", "param_grad"].steps.tolist() == [0, 1, 2, 3]


def test_series_have_higher_moments_where_all_parts_do(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=0)
    for step in (1, 2):
        writer.write(with_higher(step))
    site = open_run(tmp_path)["whole", "*"]["whole", "param_grad"]
    stats = [with_higher(step)["whole", "param_grad"] for step in (1, 2)]
    np.testing.assert_allclose(site.skewness, [s.skewness[0] for s in stats], rtol=1e-12)
    np.testing.assert_allclose(site.channels.kurtosis, [s.kurtosis for s in stats], rtol=1e-12)
    writer.write(sample(3))
    site = open_run(tmp_path)["whole", "*"]["whole", "param_grad"]
    with pytest.raises(ValueError, match=r"moments=4"):
        site.skewness  # noqa: B018
