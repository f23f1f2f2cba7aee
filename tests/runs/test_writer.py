"""RunWriter: what it writes, when, whole or not at all; and the directories it refuses."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.killed import RUNS, SESSIONS, record
from support.paths import python_path
from support.samples import BINS, CHANNEL_BINS, assert_same, sample, tensors

from hookstats.runs.format import FORMAT
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS, "model": "Réseau"}


def parts(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "tensors").iterdir())


def test_the_header_is_there_at_once_and_coverage_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "a"
    writer = RunWriter(out, HEADER)
    assert json.loads((out / "run.json").read_text())["format"] == FORMAT
    run = json.loads((out / "run-00000.json").read_text(encoding="utf-8"))
    assert run["format"] == FORMAT
    assert run["header"] == {
        "bins": BINS.to_dict(),
        "channel_bins": CHANNEL_BINS.to_dict(),
        "model": "Réseau",
    }
    assert run["coverage"] is None
    assert run["closed"] is None
    writer.close({"layer": {"observed": 3}})
    writer.close({"ignored": True})
    closed = json.loads((out / "run-00000.json").read_text(encoding="utf-8"))
    assert closed["coverage"] == {"layer": {"observed": 3}}
    assert closed["closed"] >= run["created"]
    assert closed["header"] == run["header"]


def test_columns_say_what_the_tensors_hold(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER)
    writer.write(sample(step=3))
    writer.close()
    (name,) = parts(tmp_path)
    rows = pq.read_table(tmp_path / "tensors" / name).to_pylist()
    channels = iter(pq.read_table(tmp_path / "channels" / name).to_pylist())
    assert [(row["site"], row["kind"]) for row in rows] == list(tensors())
    for row, (x, dim) in zip(rows, tensors(seed=3).values(), strict=True):
        assert (row["step"], row["rank"], row["observed"]) == (3, 0, 1)
        assert (row["channel_dim"], row["shape"]) == (dim, list(x.shape))
        assert row["dtype"] == "float32"
        whole = x.double().reshape(1, -1) if dim is None else x.double().movedim(dim, 0).flatten(1)
        assert row["channels"] == len(whole)
        check_row(row, whole.reshape(-1))
        for i, values in enumerate(whole):
            channel = next(channels)
            assert (channel["step"], channel["rank"], channel["channel"]) == (3, 0, i)
            assert (channel["site"], channel["kind"]) == (row["site"], row["kind"])
            check_row(channel, values)
    assert next(channels, None) is None


def check_row(row: dict[str, Any], values: torch.Tensor) -> None:
    finite = values[values.isfinite()]
    assert row["count"] == sum(row["hist_counts"]) == len(finite)
    assert row["nan"] == values.isnan().sum()
    assert row["posinf"] == (values == math.inf).sum()
    assert row["neginf"] == (values == -math.inf).sum()
    assert row["zero"] == (finite == 0).sum()
    if len(finite):
        expected = [finite.mean(), finite.var(correction=0), finite.min(), finite.max()]
        actual = [row["mean"], row["m2"] / row["count"], row["min"], row["max"]]
        np.testing.assert_allclose(actual, torch.stack(expected), rtol=1e-5)
    else:
        assert (row["mean"], row["m2"]) == (0, 0)
        assert (row["min"], row["max"]) == (math.inf, -math.inf)


def test_a_part_is_written_when_it_is_full(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=3600, bytes_per_part=8000)
    for step in range(7, 27):
        writer.write(sample(step))
    full = parts(tmp_path)
    assert 1 < len(full) < 20
    assert full[0] == "00000-000000-000-000000000007.parquet"
    writer.close()
    assert open_run(tmp_path).steps == list(range(7, 27))


def test_a_part_is_written_when_it_is_old(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=0.05)
    assert writer.due_in() is None
    writer.write(sample(0))
    due = writer.due_in()
    assert due is not None
    assert due <= 0.05
    while writer.due_in():
        pass
    writer.flush_if_due()
    assert len(parts(tmp_path)) == 1
    assert writer.due_in() is None
    writer.flush_if_due()
    writer.close()
    assert len(parts(tmp_path)) == 1


def test_each_rank_writes_its_own_parts_and_header(tmp_path: Path) -> None:
    one = RunWriter(tmp_path, HEADER, rank=1)
    zero = RunWriter(tmp_path, HEADER, rank=0)
    two = RunWriter(tmp_path, HEADER, rank=2)
    for rank, writer in enumerate((zero, one, two)):
        writer.write(sample(5, rank))
    for rank, writer in ((2, two), (0, zero), (1, one)):
        writer.close({"rank": rank})
    assert parts(tmp_path) == [f"0000{rank}-000000-000-000000000005.parquet" for rank in range(3)]
    assert open_run(tmp_path).of_rank(1).coverage == {"rank": 1}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_directory_with_another_run_is_refused(tmp_path: Path, rank: int) -> None:
    for writer in [RunWriter(tmp_path, HEADER, rank=r) for r in (0, 1)]:
        writer.write(sample(0, writer.rank))
        writer.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(FileExistsError, match=r"out = '.*': holds another run, expected a new"):
        RunWriter(str(tmp_path), HEADER, rank=rank)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_of_writers_that_start_together_one_gets_the_directory(tmp_path: Path) -> None:
    barrier = Barrier(4)

    def start(out: Path) -> bool:
        barrier.wait()
        try:
            RunWriter(out, HEADER)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        for attempt in range(10):
            assert sum(pool.map(start, [tmp_path / str(attempt)] * 4)) == 1
            assert [path.name for path in (tmp_path / str(attempt)).glob(".*.tmp")] == []


def test_directories_that_cannot_be_a_run_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"out = '.*file': is a file, expected a dir"):
        RunWriter(file, HEADER)
    with pytest.raises(NotADirectoryError, match=r"out = '.*file/deeper': expected a directory"):
        RunWriter(file / "deeper", HEADER)
    with pytest.raises(FileExistsError, match=r"out = '.*': holds 'file', expected a new"):
        RunWriter(tmp_path, HEADER)
    with pytest.raises(
        OSError, match=r"out = '/proc/run': expected a directory that can be created"
    ):
        RunWriter("/proc/run", HEADER)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match=r"out = '.*': expected a directory that can be"):
        RunWriter(tmp_path, HEADER)


def test_what_a_killed_writer_left_unnamed_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".00000.run.json.0123abcd.tmp").write_text("{")
    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / ".00000.00000-000000-0.parquet.0123abcd.tmp").write_text("PAR1")
    writer = RunWriter(tmp_path, HEADER)
    writer.write(sample(0))
    writer.close()
    assert open_run(tmp_path).steps == [0]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"header": {"model": object()}}, "header: expected values that JSON can represent"),
        ({"header": {"bins": {"type": "round"}}}, "expected a dict from LinearBins"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(tmp_path, kwargs, message) -> None:
    with pytest.raises(ValueError, match=message):
        RunWriter(tmp_path / "out", **{"header": HEADER, **kwargs})
    assert not (tmp_path / "out").exists()


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'hookstats\[store\]'"):
        RunWriter(tmp_path / "out", HEADER)
    assert not (tmp_path / "out").exists()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes: a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing_behind_and_loses_nothing(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=0)
    with file_size_limit(1000), pytest.raises(OSError, match="File too large") as error:
        writer.write(sample(1))
    assert error.value.errno == errno.EFBIG
    assert parts(tmp_path) == []
    writer.write(sample(2))
    writer.flush()
    run = open_run(tmp_path)
    assert run.steps == [1, 2]
    assert_same(run[1], sample(1))


@pytest.mark.check
def test_killed_at_any_of_50_moments_every_part_reads_back_whole(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "support.killed", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    subprocess.run(script, check=True, timeout=120, env=environment)
    thinned = 0
    for trial in range(RUNS * SESSIONS):
        run = open_run(tmp_path / f"trial{trial}")
        last = run.steps[-1]
        assert run.thinned == last + 1 - len(run)
        if trial % RUNS % 2:
            thinned += run.thinned
        else:
            assert run.steps == list(range(last + 1))
        assert last >= trial // RUNS
        assert run.coverage is None
        for step in run.steps[-20:]:  # those before were there when it was killed before
            assert_same(run[step], record(step))
    assert thinned > 0
