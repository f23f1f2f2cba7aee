"""Scalars in a run directory: written, thinned, made void and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.samples import BINS, CHANNEL_BINS, sample

from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


def fill(out: Path, steps: range, **options: int) -> RunWriter:
    writer = RunWriter(out, HEADER, seconds_per_part=0, **options)  # a part per step
    for step in steps:
        writer.write(sample(step))
        writer.write_scalars(step, 100.0 + step, {"loss": step / 2, "lr/0": 0.1})
    return writer


def test_a_step_that_comes_twice_in_a_part_counts_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=3600)
    for step, loss in ((0, 1.0), (1, 2.0), (2, 3.0), (1, 4.0)):
        writer.write_scalars(step, 0.0, {"loss": loss} if step else {})
    writer.close()
    scalars = open_run(tmp_path).scalars
    assert scalars["loss"].steps.tolist() == [1]
    assert scalars["loss"].values.tolist() == [4]
    assert scalars.table().num_rows == 1
    assert scalars.steps == [1]


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    writer = fill(tmp_path, range(2))
    run = open_run(tmp_path)
    scalars = run.scalars
    assert scalars["loss"].values.tolist() == [0, 0.5]
    writer.write_scalars(2, 102.0, {"loss": 1.0})
    writer.close()
    assert scalars["loss"].times.tolist() == [100, 101, 102]
    assert len(scalars) == 2
    assert repr(scalars) == "Scalars(loss (3), lr/0 (2))"
    with pytest.raises(KeyError, match="no scalar 'los'; did you mean 'loss'"):
        scalars["los"]
    assert run[1].scalars == {"loss": 0.5, "lr/0": 0.1}


@pytest.mark.check
def test_scalars_keep_to_their_share(tmp_path: Path) -> None:
    limit = 300_000
    fill(tmp_path, range(100), max_bytes=limit).close()
    sizes = [path.stat().st_size for path in (tmp_path / "scalars").iterdir()]
    assert sum(sizes) <= limit // 16
    steps = open_run(tmp_path).scalars["loss"].steps.tolist()
    assert 3 < len(steps) < 100
    assert steps[-1] == 99
    assert steps[0] < 50  # old steps are thinned, not cut off


def test_damage_is_named_or_left_out(tmp_path: Path) -> None:
    fill(tmp_path, range(3)).close()
    part = sorted((tmp_path / "scalars").iterdir())[1]
    content = bytearray(part.read_bytes())
    content[len(content) // 4] ^= 1
    part.write_bytes(content)
    run = open_run(tmp_path)
    assert len(run[1]) == len(sample(1))  # the record is whole
    with pytest.raises(ValueError, match=part.name):
        run.scalars["loss"]
    run = open_run(tmp_path, skip_damaged=True)
    with pytest.warns(RuntimeWarning, match=part.name):
        assert run.scalars["loss"].steps.tolist() == [0, 2]
    assert run.scalars["loss"].steps.tolist() == [0, 2]  # warned of once


def test_scalars_of_ranks_are_merged(tmp_path: Path) -> None:
    logged = [
        {"loss": 1.0, "lr/0": 0.1, "steps_per_second": 5.0, "watch_seconds": 0.1},
        {"loss": 4.0, "lr/0": 0.1, "steps_per_second": 4.0, "watch_seconds": 0.2, "late": 7.0},
    ]
    writers = [RunWriter(tmp_path, HEADER, rank=rank, seconds_per_part=0) for rank in (0, 1)]
    for rank, writer in enumerate(writers):
        for step in range(2 + rank):  # one rank is ahead
            writer.write_scalars(step, 100.0 * rank + step, logged[rank])
    run = open_run(tmp_path)
    assert run.scalars.at(1) == {
        "loss": 2.5,
        "lr/0": 0.1,
        "steps_per_second": 4.0,
        "watch_seconds": 0.2,
        "late": 7.0,
    }
    assert run.scalars["loss"].steps.tolist() == [0, 1, 2]
    assert run.scalars["loss"].values.tolist() == [2.5, 2.5, 4.0]
    assert run.scalars["loss"].times.tolist() == [100, 101, 102]
    assert run.of_rank(0).scalars["loss"].values.tolist() == [1, 1]
    table = run.scalars.table()
    assert table.num_rows == 15
    assert table["rank"].null_count == 15
    assert table["step"].to_pylist() == sorted(table["step"].to_pylist())
    for writer in writers:
        writer.write_scalars(3, 300.0, {"loss": 8.0})
        writer.close()
    assert run.scalars["loss"].values.tolist() == [2.5, 2.5, 4.0, 8.0]
