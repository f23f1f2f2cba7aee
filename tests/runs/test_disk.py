"""A disk that is full, slow or gone: it may stop or slow the recording, never end the training."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, assert_same, sample
from torch import nn
from torch.optim import SGD

from hookstats import open_run, watch
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.runs.files import RunDirectory
from hookstats.runs.writer import RunWriter
from hookstats.watching.recorder import Recorder

FULL = """
    import os, sys, warnings
    import torch
    from torch import nn
    from hookstats import open_run, watch

    out, filler = sys.argv[1:3]

    def train(out):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 400), nn.ReLU(), nn.Linear(400, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        records = []
        w = watch(model, optimizer, out=out, sinks=[records.append], rules=(), channels="always")
        for step in range(40):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            w._recorder.drain()  # a part a step
            if step == 30 and os.path.exists(filler):
                os.remove(filler)
        w.close()
        return model, records, w.coverage()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, records, coverage = train(out)
    print(len(caught), caught[0].category.__name__, caught[0].message)
    assert len(coverage.failures) == len(caught), coverage.failures
    assert len(records) == 40  # the sinks go on
    for mine, other in zip(model.parameters(), train(None)[0].parameters(), strict=True):
        assert mine.equal(other)
    run = open_run(out)
    assert run.steps == list(range(len(run)))
    for step in run:
        assert run[step]["0", "output"].mean.equal(records[step]["0", "output"].mean)
    assert run.gaps == {}
    print(len(run), run.closed is not None)
"""


@pytest.mark.check
@pytest.mark.parametrize("passing", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_disk_that_fills_up_disturbs_the_recording_alone(passing: bool, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    filler = disk / "filler"
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    small = f"mount -t tmpfs -o size={9000 if passing else 400}k tmpfs '{disk}'"
    if passing:
        small += f" && head -c 8600k /dev/zero > '{filler}'"
    small += ' && exec "$@"'
    if shutil.which("unshare") is None or subprocess.run([*mount, small, "sh", "true"]).returncode:
        pytest.skip("no mount namespaces here: no disk to fill")
    script = [sys.executable, "-c", textwrap.dedent(FULL), str(disk / "run"), str(filler)]
    ended = subprocess.run(
        [*mount, small, "sh", *script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stderr.splitlines() if ": hookstats show " not in line]
    assert len(told) == 1, told  # beside what a run has in the end
    assert "/disk/run takes about" in told[0]
    warned, whole = ended.stdout.splitlines()
    assert warned.startswith(f"{1 if passing else 2} RuntimeWarning hookstats: writing to out = ")
    assert warned.endswith("No space left on device; the writer tries again")
    steps, closed = whole.split()
    assert closed == str(passing)
    assert int(steps) == 40 if passing else 3 < int(steps) < 40


def test_a_directory_that_vanishes_stops_the_recording_alone(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    steps: list[int] = []
    sinks = [lambda record: steps.append(record.step)]
    w = watch(model, optimizer, out=tmp_path / "run", sinks=sinks, rules=())

    def train() -> None:
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
            w._recorder.drain()

    train()
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match=r"out = '.*run' failed: FileNotFoundError") as caught:
        train()
    assert len(caught) == 1
    with pytest.warns(RuntimeWarning, match=r"closing out = .* not on the disk are lost") as caught:
        w.close()
    assert len(caught) == 1
    assert steps == list(range(6))
    out = repr(str(tmp_path / "run"))
    assert list(w.coverage().failures) == [f"writing to out = {out}", f"closing out = {out}"]
    assert not (tmp_path / "run").exists()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A disk that takes no file while the set is not empty; what it has may be read."""
    full: set[str] = set()

    put = RunDirectory.write

    def write(run: RunDirectory, name: str, content: Any, rank: int, *, new: bool = False) -> None:
        if "full" in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        put(run, name, content, rank, new=new)
        if "unsynced" in full:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    monkeypatch.setattr(RunDirectory, "write", write)
    return full


def write(out: RunWriter, steps: Iterable[int]) -> int:
    """Write steps, of which the disk may take none; how often it failed."""
    failed = 0
    for step in steps:
        failed += 1
        with suppress(OSError):
            out.write(sample(step))
            failed -= 1
    return failed


HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}
AT_ONCE = {"seconds_per_part": 0.0, "seconds_per_retry": 0.0}


