"""Runs that contradict themselves: each contradiction is a ValueError that names file and fault."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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
    ({"format": True}, "format = True: expected an integer"),
    ({"format": 0}, "format = 0: expected an integer"),
]


@pytest.mark.parametrize(("about", "why"), ABOUT)
def test_a_footer_that_contradicts_is_named(tmp_path: Path, about: Any, why: str) -> None:
    part = written(tmp_path, 0, 1)
    rewrite(part, pq.read_table(part), **about)
    refused(part, why)


def test_channels_that_are_not_as_many_as_the_tensors_say_are_named(tmp_path: Path) -> None:
    part = written(tmp_path, 0, folder="channels")
    table = pq.read_table(part)
    rewrite(part, table.slice(1), records=[[0, table.num_rows - 1]])
    with pytest.raises(ValueError, match=rf"{part.name}: damaged, .*step 0 has 17 channels"):
        open_run(tmp_path)[0]


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
