"""Run directories from strangers: whatever is in them, reading them is safe.

Every error is one that the docstrings promise and names its file; memory and time are bounded; the
run and all beside it stay as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import call, healthy, write_run
from support.paths import DATA, python_path
from support.rewritten import reseal, rewritten

from hookstats import open_run
from hookstats.runs import files, pages
from hookstats.runs.checksums import columns_of, span
from hookstats.runs.format import PART_KEY

SAMPLED, CASES, SHARDS = 100, 10_000, 4
MORE = int(os.environ.get("HOOKSTATS_FUZZ_CASES", "20000"))
"""Of `make full`, or `make fuzz`, beyond those of `make check`."""
PYTHON = [sys.executable, "-X", "faulthandler", "-m"]


def read_strangers(first: int, end: int, scratch: Path) -> None:
    """In a process of its own: a case may kill it, and its memory is limited."""
    done = subprocess.run(
        [*PYTHON, "support.strangers", str(first), str(end), str(scratch)],
        env={**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    last = (scratch / "case.txt").read_text() if done.returncode else ""
    assert done.returncode == 0, f"case {last}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    assert last or (scratch / "case.txt").read_text() == str(end - 1)
    assert done.stdout == ""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
def test_a_sample_of_strange_runs_is_read_safely(tmp_path: Path) -> None:
    read_strangers(0, SAMPLED, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
@pytest.mark.check
@pytest.mark.parametrize("shard", range(SHARDS))
def test_strange_runs_are_read_safely(shard: int, tmp_path: Path) -> None:
    each = CASES // SHARDS
    read_strangers(shard * each, (shard + 1) * each, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
@pytest.mark.full
@pytest.mark.parametrize("shard", range(SHARDS))
def test_more_strange_runs_are_read_safely(shard: int, tmp_path: Path) -> None:
    each = -(-MORE // SHARDS)
    read_strangers(CASES + shard * each, CASES + (shard + 1) * each, tmp_path)


def part_of(run: Path) -> Path:
    (part,) = (run / "parts").iterdir()
    return part


def swollen(run: Path, channels: int) -> bytes:
    """Make the first site have many channels of zeros, which take next to no bytes."""
    part = part_of(run)
    about = pq.read_metadata(part).metadata[PART_KEY].decode()
    table = pq.read_table(part)
    rows = table.num_rows
    for name in ("count", "nan", "posinf", "neginf", "zero", "mean", "var", "min", "max", "l1"):
        field = table.schema.field(name)
        values = np.zeros(channels, np.int64 if field.type.value_type == pa.int64() else np.float64)
        offsets = pa.array(np.array([0] + [channels] * rows, np.int32))
        lists = pa.ListArray.from_arrays(offsets, pa.array(values), type=field.type)
        table = table.set_column(table.schema.get_field_index(name), field, lists)
    content = rewritten(table, about)
    part.write_bytes(content)
    return content


READS: list[Any] = [
    lambda run: run[0],
    lambda run: run.table(),
    lambda run: [site.channels.mean for site in run.series().values()],
]


def refused(run: Path, why: str) -> None:
    for read in READS:
        with pytest.raises(ValueError, match=rf"{part_of(run).name}: damaged, .*{why}"):
            read(open_run(run))


@pytest.mark.parametrize("lies", [False, True])
def test_a_part_that_swells_is_refused_before_it_does(
    lies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LEAST_BYTES", 1 << 20)
    run = write_run(tmp_path / "run", healthy(0))
    content = swollen(run, 100_000)
    assert len(content) < 20_000
    if lies:  # the footer says that there are five values a column
        said = 100_000 + pq.read_table(part_of(run)).num_rows - 1
        start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        footer = content[start:].replace(varint(said, 3), varint(5, 3))
        part_of(run).write_bytes(reseal(content, content[:start] + footer))
        group = pq.read_metadata(part_of(run)).row_group(0)
        assert any(group.column(i).num_values == 5 for i in range(group.num_columns))
    for read in READS[1:2] if lies else READS[:2]:
        with pytest.raises(ValueError, match=r"damaged, .*its columns are \d+ bytes or more"):
            read(open_run(run))
    assert call("show", run).err.count("left out: ") == 1


def test_large_parts_are_read_as_long_as_they_are_honest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    swollen(run, 100_000)
    assert len(open_run(run)[0]["encoder.0", "output"]) == 100_000
    # Beyond the least, what is stored counts.
    monkeypatch.setattr(pages, "LEAST_BYTES", 1)
    whole = write_run(tmp_path / "whole", healthy(0))
    assert open_run(whole)[0].step == 0


@pytest.mark.check
def test_a_part_of_a_gibibyte_is_refused_at_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    assert len(swollen(run, 14_000_000)) < 100_000
    for read in READS[:2]:  # all columns
        with pytest.raises(ValueError, match=r"its columns are 11\d+ bytes .* at most 1073741824"):
            read(open_run(run))


def varint(number: int, width: int) -> bytes:
    """A number as Thrift has it, in `width` bytes."""
    zigzag = 2 * number
    digits = [(zigzag >> 7 * i) & 127 for i in range(width)]
    return bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


def test_rows_that_are_not_there_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    part = part_of(run)
    about = json.loads(pq.read_metadata(part).metadata[PART_KEY])
    about["records"] = [[0, 6], [1, 1 << 40]]
    part.write_bytes(rewritten(pq.read_table(part), json.dumps(about)))
    refused(run, rf"a record has {1 << 40} rows, expected at most 1048576")


PAGES = {
    "version 1": {"data_page_version": "1.0"},
    "version 2": {"data_page_version": "2.0"},
    "many pages": {"data_page_size": 64, "write_batch_size": 4},
    "dictionaries": {"use_dictionary": True, "write_page_checksum": True},
    "statistics": {"write_statistics": True, "compression": "zstd"},
}


@pytest.mark.parametrize("options", PAGES.values(), ids=PAGES)
def test_pages_say_how_many_values_they_have(options: Any, tmp_path: Path) -> None:
    numbers = list(range(1000))
    table = pa.table({"a": numbers, "b": [[i] * (i % 5) for i in numbers], "c": ["x", "y"] * 500})
    path = tmp_path / "table.parquet"
    pq.write_table(table, path, row_group_size=300, **options)
    compare_pages(path)


def compare_pages(path: Path) -> None:
    """What the page headers say is what pyarrow counts."""
    content, metadata = path.read_bytes(), pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for column in columns_of(metadata, group):
            chunk = slice(*span(column))
            found = list(pages._pages(content[chunk]))
            values = sum(number for number, _ in found)
            dictionary = found[0][0] if column.has_dictionary_page else 0
            assert values - dictionary == column.num_values
            assert sum(size for _, size in found) <= column.total_uncompressed_size


@pytest.mark.parametrize("stored", ["format-1", "format-2"])
def test_pages_of_older_versions_are_counted_too(stored: str) -> None:
    for part in (DATA / stored / "parts").iterdir():
        compare_pages(part)


@pytest.mark.parametrize("name", ["run.json", "run-00000.json"])
def test_json_that_would_fill_the_memory_is_refused(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    with (run / name).open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(ValueError, match=rf"{name}: damaged, .*it has {1 << 40} bytes, expected"):
        open_run(run)
    (run / name).write_text("[" + "[]," * files.JSON_VALUES + "0]")
    with pytest.raises(ValueError, match=rf"{name}: damaged, .*it has \d+ values, expected"):
        open_run(run)


def test_a_footer_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    with part_of(run).open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(-8, os.SEEK_END)
        file.write((2**32 - 1).to_bytes(4, "little") + b"PAR1")
    refused(run, "its footer has 4294967295 bytes, expected at most")


def test_what_an_error_repeats_of_a_file_is_cut(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    content = json.loads((run / "run-00000.json").read_text())
    (run / "run-00000.json").write_text(json.dumps({**content, "closed": ["x" * 100_000]}))
    with pytest.raises(ValueError, match=r"damaged, .*closed = \['x+ \.\.\. x+") as caught:
        open_run(run)
    assert len(str(caught.value)) < 1500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    (run / "run-00000.json").unlink()
    (run / "run-00000.json").symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match=r"Input/output error: '.*run-00000\.json'"):
        open_run(run)


def test_channels_that_contradict_the_counts_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(0))
    part = part_of(run)
    about = pq.read_metadata(part).metadata[PART_KEY].decode()
    table = pq.read_table(part)
    at = table.schema.get_field_index("l1")
    field = table.schema.field(at)
    empty = pa.array([[]] * table.num_rows, field.type)
    part.write_bytes(rewritten(table.set_column(at, field, empty), about))
    site = open_run(run).series()["head", "output"]
    site.channels.count  # noqa: B018
    with pytest.raises(ValueError, match="'count' and 'l1' have lists of different lengths"):
        site.channels.l1_norm  # noqa: B018
