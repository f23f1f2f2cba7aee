"""`hookstats merge`: the run of several ranks as a run of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import call
from support.samples import BINS, CHANNEL_BINS, assert_same, sample

from hookstats import open_run
from hookstats.records.alerts import Alert
from hookstats.records.norms import gradient_norm
from hookstats.runs.alerts import AlertEntry
from hookstats.runs.writer import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks; the last step is that of one of them, and step 2 was lost."""
    header = {"bins": BINS, "channel_bins": CHANNEL_BINS}
    for rank, steps in ((0, (0, 3)), (1, (0,))):
        writer = RunWriter(tmp_path / "run", header, rank=rank)
        for step in range(4):
            if step in steps:
                writer.write(sample(step, rank))
            if step == 2:
                writer.skip(step, "stall")
            values = {"loss": step + rank / 2, "grad_norm": 1.0}
            writer.write_scalars(step, 100.0 + step + rank, values)
        alert = Alert(3 - rank, rank, "a", "output", 2, "peers", 1.5, "of 'a'", "warning")
        writer.write_alerts([AlertEntry(alert, 0, True, {"octaves": 4.0})])
        writer.close({"rows": []})
    return tmp_path / "run"


def test_the_merged_run_has_what_the_whole_run_has(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    assert call("merge", run, "-o", out) == (0, f"{out}\n", "")
    before, merged = open_run(run), open_run(out)
    assert (merged.ranks, merged.steps, merged.header["reduced"]) == ([0], before.steps, [0, 1])
    assert merged.closed is not None
    for step in before.steps:
        assert_same(merged.of_rank(0)[step], merged[step])
        one, other = merged[step], before[step]
        assert (one.rank, other.rank, one.sites) == (0, None, other.sites)
        for key in one:
            assert (one[key].count == other[key].count).all()
            assert (one[key].max == other[key].max).all()
    assert call("compare", run, out, "--rtol", "1e-12").code == 0


def test_scalars_alerts_and_gaps_are_kept(run: Path, tmp_path: Path) -> None:
    assert call("merge", run, "-o", tmp_path / "merged").code == 0
    before, merged = open_run(run), open_run(tmp_path / "merged")
    assert merged.scalars["loss"].values.tolist() == [0.25, 1.25, 2.25, 3.25]
    for name, series in before.scalars.items():
        for theirs, ours in zip(series, merged.scalars[name], strict=True):
            assert ours.tolist() == theirs.tolist()
    # The norm is that of the whole gradients, where they are recorded.
    norm = gradient_norm(before[0])
    assert norm is not None
    assert merged[0].scalars["grad_norm"] == norm
    assert merged.scalars.at(1)["grad_norm"] == 1.0
    assert merged.gaps == before.gaps == {2: "stall"}
    assert merged.alerts == before.alerts
    assert [(alert.step, alert.rank) for alert in merged.alerts] == [(2, 1), (3, 0)]
    assert merged.incidents == before.incidents


def test_a_directory_that_is_taken_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    result = call("merge", run, "-o", tmp_path / "taken")
    assert result.code == 2
    assert "holds 'notes.txt', expected a new or empty directory" in result.err
