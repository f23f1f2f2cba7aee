"""Thinning: all ranks keep the same steps, in blocks that they agree on by a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.samples import BINS, CHANNEL_BINS, sample

from hookstats import open_run
from hookstats.records.alerts import Alert
from hookstats.runs.alerts import Told
from hookstats.runs.format import PartName
from hookstats.runs.thinning import Written, block_of, blocks_around, first_to_go
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


def writer_of(out: Path, rank: int, max_bytes: int, seconds: float = 3600.0) -> RunWriter:
    return RunWriter(out, HEADER, rank=rank, max_bytes=max_bytes, seconds_per_part=seconds)


@pytest.mark.check
def test_ranks_keep_the_same_steps_though_their_parts_end_elsewhere(tmp_path: Path) -> None:
    """One rank writes a part after each step, the other one after every seventh; their limits, and
    so what each would take for a block, differ by a factor of 1.9."""
    record, least = sample(0), 700_000
    writers = [writer_of(tmp_path, 0, int(1.9 * least), 0), writer_of(tmp_path, 1, least)]
    for step in range(400):
        for rank, writer in enumerate(writers):
            writer.write(replace(record, step=step, rank=rank))
            if rank and step % 7 == 6:
                writer.flush()
    for writer in writers:
        writer.close()
    block = json.loads((tmp_path / "thinning.json").read_text())["block"]
    assert block > 1
    run = open_run(tmp_path)
    fewer, more = sorted((run.of_rank(rank).steps for rank in (0, 1)), key=len)
    assert len(fewer) < len(more) < 400
    old = [step for step in fewer if step < 400 - 150]
    assert len(old) > 20
    assert set(old) <= set(more)  # what the one keeps, the other one has
    blocks = {step // block for step in old}
    assert all(set(range(b * block, (b + 1) * block)) <= set(fewer) for b in blocks)


@pytest.mark.check
def test_ranks_keep_the_same_steps_around_the_incident_of_one(tmp_path: Path) -> None:
    writers = [writer_of(tmp_path, rank, 700_000) for rank in (0, 1)]
    for step in range(400):
        for rank, writer in enumerate(writers):
            writer.write(replace(sample(0), step=step, rank=rank))
            if step % (3 + rank) == 0:
                writer.flush()
        if step == 43:
            alert = Alert(step, 1, "whole", "param_grad", None, "non-finite", 1.0, "NaN", "error")
            writers[1].write_alerts([Told(alert, 0, True, {})])
    for writer in writers:
        writer.close()
    run = open_run(tmp_path)
    first, second = (set(run.of_rank(rank).steps) for rank in (0, 1))
    assert set(range(33, 54)) <= first & second
    assert max(first ^ second, default=400) >= 250  # but for the last few that went
    assert len(first & second) < 300


def test_a_continued_run_keeps_its_blocks(tmp_path: Path) -> None:
    assert block_of(tmp_path, 0, step_bytes=100, every=10, max_bytes=128 * 900) == 80
    assert block_of(tmp_path, 1, step_bytes=1, every=10, max_bytes=1 << 40) == 80
    (tmp_path / "thinning.json").write_text('{"block": 0}')
    with pytest.raises(ValueError, match=r"thinning\.json"):
        block_of(tmp_path, 0, 1, 1, 1)
    assert block_of(tmp_path / "gone", 0, 1e9, 7, 1) == 7  # a disk that takes nothing


def test_whole_blocks_go_first_odd_ones_the_newest_last() -> None:
    # Two to a block of 8.
    parts = {n: Written(PartName(0, n, 4 * n), 4, 10, 4 * n + 3) for n in range(12)}
    order = list(first_to_go(parts, 8, max_bytes=80))
    assert order == [[2, 3], [6, 7], [4, 5], [8, 9], [0, 1], [10]]
    late = blocks_around(parts, 8, [(2, 2), (15, 16), (26, 29)], 50)  # there is room for two
    assert late == {2, 3}
    order = list(first_to_go(parts, 8, 80, late))
    assert order == [[2, 3], [8, 9], [0, 1], [6, 7], [4, 5], [10]]
    # Without blocks, and with room for three parts in the newest quarter.
    order = list(first_to_go(parts, None, max_bytes=120))
    assert order == [[n] for n in (1, 3, 5, 7, 2, 6, 4, 8, 0, 9, 10)]
    assert list(first_to_go({5: parts[5]}, 8, max_bytes=1)) == []


def test_a_limit_holds_though_one_block_is_larger(tmp_path: Path) -> None:
    """The blocks of a run that is continued may be too large for a smaller limit."""
    (tmp_path / "thinning.json").write_text('{"block": 1024}')
    writer = writer_of(tmp_path, 0, 60_000, 0)
    for step in range(40):
        writer.write(replace(sample(0), step=step))
        size = sum(path.stat().st_size for path in (tmp_path / "parts").iterdir())
        assert size <= 60_000
    assert open_run(tmp_path).steps[-1] == 39
