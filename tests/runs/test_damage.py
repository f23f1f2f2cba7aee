"""Runs that contradict themselves: each contradiction is a ValueError that names file and fault."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.paths import DATA
from support.rewritten import rewritten
from support.samples import BINS, CHANNEL_BINS, assert_same, record_of, sample, tensors

from hookstats.records.sparse import SparseCounts
from hookstats.runs.format import PART_KEY
from hookstats.runs.run import Run, open_run
from hookstats.runs.writer import RunWriter
from hookstats.show.overview import overview

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS, "model": "Net"}


def written(out: Path, *steps: int) -> Path:
    """A run of one part; the part."""
    writer = RunWriter(out, HEADER, seconds_per_part=3600)
    for step in steps:
        writer.write(sample(step))
    writer.close()
    (part,) = (out / "parts").iterdir()
    return part


def rewrite(part: Path, table: pa.Table, **about: Any) -> None:
    """Write the part again, with other rows or metadata and checksums that are right."""
    old = json.loads(pq.read_metadata(part).metadata[PART_KEY])
    text = json.dumps({k: v for k, v in (old | about).items() if v != "absent"})
    part.write_bytes(rewritten(table, text))


def test_a_part_written_again_is_read(tmp_path: Path) -> None:
    part = written(tmp_path, 0, 1)
    rewrite(part, pq.read_table(part))
    for step in (0, 1):
        assert_same(open_run(tmp_path)[step], sample(step))


def test_a_phase_with_other_characters_is_refused_by_all_who_read(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER)
    x = torch.ones(2, 2)
    writer.write(record_of({("a", "output"): (x, 1), ("a", "fake:output"): (x, 1)}))
    writer.close()
    (part,) = (tmp_path / "parts").iterdir()
    table = pq.read_table(part)
    at = table.schema.get_field_index("phase")
    assert table.column("phase").to_pylist() == [None, "fake"]
    phases = pa.array([None, "fa ke"]).dictionary_encode().cast(table.schema.field(at).type)
    rewrite(part, table.set_column(at, table.schema.field(at), phases))
    refused(tmp_path, "phase = 'fa ke': expected letters", " ".join(READS))


READS: dict[str, Callable[[Run], Any]] = {
    "record": lambda run: run[0],
    "table": lambda run: run.table(),
    "overview": overview,
    "series": lambda run: [
        (site.mean, site.hist, site.channels.count) for site in run.series("whole").values()
    ],
}


def refused(out: Path, why: str, reads: str = "record table series") -> None:
    """Each way of reading names the part and says `why`."""
    (part,) = (out / "parts").iterdir()
    for name in reads.split():
        with pytest.raises(ValueError, match=rf"{part.name}: damaged, .*{why}"):
            READS[name](open_run(out))


ABOUT = [
    ({"records": "absent"}, "records = None: expected a list of pairs"),
    ({"records": [[0, 7, 1]]}, "records has .*: expected a pair"),
    ({"records": [[0, -7]]}, "records = -7: expected an integer"),
    ({"records": [[0, 7.0], [1, 7]]}, "records = 7.0: expected an integer"),
    ({"records": [[0, True], [1, 7]]}, "records = True: expected an integer"),
    ({"records": [[0, 7], [2**70, 7]]}, f"records = {2**70}: expected an integer"),
    ({"records": []}, "no records"),
    ({"records": [[3, 7], [4, 7]]}, "its first record has step 3, but its name says 0"),
    ({"records": [[0, 7], [2, 7]]}, "its column 'step' contradicts"),
    ({"records": [[0, 6], [1, 8]]}, "its column 'step' contradicts"),
    ({"records": [[0, 7], [1, 8]]}, "its row groups have"),
    ({"rank": 1}, "to rank 1"),
    ({"rank": "0"}, "rank = '0': expected an integer"),
    ({"written": -1}, "written = -1: expected an integer, 0 or more"),
    ({"written": None}, "written = None: expected an integer"),
    ({"rewinds": [[1, 1]]}, r"its rewinds are \[\(1, 1\)\]"),
    ({"rewinds": [[0, 5]]}, r"its rewinds are \[\(0, 5\)\]"),
    ({"rewinds": 3}, "rewinds = 3: expected a list"),
    ({"bins": None}, "it has bins = None, but the header of the run says LogBins"),
    ({"channel_bins": "absent"}, "channel_bins"),
    ({"format_version": True}, "format_version = True: expected an integer"),
    ({"format_version": 0}, "format_version = 0: expected an integer"),
    ({"requires": "masks"}, "requires = 'masks': expected a list"),
]


@pytest.mark.parametrize(("about", "why"), ABOUT)
def test_a_footer_that_contradicts_is_named(tmp_path: Path, about: Any, why: str) -> None:
    part = written(tmp_path, 0, 1)
    rewrite(part, pq.read_table(part), **about)
    refused(tmp_path, why)


def replaced(table: pa.Table, name: str, change: Callable[[list[Any]], Any]) -> pa.Table:
    """The table with a column changed in place, as Python values."""
    at = table.schema.get_field_index(name)
    values = table.column(name).to_pylist()
    change(values)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.types[at]))


WHOLE = list(tensors()).index(("whole", "param_grad"))


def put(value: int) -> Callable[[list[Any]], None]:
    """Set the first entry of a site's list."""

    def change(values: list[Any]) -> None:
        values[WHOLE][0] = value

    return change


