"""A full memory at any call by which reading a run asks for some: an error that says so, of which
nothing is left, neither in what is read next nor among open files."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.allocations import TRACES_INSTRUCTIONS, FullMemoryAt
from support.commands import call, write_run
from support.samples import BINS, CHANNEL_BINS, sample

from hookstats.runs import part_file, parts
from hookstats.runs.run import Run, open_run
from hookstats.runs.scalars import Scalars
from hookstats.runs.writer import RunWriter

pytestmark = pytest.mark.skipif(
    not TRACES_INSTRUCTIONS, reason="only Python 3.11 traces instructions well"
)


def write(out: Path) -> Path:
    """A run of two ranks, in several parts."""
    for rank in (0, 1):
        header = {"bins": BINS, "channel_bins": CHANNEL_BINS}
        writer = RunWriter(out, header, rank=rank, seconds_per_part=0)
        for step in range(2):
            writer.write(sample(step, rank))
            writer.write_scalars(step, 1e9 + step, {"loss": 1.0 / (step + 1)})
        writer.close({"rows": []})
    return out


def records(run: Run) -> Any:
    return [
        (each.steps, *(repr(each[step].moments.tolist()) for step in each.steps))
        for each in (run, run.of_rank(1))
    ]


def tables(run: Run) -> Any:
    return [repr(each.table().to_pylist()) for each in (run, run.of_rank(1))]


def series(run: Run) -> Any:
    return [
        (key, repr(site.mean.tolist()), repr(site.hist.tolist()), site.shape)
        for each in (run, run.of_rank(1))
        for key, site in each.series().items()
        if site.hist is not None
    ]


def scalars(run: Run) -> Any:
    each = run.scalars
    return {name: each[name].values.tolist() for name in each}, repr(each.table().to_pylist())


READS = [records, tables, series, scalars]


def files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


@pytest.mark.parametrize("read", READS)
def test_a_sample_of_what_reading_asks_for(read: Callable[[Run], Any], tmp_path: Path) -> None:
    go_through(read, tmp_path, share=2)


@pytest.mark.check
@pytest.mark.parametrize("read", READS)
def test_all_that_reading_asks_for(read: Callable[[Run], Any], tmp_path: Path) -> None:
    go_through(read, tmp_path)


def go_through(read: Callable[[Run], Any], scratch: Path, share: int | None = None) -> None:
    """Fail each call, the first or the last time that it is made; or some of them."""
    path, rng = write(scratch / "run"), random.Random(0)
    expected = read(open_run(path))
    run = open_run(path, skip_damaged=True)
    with FullMemoryAt(None, here=True) as counted:
        read(run)
    del run
    opened = files()
    made = sorted(counted.made.items())
    assert len(made) > 3
    for place, times in made if share is None else rng.sample(made, min(share, len(made))):
        run = open_run(path, skip_damaged=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            full = FullMemoryAt(place, rng.choice((1, times)), here=True)
            with suppress(MemoryError, RuntimeError), full:
                read(run)
            assert full.raised, place
            assert read(run) == expected, place
        assert run.damaged == {}, place
        del run
        assert files() == opened, place


def test_a_part_is_not_damaged_because_the_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "run", sample(0))
    run = open_run(path)

    def read(*args: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 4096 failed")

    monkeypatch.setattr(part_file, "check_size", read)
    message = r"000000000000\.parquet: no memory to read the file \(.*malloc of size 4096 failed"
    with pytest.raises(MemoryError, match=message) as caught:
        run[0]
    assert str(caught.value).count("no memory") == 1
    monkeypatch.undo()
    assert run[0].step == 0
    monkeypatch.setattr(part_file, "check_size", read)
    result = call("show", path)
    assert result.code == 2
    assert "error: " in result.err
    assert "no memory to read the file" in result.err
    assert len(result.err.splitlines()) == 1


def test_what_came_meanwhile_is_read_after_a_full_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(tmp_path, {"bins": BINS, "channel_bins": CHANNEL_BINS})
    run = None
    for step in range(2):
        writer.write(sample(step))
        writer.write_scalars(step, 1e9 + step, {"loss": 1.0})
        writer.flush()
        if run is None:
            run = open_run(tmp_path)
            assert run.steps == run.scalars.steps == [0]
    writer.close()
    assert run is not None

    def full(*args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Scalars, "table", full)
        patch.setattr(parts, "index_of", full)
        for read in (lambda: run.steps, lambda: run.scalars.steps):
            with pytest.raises(MemoryError):
                read()
    assert run.steps == run.scalars.steps == [0, 1]
