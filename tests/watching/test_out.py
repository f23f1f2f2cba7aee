"""Where a run goes: a run that is replaced, names with numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import healthy, write_run
from support.samples import BINS, sample
from torch import nn

from hookstats import open_run, watch
from hookstats.runs.writer import RunWriter
from hookstats.watching import out as names
from hookstats.watching.out import numbered


def record(out: str | Path, steps: int, width: int = 2, **settings: bool) -> Path:
    model = nn.Linear(width, width)
    with watch(model, kinds=["output"], out=out, rules=(), **settings) as w:  # type: ignore[arg-type]
        for _ in range(steps):
            model(torch.ones(1, width))
            w.log(loss=1.0)
            w.step()
    assert w.path is not None
    return w.path


def test_a_run_is_replaced_with_all_that_it_had(tmp_path: Path) -> None:
    out = tmp_path / "run"
    record(out, 5)
    write_run(out, sample(9, rank=1), rank=1)  # as of a run by two ranks before
    with pytest.raises(FileExistsError, match="overwrite=True replaces the run"):
        record(out, 2)
    assert record(out, 2, width=3, overwrite=True) == out
    run = open_run(out)
    assert (run.steps, run.ranks, run.thinned) == ([0, 1], [0], 0)
    assert run[0]["", "output"].count.tolist() == [1, 1, 1]
    assert run.scalars["loss"].steps.tolist() == [0, 1]
    assert record(tmp_path / "new", 1, overwrite=True) == tmp_path / "new"


def test_nothing_but_a_run_is_deleted(tmp_path: Path) -> None:
    record(tmp_path, 1)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"holds 'thesis\.tex'"):
        record(tmp_path, 1, overwrite=True)
    assert open_run(tmp_path).steps == [0]
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(ValueError, match="append = overwrite = True"):
        record(tmp_path, 1, overwrite=True, append=True)


def test_a_run_that_another_writes_stays(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, {"bins": BINS, "channel_bins": None}, locked=True)
    writer.write(healthy(0))
    with pytest.raises(FileExistsError, match="writes this run"):
        record(tmp_path, 1, overwrite=True)
    writer.close()
    assert open_run(tmp_path).steps == [0]


def test_each_rank_replaces_its_own(tmp_path: Path) -> None:
    header = {"bins": BINS, "channel_bins": healthy(0).channel_bins}
    for rank in range(3):
        write_run(tmp_path, sample(7, rank=rank), rank=rank)
    for rank in (1, 0):  # two ranks now, in any order
        world = {"size": 2, "started": "2026-01-01"}
        header = {"bins": sample().bins, "channel_bins": sample().channel_bins}
        writer = RunWriter(tmp_path, header, rank=rank, overwrite=True, world=world, ranks=2)
        writer.write(sample(rank, rank=rank))
        writer.close()
    run = open_run(tmp_path)
    assert run.ranks == [0, 1]
    assert [run.of_rank(rank).steps for rank in run.ranks] == [[0], [1]]


def test_what_a_kill_leaves_of_a_start_is_replaced(tmp_path: Path) -> None:
    write_run(tmp_path, sample(7))
    (tmp_path / "run.json").unlink()  # which is written last
    record(tmp_path, 1, overwrite=True)
    assert open_run(tmp_path).steps == [0]


def test_names_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = str(tmp_path / "run-{n}" / "hookstats")
    for number in (1, 2, 3):
        assert record(pattern, 1) == tmp_path / f"run-{number}" / "hookstats"
    assert numbered(tmp_path / "plain") == str(tmp_path / "plain")
    monkeypatch.setenv("WORLD_SIZE", "2")  # rank 1 would take the finished run-1 for free
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=r"2 ranks without a process group .* be initialised"):
            numbered(pattern)
        assert numbered(tmp_path / "plain") == str(tmp_path / "plain")


def test_ranks_of_a_group_take_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: dict[str, str] = {}
    monkeypatch.setattr(names, "agree", lambda key, value: store.setdefault(key, value))
    pattern = str(tmp_path / "{n}")
    first = numbered(pattern)
    write_run(Path(first), healthy(0))
    names._asked.clear()  # as of another process
    assert numbered(pattern) == first
    assert numbered(pattern) == str(tmp_path / "2")  # asked again


def test_an_open_watch_of_this_process_is_replaced(tmp_path: Path) -> None:
    """As where a notebook's cell runs again before its watch was closed."""
    model = nn.Linear(2, 2)
    former = watch(model, kinds=("output",), out=tmp_path / "run")
    model(torch.ones(1, 2))
    former.step()
    with pytest.raises(FileExistsError):
        watch(model, out=tmp_path / "run")
    with watch(model, kinds=("output",), out=tmp_path / "run", overwrite=True) as w:
        assert former.closed
        for _ in range(3):
            model(torch.ones(1, 2))
            w.step()
    assert open_run(tmp_path / "run").steps == [0, 1, 2]