def put_number(value: int) -> Callable[[list[Any]], None]:
    """Set the number of a site."""

    def change(values: list[Any]) -> None:
        values[WHOLE] = value

    return change


def drop(values: list[Any]) -> None:
    """Shorten a site's list."""
    values[WHOLE].pop()


def swap(values: list[Any]) -> None:
    """Exchange the first two entries of a site's list."""
    values[0][:2] = values[0][1::-1]


COLUMNS = [
    ("step", put_number(5), "its column 'step' contradicts", ""),
    ("rank", put_number(1), "its column 'rank' is not 0", "record table"),
    ("count", put(-1), "its column 'count' has -1, expected 0 or more", ""),
    ("nan", put(-3), "its column 'nan' has -3", "record table"),
    ("observed", put_number(-1), "'observed' has -1", ""),
    (
        "tensor_zero",
        put_number(-9),
        "'tensor_zero' has -9",
        "table series",
    ),
    ("mean", drop, "'count' and 'mean' have lists of different lengths", "record table"),
    ("hist_slots", put(2**31 - 1), rf"'hist_slots' has slots in .*\.\.{2**31 - 1}, expected 0", ""),
    ("hist_slots", put(-1), r"'hist_slots' has slots in -1\.\.", ""),
    ("hist_slots", swap, "'hist_slots' has slots that do not ascend", ""),
    ("hist_slots", drop, "'hist_slots' has lists of other lengths than its counts", ""),
    ("hist_counts", put(-5), "'hist_counts' has -5", ""),
    ("channel_hist_slots", put(10), "'channel_hist_slots' has slots in", "record table"),
    ("channel_hist_counts", put(-5), "'channel_hist_counts' has -5", "record table"),
]


@pytest.mark.parametrize(("column", "change", "why", "reads"), COLUMNS)
def test_columns_that_cannot_be_are_named(
    tmp_path: Path, column: str, change: Any, why: str, reads: str
) -> None:
    part = written(tmp_path, 0)
    rewrite(part, replaced(pq.read_table(part), column, change))
    refused(tmp_path, why, reads or "record table series")


def test_a_histogram_without_bins_is_named(tmp_path: Path) -> None:
    part = written(tmp_path, 0)
    rewrite(part, pq.read_table(part), bins=None)
    path = tmp_path / "run-00000.json"
    content = json.loads(path.read_text())
    content["header"]["bins"] = None
    path.write_text(json.dumps(content))
    refused(tmp_path, "'hist_slots' has slots, but the run has no such histograms", "record table")


