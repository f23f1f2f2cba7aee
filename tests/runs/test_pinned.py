"""A run stays in the directory in which it began, whatever becomes of its path."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, sample
from torch import nn

from hookstats import open_run, watch
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def writer(out: str, **options: Any) -> RunWriter:
    return RunWriter(out, HEADER, seconds_per_part=0, **options)


def test_the_working_directory_may_change(place: Path) -> None:
    out = writer("runs/a")
    out.write(sample(0))
    (place / "work" / "runs" / "a").mkdir(parents=True)
    os.chdir("work")
    out.write(sample(1))
    out.close()
    assert out.path == place / "runs" / "a"
    assert list((place / "work" / "runs" / "a").iterdir()) == []
    run = open_run(os.path.relpath(out.path))
    os.chdir(place)
    assert run.steps == [0, 1]
    assert run[1].step == 1
    assert run.of_rank(0).steps == [0, 1]


def test_a_link_may_be_pointed_elsewhere(place: Path) -> None:
    for name in ("r1", "r2"):
        (place / name).mkdir()
    (place / "latest").symlink_to("r1")
    out = writer("latest")
    out.write(sample(0))
    (place / "latest").unlink()
    (place / "latest").symlink_to("r2")
    out.write(sample(1))
    out.close()
    assert open_run("r1").steps == [0, 1]
    assert list((place / "r2").iterdir()) == []


def test_a_directory_that_is_moved_and_comes_back_loses_nothing(place: Path) -> None:
    out = writer("a", seconds_per_retry=0)
    out.write(sample(0))
    (place / "a").rename("b")
    with pytest.raises(FileNotFoundError):
        out.write(sample(1))
    assert not (place / "a").exists()
    (place / "b").rename("a")
    out.write(sample(2))
    out.close()
    assert open_run("a").steps == [0, 1, 2]


def test_a_run_that_takes_the_place_gets_nothing_of_the_one_before(place: Path) -> None:
    old = writer("a", locked=True, max_bytes=1, seconds_per_retry=0)
    old.write(sample(0))
    shutil.rmtree("a")
    new = writer("a", locked=True)
    new.write(sample(7))
    before = sorted((place / "a").rglob("*"))
    for _ in range(2):
        with pytest.raises(FileExistsError, match="another directory has taken the place"):
            old.write(sample(1))
    with pytest.raises(FileExistsError, match="another directory has taken the place"):
        old.close({"rows": []})
    old.unlock()
    assert sorted((place / "a").rglob("*")) == before
    new.write(sample(8))
    new.close({"rows": []})
    run = open_run("a")
    assert run.steps == [7, 8]
    assert run.coverage == {"rows": []}


def test_a_directory_that_cannot_be_synced_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some file systems in user space."""
    sync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    out = writer("a")
    out.write(sample(0))
    out.close()
    assert open_run("a").steps == [0]


def test_jobs_that_start_together_take_one_number_each(place: Path) -> None:
    together = Barrier(6)

    def job(_: int) -> Path | None:
        model = nn.Linear(2, 2)
        together.wait(20)
        one = watch(model, out="job-{n}", rules=())
        model(torch.ones(1, 2))
        one.step()
        one.close()
        return one.path

    with ThreadPoolExecutor(6) as pool:
        paths = list(pool.map(job, range(6)))
    assert sorted(map(str, paths)) == [str(place / f"job-{n}") for n in range(1, 7)]
    assert all(open_run(path).steps == [0] for path in paths if path is not None)
