"""Runs that contradict themselves: each contradiction is a ValueError that names file and fault."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rewritten import rewritten
from support.samples import BINS, CHANNEL_BINS, assert_same, sample, tensors

from hookstats.runs.format import PART_KEY
from hookstats.runs.run import Run, open_run
from hookstats.runs.writer import RunWriter
from hookstats.show.overview import overview

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


READS: dict[str, Callable[[Run], Any]] = {
    "record": lambda run: run[0],
    "table": lambda run: (run.table(), run.table(channels=True)),
    "overview": overview,
    "series": lambda run: [(site.mean, site.hist) for site in run.series("whole").values()],
    "channels": lambda run: [site.channels.count for site in run.series("whole").values()],
}


def refused(part: Path, why: str, reads: str = "record table") -> None:
    """Each way of reading names the part and says `why`."""
    for name in reads.split():
        with pytest.raises(ValueError, match=rf"{part.name}: damaged, .*{why}"):
            READS[name](open_run(part.parent.parent))


ABOUT = [
    ({"records": "absent"}, "records"),
    ({"records": [[0, 7, 1]]}, "too many values"),
    ({"records": [[0, -7]]}, "records = -7: expected an integer"),
    ({"records": [[0, 7.0], [1, 7]]}, "records = 7.0: expected an integer"),
    ({"records": [[0, 7], [2**70, 7]]}, f"records = {2**70}: expected an integer"),
    ({"records": [[0, 7], [2, 7]]}, "its column 'step' contradicts"),
    ({"records": [[0, 6], [1, 8]]}, "its column 'step' contradicts"),
    ({"records": [[0, 7], [1, 8]]}, "its row groups have"),
    ({"records": [[1, 7], [0, 7]]}, "expected ascending steps"),
    ({"rank": 1}, "to rank 1"),
    ({"rank": "0"}, "rank = '0': expected an integer"),
    ({"written": -1}, "written = -1: expected an integer, 0 or more"),
    ({"gaps": [[-3, "disk"]]}, "gaps = -3: expected an integer"),
    ({"grad_scale": -1}, "grad_scale = -1: expected a number"),
    ({"format": True}, "format = True: expected an integer"),
    ({"format": 0}, "format = 0: expected an integer"),
]


@pytest.mark.parametrize(("about", "why"), ABOUT)
def test_a_footer_that_contradicts_is_named(tmp_path: Path, about: Any, why: str) -> None:
    part = written(tmp_path, 0, 1)
    rewrite(part, pq.read_table(part), **about)
    refused(part, why)


def replaced(table: pa.Table, name: str, change: Callable[[list[Any]], Any]) -> pa.Table:
    """The table with a column changed in place, as Python values."""
    at = table.schema.get_field_index(name)
    values = table.column(name).to_pylist()
    change(values)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.types[at]))


WHOLE = list(tensors()).index(("whole", "param_grad"))


def put(value: int) -> Callable[[list[Any]], None]:
    """Set the number of a site, or the first entry of its list."""

    def change(values: list[Any]) -> None:
        if isinstance(values[WHOLE], list):
            values[WHOLE][0] = value
        else:
            values[WHOLE] = value

    return change


def drop(values: list[Any]) -> None:
    """Shorten a site's list."""
    values[WHOLE].pop()


def swap(values: list[Any]) -> None:
    """Exchange the first two entries of a site's list."""
    values[0][:2] = values[0][1::-1]


COLUMNS = [
    ("step", put(5), "its column 'step' contradicts", "record table overview series"),
    ("rank", put(1), "its column 'rank' is not 0", "record table series"),
    ("count", put(-1), "its column 'count' has -1, expected 0 or more", "record table series"),
    ("nan", put(-3), "its column 'nan' has -3", "record table overview"),
    ("observed", put(-1), "'observed' has -1", "table"),
    ("hist_slots", put(2**31 - 1), rf"'hist_slots' has slots in .*\.\.{2**31 - 1}", "record table"),
    ("hist_slots", put(-1), r"'hist_slots' has slots in -1\.\.", "record table"),
    ("hist_slots", swap, "'hist_slots' has slots that do not ascend", "record table"),
    ("hist_slots", drop, "'hist_slots' has lists of other lengths than its", "record table"),
    ("hist_counts", put(-5), "'hist_counts' has counts", "record table"),
]


@pytest.mark.parametrize(("column", "change", "why", "reads"), COLUMNS)
def test_columns_that_cannot_be_are_named(
    tmp_path: Path, column: str, change: Any, why: str, reads: str
) -> None:
    part = written(tmp_path, 0)
    rewrite(part, replaced(pq.read_table(part), column, change))
    refused(part, why, reads)


def test_channels_that_are_not_as_many_as_the_tensors_say_are_named(tmp_path: Path) -> None:
    part = written(tmp_path, 0, folder="channels")
    table = pq.read_table(part)
    rewrite(part, table.slice(1), records=[[0, table.num_rows - 1]])
    with pytest.raises(ValueError, match=rf"{part.name}: damaged, .*step 0 has 17 channels"):
        open_run(tmp_path)[0]


def test_columns_of_another_type_or_missing_ones_are_named(tmp_path: Path) -> None:
    part = written(tmp_path, 0)
    table = pq.read_table(part)
    at = table.schema.get_field_index("observed")
    rewrite(part, table.set_column(at, "observed", table.column(at).cast(pa.float64())))
    refused(part, "its column 'observed' is .*double>, expected .*int64")
    rewrite(part, table.drop_columns("zero"))
    refused(part, "it has no column 'zero'")


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
        ({"header": [1]}, "header = .*: expected an object"),
        ({"header": {"model": {"a": 1}}}, "header.model = .*: expected a str"),
        ({"header": {"bins": {"type": ["log"]}}}, "bins = .*: expected"),
        ({"coverage": 7}, "coverage = 7: expected an object or null"),
        ({"closed": 1}, "closed = 1: expected a string or null"),
        ({"closed": ["x" * 100_000]}, r"closed = \['x+ \.\.\. x+"),
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
