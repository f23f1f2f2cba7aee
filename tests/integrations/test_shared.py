"""Where the runs of trainers go."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import Ranks

from hookstats.integrations.shared import free_name
from hookstats.runs.format import rank_json


def begin(path: str, rank: int = 0) -> str:
    """Write what a run begins with."""
    Path(path).mkdir(exist_ok=True)
    Path(path, rank_json(rank)).touch()
    return path


def test_a_new_run_gets_a_free_name_and_a_resumed_one_the_last(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    assert free_name(path) == free_name(path, resumed=True) == path
    begin(path)
    assert free_name(path, resumed=True) == path
    assert begin(free_name(path)) == f"{path}-1"
    assert free_name(path, resumed=True) == f"{path}-1"
    assert free_name(path) == f"{path}-2"


def test_ranks_without_a_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = begin(str(tmp_path / "run"))
    monkeypatch.setenv("RANK", "1")  # of two; the run has been by one
    with pytest.raises(ValueError, match="2 ranks without a process group"):
        free_name(path)


def names(rank: int, path: str) -> list[str]:
    return [begin(free_name(path), rank) for _ in range(2)]


@pytest.mark.check
def test_ranks_take_the_same_name(ranks: Ranks, tmp_path: Path) -> None:
    path = begin(str(tmp_path / "run"))  # of a training run of one rank
    expected = [f"{path}-1", f"{path}-2"]
    assert ranks(names, path) == [expected, expected]
