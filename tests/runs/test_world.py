"""What the ranks of a process group know of it without waiting for each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import distributed

from hookstats.runs.world import current_world


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
