"""A full memory while a writer encodes and writes: it tries again, or the steps are gaps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.samples import BINS, CHANNEL_BINS, assert_same, sample

from hookstats.runs import writer
from hookstats.runs.run import Run, open_run
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


def begin(out: Path) -> RunWriter:
    made = RunWriter(out, HEADER, seconds_per_part=3600, seconds_per_retry=0)
    for step in range(3):
        made.write(sample(step))
    made.flush()
    return made


def fail(*args: Any, **options: Any) -> NoReturn:
    raise pa.ArrowMemoryError("malloc of size 64 failed")


def read(out: Path) -> Run:
    run = open_run(out)
    for step in run:
        assert_same(run[step], sample(step))
    return run


@pytest.mark.parametrize("in_write", [False, True])
def test_what_cannot_be_encoded_is_encoded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_write: bool
) -> None:
    out = begin(tmp_path)
    monkeypatch.setattr(writer, "encode", fail)
    out.write(sample(3))
    if in_write:  # sites that are unlike, so that those before are encoded
        alike = sample(4)
        phased = tuple(site._replace(kind=f"evaluation:{site.kind}") for site in alike.sites)
        unlike = replace(alike, sites=phased)
        with pytest.raises(MemoryError):
            out.write(unlike)
        out.skip(4, "error")
    with pytest.raises(MemoryError):
        out.flush()
    monkeypatch.undo()
    # A step that was taken keeps what encodes it; others come with one that works.
    out._records._part._encoder = writer.encode  # type: ignore[union-attr]
    out.write(sample(5))
    out.close()
    run = read(tmp_path)
    assert run.steps == [0, 1, 2, 3, 5]
    assert run.gaps == ({4: "error"} if in_write else {})
    assert run.thinned == 0


@pytest.mark.parametrize("method", ["write_table", "add_key_value_metadata", "close"])
def test_a_part_that_arrow_cannot_finish_becomes_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    out = begin(tmp_path)
    for step in (3, 4):
        out.write(sample(step))
    original, errors = getattr(pq.ParquetWriter, method), [pa.ArrowMemoryError("of 64 bytes")]

    def fail_once(*args: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return original(*args, **options)

    monkeypatch.setattr(pq.ParquetWriter, method, fail_once)
    with pytest.raises(MemoryError):
        out.flush()
    for step in (5, 6):
        out.write(sample(step))
    out.close()
    run = read(tmp_path)
    assert run.steps == [0, 1, 2, 5, 6]
    assert run.gaps == {3: "error", 4: "error"}
    again = RunWriter(tmp_path, HEADER, append=True)
    again.write(sample(4))  # training went back to a step that was lost
    again.close()
    assert read(tmp_path).steps == [0, 1, 2, 4]
    assert read(tmp_path).gaps == {3: "error"}


def test_a_part_that_says_that_training_went_back_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = begin(tmp_path)
    out.write(sample(1))
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", fail)
        with pytest.raises(MemoryError):
            out.flush()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="an error came while the part was written"):
            out.flush()
    assert read(tmp_path).steps == [0, 1, 2]


def test_what_cannot_be_encoded_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = RunWriter(tmp_path, HEADER, seconds_per_retry=0, bytes_per_part=20_000)
    monkeypatch.setattr(writer, "encode", fail)
    for step in range(60):
        with suppress(MemoryError):  # each step is taken, or is a gap
            out.write(sample(step))
    assert out._records._waiting < 60_000
    assert out.lost > 0
    monkeypatch.undo()
    out._records._part._encoder = writer.encode  # type: ignore[union-attr]
    out.flush()
    out.write(sample(60))
    out.close()
    run = read(tmp_path)
    assert set(run.steps) | set(run.gaps) == set(range(61))
    assert set(run.gaps.values()) == {"error"}


def test_a_writer_that_cannot_begin_leaves_no_lock(tmp_path: Path) -> None:
    begin(tmp_path).close()
    other = {**HEADER, "bins": None}
    with pytest.raises(ValueError, match="bins = ") as caught:
        RunWriter(tmp_path, other, append=True, locked=True)
    assert not list(tmp_path.glob("lock-*"))
    assert caught.value is not None  # which holds the writer