def test_what_the_disk_did_not_take_is_written_later(tmp_path: Path, disk: set[str]) -> None:
    out = RunWriter(tmp_path, HEADER, **AT_ONCE)
    write(out, range(3))
    disk.add("full")
    assert write(out, range(3, 9)) == 6
    assert out.due_in() is not None
    assert open_run(tmp_path).steps == [0, 1, 2]
    disk.clear()
    out.flush_if_due()
    assert open_run(tmp_path).steps == list(range(9))
    assert out.due_in() is None
    assert out.lost == 0
    write(out, [9])
    out.close({"rows": []})
    run = open_run(tmp_path)
    assert run.steps == list(range(10))
    for step in run:
        assert_same(run[step], sample(step))
    assert run.gaps == {}
    assert len(list((tmp_path / "tensors").iterdir())) == 6  # what waited is two parts


def test_a_file_that_was_written_but_not_synced_is_no_other_writers(
    tmp_path: Path, disk: set[str]
) -> None:
    out = RunWriter(tmp_path, HEADER, **AT_ONCE)
    disk.add("unsynced")
    assert write(out, [0]) == 1
    disk.clear()
    write(out, [1])
    out.close()
    assert open_run(tmp_path).steps == [0, 1]


def test_the_steps_of_a_long_failure_are_gaps(tmp_path: Path, disk: set[str]) -> None:
    out = RunWriter(tmp_path, HEADER, **AT_ONCE, bytes_per_part=20_000)
    write(out, range(3))
    disk.add("full")
    assert write(out, range(3, 60)) == 57
    assert 0 < out.lost < 57
    lost = list(range(60 - out.lost, 60))
    assert out._records._waiting < 60_000
    disk.clear()
    write(out, range(60, 63))
    out.close()
    run = open_run(tmp_path)
    # One more step is lost: the disk was asked again after it.
    assert run.steps == [step for step in range(63) if step not in [*lost, 60]]
    assert run.gaps == dict.fromkeys([*lost, 60], "disk")
    assert run.thinned == 0
    for step in run:
        assert_same(run[step], sample(step))
    again = RunWriter(tmp_path, HEADER, append=True)
    again.write(sample(40))  # training went back: what came after is void
    again.close()
    run = open_run(tmp_path)
    assert run.steps[-1] == 40
    assert run.gaps == dict.fromkeys([step for step in lost if step < 40], "disk")


def test_a_slow_disk_slows_the_training_and_bounds_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write takes longer than a step: few steps are in memory, all are stored."""
    alive: WeakSet[StepRecord] = WeakSet()
    most = 0

    class SlowWriter(RunWriter):
        def write(self, record: StepRecord) -> None:
            nonlocal most
            alive.add(record)
            most = max(most, len(alive))
            time.sleep(0.02)
            super().write(record)

    monkeypatch.setattr("hookstats.watching.recorder.MOST_WAITING", 4)
    buffers = DoubleBuffer(BINS, None)
    info = SiteInfo("a", "output", 4, 1, (2, 4), "float32")
    accumulator = buffers.accumulator(info, torch.device("cpu"))
    recorder = Recorder(SlowWriter(tmp_path, {"bins": BINS}, seconds_per_part=0))
    buffers.has_room, buffers.while_waiting = recorder.has_room, recorder.hurry
    for step in range(30):
        accumulator.accumulate(torch.full((2, 4), float(step)), 1)
        closed = buffers.close()
        assert closed is not None
        recorder.submit(closed, step)
        assert recorder._waiting()[0] <= 4
    recorder.close()
    assert buffers.stalls >= 5
    assert most <= 2  # one that is written, and the one before on its way out
    run = open_run(tmp_path)
    assert run.steps == list(range(30))
    assert [run[step]["a", "output"].mean[0] for step in run] == list(range(30))
