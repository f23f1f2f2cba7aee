"""Runs that are damaged or contradict themselves: file and fault are named, or it is left out."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import parts_of, write_run
from support.rewritten import rewritten
from support.samples import BINS, CHANNEL_BINS, assert_same, sample

from hookstats.runs.format import PART_KEY
from hookstats.runs.run import Run, open_run
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS, "model": "Net"}


def written(out: Path, *steps: int, folder: str = "tensors") -> Path:
    """A run of one part; the part."""
    writer = RunWriter(out, HEADER, seconds_per_part=3600)
    for step in steps:
        writer.write(sample(step))
    writer.close()
    (part,) = (out / folder).iterdir()
    return part


def rewrite(part: Path, table: pa.Table, **about: Any) -> None:
    """Write the part again, with other rows or metadata and a checksum that is right."""
    old = json.loads(pq.read_metadata(part).metadata[PART_KEY])
    text = json.dumps({k: v for k, v in (old | about).items() if v != "absent"})
    part.write_bytes(rewritten(table, text))


def refused(part: Path, why: str) -> None:
    """Reading names the part and says `why`."""
    for read in (lambda run: run[0], Run.table):
        with pytest.raises(ValueError, match=rf"{part.name}: damaged, .*{why}"):
            read(open_run(part.parent.parent))


ABOUT = [
    ({"records": "absent"}, "records"),
    ({"rank": 1}, "to rank 1"),
    ({"grad_scale": -1}, "grad_scale = -1: expected a number"),
]


@pytest.mark.parametrize(("about", "why"), ABOUT)
def test_a_footer_that_contradicts_is_named(tmp_path: Path, about: Any, why: str) -> None:
    part = written(tmp_path, 0, 1)
    rewrite(part, pq.read_table(part), **about)
    refused(part, why)


@pytest.mark.parametrize("folder", ["tensors", "channels"])
def test_every_flipped_bit_is_named_or_changes_nothing(tmp_path: Path, folder: str) -> None:
    """In the footer's text, and in all of the file here and there."""
    part = written(tmp_path / "run", 0, 1, folder=folder)
    content = part.read_bytes()
    whole = open_run(tmp_path / "run")
    expected = {step: whole[step] for step in whole}
    text = content.index(b'{"format"')
    flips = [(at, bit) for at in range(text, content.index(b"}", text)) for bit in (0, 4)][::3]
    flips += [(at, 3) for at in range(4, len(content) - 8, 97)]
    errors = []
    for at, bit in flips:
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        part.write_bytes(flipped)
        try:
            run = open_run(tmp_path / "run")
            records = {step: run[step] for step in run}
        except ValueError as error:
            errors.append(str(error))
        else:
            assert list(records) == list(expected), (at, bit)
            for step, record in records.items():
                assert_same(record, expected[step])
    damaged = f"{part.name}: damaged, or not written by hookstats"
    assert all(damaged in error or "is newer" in error for error in errors)
    assert len(errors) > 0.9 * len(flips)


def test_the_checksum_is_what_the_specification_says(tmp_path: Path) -> None:
    """Verified without hookstats, as docs/format.md describes it."""
    part = written(tmp_path, 0, 1)
    content = part.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    digits = pq.read_metadata(part).metadata[b"hookstats.crc32"]
    assert f"{crc32(footer.replace(digits, b'00000000')):08x}".encode() == digits


def test_what_later_versions_add_is_ignored(tmp_path: Path) -> None:
    part = written(tmp_path, 0, 1)
    expected = open_run(tmp_path).table()
    table = pq.read_table(part)
    table = table.append_column("masked_rows", pa.array([3] * table.num_rows))
    rewrite(part, table.select(table.column_names[::-1]), future=[1])
    for name in ("run.json", "run-00000.json"):
        content = json.loads((tmp_path / name).read_text())
        content["future"] = {"a": [1]}
        (tmp_path / name).write_text(json.dumps(content))
    run = open_run(tmp_path)
    for step in (0, 1):
        assert_same(run[step], sample(step))
    assert run["whole", "*"]["whole", "param_grad"].steps.tolist() == [0, 1]
    assert str(run.table().to_pylist()) == str(expected.to_pylist())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"header": {"bins": {"type": ["log"]}}}, "bins = .*: expected"),
        ({"rank": 1}, "it belongs to rank 1"),
    ],
)
def test_a_header_that_cannot_be_is_named(tmp_path: Path, change: Any, why: str) -> None:
    written(tmp_path, 0)
    path = tmp_path / "run-00000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=rf"run-00000\.json: damaged, .*{why}"):
        open_run(tmp_path)


@pytest.mark.parametrize("name", ["run.json", "run-00000.json"])
def test_json_that_is_too_deep_is_named(tmp_path: Path, name: str) -> None:
    written(tmp_path, 0)
    (tmp_path / name).write_text('{"format": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: damaged, .*RecursionError"):
        open_run(tmp_path)


def test_names_that_are_no_parts_names_are_passed_over(tmp_path: Path) -> None:
    part = written(tmp_path, 0)
    digits = "\N{ARABIC-INDIC DIGIT ZERO}" * 5
    for name in (f"0{part.name}", f"{digits}{part.name[5:]}"):
        shutil.copy(part, part.with_name(name))
    assert open_run(tmp_path).ranks == [0]
    assert len(open_run(tmp_path)) == 1


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
@pytest.mark.parametrize(
    "first",
    ["record", *(pytest.param(read, marks=pytest.mark.check) for read in ("table", "series"))],
)
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
