"""The merged record of a step, as it is read: one rank at a time, whatever happens meanwhile."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.samples import BINS, CHANNEL_BINS, assert_same, sample

from hookstats.records.ranks import Merger
from hookstats.records.record import StepRecord
from hookstats.runs.parts import Parts
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter

RANKS = 3
STEPS = 4
HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


def write(out: Path, records: list[list[StepRecord]], seconds: float = 0.0) -> None:
    """By rank and step; `seconds`: 0 for a part per record."""
    for rank, of_rank in enumerate(records):
        writer = RunWriter(out, HEADER, rank=rank, seconds_per_part=seconds)
        for record in of_rank:
            writer.write(record)
        writer.close()


def samples() -> list[list[StepRecord]]:
    return [[sample(step, rank) for step in range(STEPS)] for rank in range(RANKS)]


def merged(*records: StepRecord) -> StepRecord:
    return Merger()(records)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_what_is_read_is_what_records_merge_to(tmp_path: Path, seconds: float) -> None:
    records = samples()
    write(tmp_path, records, seconds)
    run = open_run(tmp_path)
    for step in (2, 0, 3, 1, 1):
        assert_same(run[step], merged(*(of_rank[step] for of_rank in records)), rtol=1e-14)
        # To the bit what merging the records of the ranks gives.
        of_ranks = [run.of_rank(rank)[step] for rank in range(RANKS)]
        assert run[step].moments.tobytes() == merged(*of_ranks).moments.tobytes()


def test_a_part_that_goes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = samples()
    write(tmp_path, records)
    run = open_run(tmp_path)
    record = Parts.record

    def slow(self: Parts, where, *, channels: bool = True):  # type: ignore[no-untyped-def]
        if where.part.rank == 0:
            for path in (tmp_path / "tensors").glob("00001-000002-*"):
                path.unlink()
        return record(self, where, channels=channels)

    monkeypatch.setattr(Parts, "record", slow)
    assert_same(run[2], merged(records[0][2], records[2][2]), rtol=1e-14)


def damage(out: Path, column: str) -> None:
    """Change a byte of a column of rank 1's part of step 2."""
    (path,) = (out / "tensors").glob("00001-000002-*")
    metadata = pq.read_metadata(path).row_group(0)
    chunks = [metadata.column(i) for i in range(metadata.num_columns)]
    (chunk,) = [c for c in chunks if c.path_in_schema.split(".")[0] == column]
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("column", ["mean", "count", "shape", "hist_slots"])
def test_a_damaged_part_is_named_or_left_out(tmp_path: Path, column: str) -> None:
    records = samples()
    write(tmp_path, records)
    damage(tmp_path, column)
    with pytest.raises(ValueError, match=r"00001-000002-\S+\.parquet: damaged"):
        open_run(tmp_path)[2]
    run = open_run(tmp_path, skip_damaged=True)
    with pytest.warns(RuntimeWarning, match="left out: .*00001-000002"):
        found = run[2]
    assert_same(found, merged(records[0][2], records[2][2]), rtol=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run[2]
