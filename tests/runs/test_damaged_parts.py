"""Parts of a run that are damaged, gone or foreign: named, left out, never taken for data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import parts_of, write_run
from support.samples import assert_same, sample

from hookstats.runs.run import Run, open_run


def flip_in_column(part: Path, name: str) -> None:
    """Change a byte of the last page of a column."""
    group = pq.read_metadata(part).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    (column,) = (c for c in columns if c.path_in_schema.split(".")[0] == name)
    start = column.dictionary_page_offset if column.has_dictionary_page else None
    content = bytearray(part.read_bytes())
    content[(start or column.data_page_offset) + column.total_compressed_size - 1] ^= 0x55
    part.write_bytes(content)


def damage_part(part: Path, damage: str) -> None:
    content, table = part.read_bytes(), pq.read_table(part)
    about = {"hookstats": pq.read_metadata(part).metadata[b"hookstats"]}
    match damage:
        case "empty":
            part.write_bytes(b"")
        case "truncated":
            part.write_bytes(content[:-10])
        case "text":
            part.write_text("hello")
        case "foreign":
            pq.write_table(pa.table({"step": [0]}), part)
        case "other rows":
            pq.write_table(table.slice(1).replace_schema_metadata(about), part)
        case "other rank":
            other = json.loads(about["hookstats"]) | {"rank": 1}
            metadata = {"hookstats": json.dumps(other)}
            pq.write_table(table.replace_schema_metadata(metadata), part)
        case "a page":
            flip_in_column(part, "kind")


def read_step(run: Run, step: int) -> None:
    with pytest.raises(KeyError, match=rf"step {step}: .* has 2 steps in 0\.\.2"):
        run[step]


IN_THE_FOOTER = [
    "empty",
    "truncated",
    "text",
    "foreign",
    "other rows",
    "other rank",
]


@pytest.mark.parametrize("damage", IN_THE_FOOTER)
def test_a_damaged_part_is_named_and_the_others_can_be_read(tmp_path: Path, damage: str) -> None:
    bad, _ = parts_of(write_run(tmp_path, sample(0), sample(1)))
    damage_part(bad, damage)
    run = open_run(tmp_path)
    assert_same(run[1], sample(1))
    named = rf"{bad.name}: damaged, or not written by hookstats"
    for read in (lambda: run[0], lambda: run.steps, run.table, run.series):
        with pytest.raises(ValueError, match=named):
            read()
    bad.unlink()
    assert run.steps == [1]


@pytest.mark.parametrize("damage", [*IN_THE_FOOTER, "a page"])
@pytest.mark.parametrize("first", ["record", "table", "series"])
def test_damaged_parts_are_left_out_if_asked_for(tmp_path: Path, damage: str, first: str) -> None:
    _, bad, _ = parts_of(write_run(tmp_path, sample(0), sample(1), sample(2)))
    damage_part(bad, damage)
    run = open_run(tmp_path, skip_damaged=True)
    with pytest.warns(RuntimeWarning, match=f"left out: .*{bad.name}: damaged, or not") as w:
        {"record": lambda: read_step(run, 1), "table": run.table, "series": run.series}[first]()
    assert len(w) == 1
    assert run.steps == [0, 2]
    assert run.table()["step"].unique().to_pylist() == [0, 2]
    assert run["whole", "*"]["whole", "param_grad"].mean.shape == (2,)
    assert list(run.damaged) == [f"tensors/{bad.name}"]
    for step in run:
        assert_same(run[step], sample(step))
    run = open_run(tmp_path)
    with pytest.raises(ValueError, match=rf"{bad.name}: damaged"):
        run.table()


def test_a_column_that_turns_out_to_be_damaged_is_named(tmp_path: Path) -> None:
    bad, _ = parts_of(write_run(tmp_path, sample(0), sample(1)))
    flip_in_column(bad, "mean")
    run = open_run(tmp_path, skip_damaged=True)
    site = run["whole", "*"]["whole", "param_grad"]
    assert len(site.max) == 2
    with (
        pytest.warns(RuntimeWarning, match=f"left out: .*{bad.name}"),
        pytest.raises(ValueError, match=rf"{bad.name}: damaged"),
    ):
        site.mean  # noqa: B018
    assert run["whole", "*"]["whole", "param_grad"].mean.shape == (1,)


def test_damaged_channels_leave_the_tensors(tmp_path: Path) -> None:
    write_run(tmp_path, sample(0), sample(1))
    bad = min((tmp_path / "channels").iterdir())
    flip_in_column(bad, "mean")
    with pytest.raises(ValueError, match=rf"channels/{bad.name}: damaged"):
        open_run(tmp_path)[0]
    run = open_run(tmp_path, skip_damaged=True)
    with pytest.warns(RuntimeWarning, match=f"left out: .*{bad.name}"):
        record = run[0]
    assert_same(record, sample(0).without_channels())
    assert_same(run[1], sample(1))


def test_a_part_that_vanishes_takes_its_steps_with_it(tmp_path: Path) -> None:
    first, _ = parts_of(write_run(tmp_path, sample(0), sample(1)))
    run = open_run(tmp_path)
    assert run.steps == [0, 1]
    first.unlink()
    with pytest.raises(KeyError, match=r"step 0: .* has 1 steps in 1\.\.1"):
        run[0]
    assert_same(run[1], sample(1))
    assert run.steps == [1]


def test_a_step_of_which_every_part_turns_out_to_be_damaged_is_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        (part,) = parts_of(write_run(tmp_path, replace(sample(0), rank=rank), rank=rank), rank)
        flip_in_column(part, "kind" if rank else "mean")
    run = open_run(tmp_path, skip_damaged=True)
    with (
        pytest.warns(RuntimeWarning, match="left out"),
        pytest.raises(KeyError, match=rf"step 0: .*{tmp_path.name} has no steps"),
    ):
        run[0]
