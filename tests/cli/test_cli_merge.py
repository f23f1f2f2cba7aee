"""`hookstats merge`: the run of several ranks as a run of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import call, write_run
from support.samples import assert_same, sample

from hookstats import open_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks; the last step is that of one of them."""
    write_run(tmp_path / "run", sample(0), sample(3))
    write_run(tmp_path / "run", sample(0, rank=1), rank=1)
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


def test_a_directory_that_is_taken_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    result = call("merge", run, "-o", tmp_path / "taken")
    assert result.code == 2
    assert "holds 'notes.txt', expected a new or empty directory" in result.err
