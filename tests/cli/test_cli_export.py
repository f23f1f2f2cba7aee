"""hookstats export: what was recorded, in the formats of other tools."""

from __future__ import annotations

import csv
import math
import os
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from support.commands import call, healthy, write_run
from support.samples import record_of, sample

from hookstats import open_run
from hookstats.stats.derived import STATISTICS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks, of odd sites."""
    run = write_run(tmp_path / "run", sample(0), sample(2))
    return write_run(run, sample(1, rank=1), rank=1)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_parquet_has_everything(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.parquet"
    assert call("export", run, "-o", out) == (0, f"{out}\n", "")
    table = pq.read_table(out)
    expected = open_run(run).table()
    assert table.column_names == expected.column_names
    assert table.num_rows == len(sample(0)) * 3
    assert repr(table.to_pylist()) == repr(expected.to_pylist())  # NaN is no equal of its own


def check(text: str, expected: float) -> None:
    value = float(text)
    assert value == pytest.approx(expected, rel=1e-12) or (
        math.isnan(value) and math.isnan(expected)
    )


def test_csv_has_a_row_a_step_and_site(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.csv"
    assert call("export", run, "-o", out) == (0, f"{out}\n", "")
    found = rows(out)
    reader = open_run(run)
    keys = [(int(r["step"]), r["site"], r["kind"]) for r in found]
    assert sorted(keys) == sorted((step, *key) for step in reader.steps for key in reader[step])
    for row, (step, name, kind) in zip(found, keys, strict=True):
        stats = reader[step][name, kind].per_tensor()
        for statistic in STATISTICS:
            check(row[statistic], float(getattr(stats, statistic)))


def test_csv_may_have_a_row_a_channel(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.csv"
    assert call("export", run, "-o", out, "--channels").code == 0
    reader = open_run(run)
    found = rows(out)
    assert len(found) == sum(site.channels for s in reader.steps for site in reader[s].sites)
    for row in found:
        stats = reader[int(row["step"])][row["site"], row["kind"]]
        for statistic in STATISTICS:
            check(row[statistic], float(getattr(stats, statistic)[int(row["channel"])]))


@pytest.mark.check
def test_tensorboard_has_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_run(tmp_path / "run", *map(healthy, range(3)))
    out = tmp_path / "events"
    assert call("export", run, "-o", out, "--format", "tensorboard") == (0, f"{out}\n", "")
    events = EventAccumulator(str(out))
    events.Reload()
    assert len(events.Tags()["histograms"]) == len(healthy(0))
    for tag in events.Tags()["scalars"]:
        assert [event.step for event in events.Scalars(tag)] == [0, 1, 2]


def test_a_run_without_steps_is_an_empty_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert call("export", run, "-o", tmp_path / "a.parquet").code == 0
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 0
    assert call("export", run, "-o", tmp_path / "a.csv").code == 0
    assert (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "run.json"], "--out run.json: expected the suffix .parquet or .csv, or a --format"),
        (["-o", "events"], "--out events: expected the suffix .parquet or .csv, or a --format"),
        (["-o", "a.parquet", "--channels"], "--channels: expected the format csv, not parquet"),
    ],
)
def test_what_cannot_be_meant_is_an_error(run: Path, arguments: list[str], message: str) -> None:
    result = call("export", run, *arguments)
    assert result == (2, "", f"hookstats export: error: {message}\n")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    changing = [record_of({("a", "output"): (x[:, : step + 1], 1)}, step) for step in range(2)]
    run = write_run(tmp_path / "run", *changing)
    out = tmp_path / "run.csv"
    out.write_text("old")
    result = call("export", run, "-o", out, "--channels")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("hookstats export: error: ")
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.csv"]
    assert call("export", run, "-o", out).code == 0
    assert len(rows(out)) == 2


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_stays_and_its_file_is_written(
    suffix: str, dangling: bool, run: Path, tmp_path: Path
) -> None:
    target, link, plain = (tmp_path / f"{name}.{suffix}" for name in ("target", "link", "plain"))
    link.symlink_to(target.name)
    if not dangling:
        target.write_text("old")
    assert call("export", run, "-o", link) == (0, f"{link}\n", "")
    assert link.is_symlink()
    call("export", run, "-o", plain)
    assert target.read_bytes() == plain.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["run", link.name, target.name, plain.name]
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_pipe_is_written_to_and_stays(suffix: str, run: Path, tmp_path: Path) -> None:
    pipe, plain = (tmp_path / f"{name}.{suffix}" for name in ("pipe", "plain"))
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert call("export", run, "-o", pipe) == (0, f"{pipe}\n", "")
    reader.join(20)
    assert pipe.is_fifo()
    call("export", run, "-o", plain)
    assert got == [plain.read_bytes()]
