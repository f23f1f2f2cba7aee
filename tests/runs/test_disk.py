"""A disk that is full, slow or gone: it may stop or slow the recording, never end the training."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from weakref import WeakSet

import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, sample
from torch import nn
from torch.optim import SGD

from hookstats import open_run, watch
from hookstats.arena.arena import Arena
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.runs.writer import RunWriter
from hookstats.watching.flush import Flusher

FULL = """
    import sys, warnings
    import torch
    from torch import nn
    from hookstats import open_run, watch

    def train(out):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 400), nn.ReLU(), nn.Linear(400, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        records = []
        w = watch(model, optimizer, out=out, sinks=[records.append])
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            w._flusher.drain()  # a part a step
        w.close()
        return model, records, w.coverage()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, records, coverage = train(sys.argv[1])
    print(len(caught), caught[0].category.__name__, caught[0].message)
    assert len(coverage.failures) == 1, coverage.failures
    assert len(records) == 40  # the sinks go on
    for mine, other in zip(model.parameters(), train(None)[0].parameters(), strict=True):
        assert mine.equal(other)
    run = open_run(sys.argv[1])
    assert 3 < len(run) < 40, len(run)
    assert run.steps == list(range(len(run)))
    for step in run:
        assert run[step]["0", "output"].mean.equal(records[step]["0", "output"].mean)
    assert run.closed is None
"""


@pytest.mark.check
def test_a_disk_that_fills_up_stops_the_recording_alone(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    small = f"mount -t tmpfs -o size=400k tmpfs '{disk}' && exec \"$@\""
    if shutil.which("unshare") is None or subprocess.run([*mount, small, "sh", "true"]).returncode:
        pytest.skip("no mount namespaces here: no disk to fill")
    script = [sys.executable, "-c", textwrap.dedent(FULL), str(disk / "run")]
    ended = subprocess.run(
        [*mount, small, "sh", *script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("1 RuntimeWarning hookstats: writing to out = ")
    assert "No space left on device" in ended.stdout
    assert "nothing more is written" in ended.stdout


def test_a_directory_that_vanishes_stops_the_recording_alone(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    steps: list[int] = []
    w = watch(model, optimizer, out=tmp_path / "run", sinks=[lambda r: steps.append(r.step)])

    def train() -> None:
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
            w._flusher.drain()

    train()
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match=r"out = '.*run' failed: FileNotFoundError") as caught:
        train()
    w.close()
    assert len(caught) == 1
    assert steps == list(range(6))
    assert list(w.coverage().failures) == [f"writing to out = {str(tmp_path / 'run')!r}"]
    assert not (tmp_path / "run").exists()


def test_a_slow_disk_slows_the_training_and_bounds_the_memory(tmp_path: Path) -> None:
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

    arena = Arena(BINS, None)
    info = SiteInfo("a", "output", 4, 1, (2, 4), "float32")
    accumulator = arena.accumulator(info, torch.device("cpu"))
    flusher = Flusher(SlowWriter(tmp_path, {"bins": BINS}, seconds_per_part=0))
    for step in range(30):
        accumulator.fold(torch.full((2, 4), float(step)), 1)
        flusher.submit(arena.swap(), step)
        assert flusher._queue.qsize() <= 1
    flusher.close()
    assert arena.stalls >= 20
    assert most <= 2  # one that is written, and the one before on its way out
    run = open_run(tmp_path)
    assert run.steps == list(range(30))
    assert [run[step]["a", "output"].mean[0] for step in run] == list(range(30))


def test_what_waits_to_be_written_is_bounded(tmp_path: Path) -> None:
    writer = RunWriter(
        tmp_path,
        {"bins": BINS, "channel_bins": CHANNEL_BINS},
        seconds_per_part=3600,
        bytes_per_part=50_000,
    )
    for step in range(60):
        writer.write(sample(step))
        assert writer._part is None or writer._part.nbytes < 50_000
    writer.close()
    parts = list((tmp_path / "parts").iterdir())
    assert 3 < len(parts) < 20
    assert len(open_run(tmp_path)) == 60