def test_columns_of_another_type_or_half_a_group_are_named(tmp_path: Path) -> None:
    part = written(tmp_path, 0)
    table = pq.read_table(part)
    at = table.schema.get_field_index("observed")
    rewrite(part, table.set_column(at, "observed", table.column(at).cast(pa.float64())))
    refused(tmp_path, "its column 'observed' is .*double>, expected .*int64")
    rewrite(part, table.append_column("mesh", table.column("site")))
    refused(tmp_path, "it has no column 'global_shape'")
    rewrite(part, table.drop_columns("zero"))
    refused(tmp_path, "it has no column 'zero'")


@pytest.mark.parametrize("stored", ["format-2", "new"])
def test_every_flipped_bit_is_named_or_changes_nothing(tmp_path: Path, stored: str) -> None:
    """In the footer's text of the new format, and in all of the file here and there."""
    if stored == "new":
        part = written(tmp_path / "run", 0, 1, 2)
    else:
        shutil.copytree(DATA / stored, tmp_path / "run")
        part = sorted((tmp_path / "run" / "parts").iterdir())[1]
        assert b'"records": [[1, 7], [2, 7], [3, 7]]' in part.read_bytes()
    content = part.read_bytes()
    whole = open_run(tmp_path / "run")
    expected = {step: whole[step] for step in whole}
    text = content.index(b'{"format_version"')
    end = content.index(b"}", text)
    flips = [(at, bit) for at in range(text, end) for bit in (0, 1, 4)][::2]
    flips += [(at, 3) for at in range(4, len(content) - 8, 211)]
    errors = []
    for at, bit in flips:
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        part.write_bytes(flipped)
        try:
            run = open_run(tmp_path / "run")
            records = {step: run[step] for step in run}
            run.table()
        except ValueError as error:
            errors.append(str(error))
        else:
            assert list(records) == list(expected), (at, bit)
            for step, record in records.items():
                assert_same(record, expected[step])
    damaged = f"{part.name}: damaged, or not written by hookstats"
    assert all(damaged in error or "is newer" in error for error in errors)
    # Format 2 has no checksum of the footer: a flip of no consequence is not found.
    assert len(errors) == len(flips) if stored == "new" else len(errors) > len(flips) // 2


def test_checksums_are_what_the_specification_says(tmp_path: Path) -> None:
    """Verified without hookstats, as docs/format.md describes it."""
    from zlib import crc32

    part = written(tmp_path, 0, 1)
    content = part.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8]
    metadata = pq.read_metadata(part)
    sums = metadata.metadata[b"hookstats.crc32"]
    at = footer.index(sums)
    zeroed = footer[:at] + b"00000000" + footer[at + 8 :]
    found = [crc32(zeroed)]
    for i in range(metadata.num_row_groups):
        for j in range(metadata.num_columns):
            column = metadata.row_group(i).column(j)
            first = column.data_page_offset
            if column.dictionary_page_offset is not None:
                first = min(first, column.dictionary_page_offset)
            found.append(crc32(content[first : first + column.total_compressed_size]))
    assert "".join(f"{each:08x}" for each in found).encode() == sums


def test_what_later_versions_add_is_ignored(tmp_path: Path) -> None:
    part = written(tmp_path, 0, 1)
    expected = open_run(tmp_path).table()
    table = pq.read_table(part)
    rows = table.num_rows
    table = table.append_column("masked_rows", pa.array([3] * rows))
    table = table.append_column("counted", pa.array([[8, 4]] * rows))
    table = table.append_column("extra", pa.array([{"a": 1, "b": "x"}] * rows))
    rewrite(part, table.select(table.column_names[::-1]), gaps=[[0, 7, "disk"]], requires=[])
    for name in ("run.json", "run-00000.json"):
        content = json.loads((tmp_path / name).read_text())
        content["future"] = {"a": [1]}
        if "header" in content:
            content["header"]["mesh"] = {"dims": ["dp"], "coordinate": [0]}
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "scalars").mkdir()
    (tmp_path / "scalars" / "later.parquet").write_text("later")
    (tmp_path / "alerts-00000.jsonl").write_text("{}\n")
    (tmp_path / "lock-00000.json").write_text("{}")
    run = open_run(tmp_path)
    assert run.header["mesh"]["dims"] == ["dp"]
    for step in (0, 1):
        assert_same(run[step], sample(step))
    assert run["whole", "*"]["whole", "param_grad"].steps.tolist() == [0, 1]
    assert str(run.table().to_pylist()) == str(expected.to_pylist())
    header = json.loads((tmp_path / "run-00000.json").read_text())["header"]
    writer = RunWriter(tmp_path, header, append=True)
    writer.write(sample(2))
    writer.close()
    assert run.steps == [0, 1, 2]


