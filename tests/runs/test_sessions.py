"""Process groups that come and go: which ranks' records are void, and which directory is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.samples import BINS, CHANNEL_BINS, sample
from torch import distributed

from hookstats import open_run
from hookstats.runs.world import current_world
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


def write(out: Path, rank: int, started: str | None, *steps: int, append: bool = True) -> None:
    world: dict[str, Any] | None = None if started is None else {"size": 2, "started": started}
    writer = RunWriter(out, HEADER, rank=rank, append=append, world=world, seconds_per_part=0)
    for step in steps:
        writer.write(sample(step, rank))
    writer.close()


def steps(out: Path) -> list[list[int]]:
    run = open_run(out)
    # Of one rank, too, although its own parts do not say it.
    alone = [run.of_rank(rank).steps for rank in run.ranks]
    assert alone == [[s for s in run.steps if rank in run.ranks_of(s)] for rank in run.ranks]
    return alone


def test_fewer_ranks_after_a_restart_void_what_the_others_recorded(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, "a", *range(6))
    assert steps(tmp_path) == [[*range(6)], [*range(6)]]
    write(tmp_path, 0, "b", 3, 4)
    assert steps(tmp_path) == [[0, 1, 2, 3, 4], [0, 1, 2]]
    write(tmp_path, 0, "c", 5)
    write(tmp_path, 1, "c", 5)
    assert steps(tmp_path) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 5]]
    write(tmp_path, 1, "c", 6)  # the same processes, another watch
    write(tmp_path, 2, "d", 6)  # the others are gone
    assert steps(tmp_path) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 5], [6]]


def test_one_process_without_a_group_goes_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, "2020-02-20", *range(6))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = current_world()
    assert alone is not None
    assert alone == current_world()
    write(tmp_path, 0, alone["started"], 3, 4)
    assert steps(tmp_path) == [[0, 1, 2, 3, 4], [0, 1, 2]]


def test_a_session_that_goes_back_voids_from_there(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, "a", *range(6))
    write(tmp_path, 0, "b", 5, 6, 2)
    assert steps(tmp_path) == [[0, 1, 2], [0, 1]]


def test_a_clock_that_goes_back_between_groups_changes_nothing(tmp_path: Path) -> None:
    """A rank of both groups knows which came later; where there is none, their dates say it."""
    for rank in (0, 1):
        write(tmp_path, rank, "b", *range(6))
    write(tmp_path, 0, "a", 3, 4)
    assert steps(tmp_path) == [[0, 1, 2, 3, 4], [0, 1, 2]]
    write(tmp_path, 2, "c", 4)
    assert steps(tmp_path) == [[0, 1, 2, 3], [0, 1, 2], [4]]
    write(tmp_path, 1, "0", 2)
    write(tmp_path, 2, "0", 2)
    assert steps(tmp_path) == [[0, 1], [0, 1, 2], [2]]


def test_without_process_groups_nobody_is_voided(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, None, *range(4))
    write(tmp_path, 0, None, 2)
    assert steps(tmp_path) == [[0, 1, 2], [0, 1, 2, 3]]


def test_every_rank_refuses_the_run_of_another_process_group(tmp_path: Path) -> None:
    write(tmp_path, 0, "a", 0, append=False)
    write(tmp_path, 1, "a", 0, append=False)  # a rank that starts later
    assert json.loads((tmp_path / "run-00001.json").read_text())["world"]["started"] == "a"
    for rank in (0, 1, 2):
        with pytest.raises(FileExistsError, match="holds another run"):
            write(tmp_path, rank, "b", append=False)
    write(tmp_path, 2, "b", 1)
    assert open_run(tmp_path).ranks == [0, 1, 2]


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_nothing_is_known_of_ranks_without_a_group(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert current_world() is None


def test_a_rendezvous_file_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    rendezvous = tmp_path / "rendezvous"
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    try:
        world = current_world()
        assert world is not None
        assert world.keys() == {"size", "started"}
        assert current_world() == world
        rendezvous.unlink()
        assert current_world() == {"size": 1}
    finally:
        distributed.destroy_process_group()