def test_what_is_required_and_unknown_is_refused(tmp_path: Path) -> None:
    part = written(tmp_path, 0)
    rewrite(part, pq.read_table(part), requires=["masks"])
    with pytest.raises(ValueError, match=rf"{part.name}: requires 'masks', which this hookstats"):
        open_run(tmp_path)[0]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "requires": ["a", "b"]}))
    with pytest.raises(ValueError, match=r"run\.json: requires 'a', 'b', .*pip install -U"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"header": [1]}, "header = .*: expected an object"),
        ({"header": {"model": {"a": 1}}}, "header.model = .*: expected a str"),
        ({"header": {"modules": ["a"]}}, "header.modules = .*: expected a dict"),
        ({"header": {"bins": [1]}}, "bins = .*: expected"),
        ({"header": {"bins": {"type": ["log"]}}}, "bins = .*: expected"),
        ({"coverage": 7}, "coverage = 7: expected an object or null"),
        ({"coverage": {"steps": {}}}, "coverage.steps = {}: expected an int"),
        ({"closed": 1}, "closed = 1: expected a string or null"),
        ({"rank": 1}, "it belongs to rank 1"),
        ({"earlier": {}}, "earlier = {}: expected a list"),
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
    deep = '{"format_version": 3, "a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    (tmp_path / name).write_text(deep)
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: damaged, .*RecursionError"):
        open_run(tmp_path)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    written(tmp_path, 0)
    run = open_run(tmp_path)
    shutil.rmtree(tmp_path / "parts")
    for read in (lambda: run.steps, lambda: run[0], run.table, run.series):
        with pytest.raises(ValueError, match="parts: no such directory: the run is damaged"):
            read()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["part", "run-00000.json", "run.json"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    part = written(tmp_path, 0)
    path = part if name == "part" else tmp_path / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"not a regular file|expected a run directory"):
        open_run(tmp_path).table()


def test_names_that_are_no_parts_names_are_passed_over(tmp_path: Path) -> None:
    part = written(tmp_path, 0)
    digits = "\N{ARABIC-INDIC DIGIT ZERO}" * 5
    for name in ("000000-000000-000000000000.parquet", f"{digits}-000000-000000000000.parquet"):
        shutil.copy(part, part.with_name(name))
    assert open_run(tmp_path).ranks == [0]
    assert len(open_run(tmp_path)) == 1


def test_an_empty_record_has_checksums_too(tmp_path: Path) -> None:
    empty = replace(
        sample(0),
        sites=(),
        observed=np.zeros(0, np.int64),
        offsets=np.zeros(1, np.int64),
        moments=np.empty((0, 5)),
        tallies=np.empty((0, 5), np.int64),
        hist=SparseCounts.empty(0),
        channel_hist=SparseCounts.empty(0),
    )
    writer = RunWriter(tmp_path, HEADER)
    writer.write(empty)
    writer.close()
    assert_same(open_run(tmp_path)[0], empty)
    (part,) = (tmp_path / "parts").iterdir()
    content = part.read_bytes()
    part.write_bytes(content.replace(b'"written": 0', b'"written": 4'))
    with pytest.raises(ValueError, match="its footer has a different checksum than"):
        open_run(tmp_path)[0]
